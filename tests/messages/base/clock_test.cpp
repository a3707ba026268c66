#include "messages/base/clock.h"

#include "tests/support/test.h"

namespace callboard {
namespace {

TEST_CASE("a wait that reaches past the end of time never ends, and does not overflow") {
  const TimePoint now{std::chrono::hours(1000)};
  CHECK(after(now, std::chrono::seconds(1)) == now + std::chrono::seconds(1));
  CHECK(after(now, Duration::max()) == kNever);
  CHECK(after(kNever, std::chrono::seconds(1)) == kNever);
  CHECK(after(now, Duration::zero()) == now);
}

}  // namespace
}  // namespace callboard
