#include <cstdlib>

#include "tests/simulation/simulator.h"
#include "tests/support/test.h"

namespace callboard::simulation {
namespace {

/// CALLBOARD_SIMULATION_SEEDS="FIRST COUNT" runs others than the usual ones.
std::pair<std::uint64_t, std::uint64_t> seeds() {
  std::uint64_t first = 1;
#if defined(CALLBOARD_SANITIZED)
  std::uint64_t count = 24;  // a hundred times slower, unoptimised as they are
#else
  std::uint64_t count = 300;
#endif
  if (const char* wanted = std::getenv("CALLBOARD_SIMULATION_SEEDS")) {
    char* rest = nullptr;
    first = std::strtoull(wanted, &rest, 10);
    count = std::strtoull(rest, nullptr, 10);
  }
  return {first, count};
}

}  // namespace

TEST_CASE("CO-1 to CO-7, CS-1 CS-2 DC-1 DC-2 DC-3 DC-4 SV-1 hold in simulated clusters under faults") {
  const auto [first, count] = seeds();
  Tally sum;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Simulator simulator({seed});
    if (!simulator.run()) FAIL(simulator.report() << "replay: simulate --seed " << seed << " --verbose");
    const Tally& tally = simulator.tally();
    sum.ok += tally.ok;
    sum.failed += tally.failed;
    sum.cancelled += tally.cancelled;
    sum.expired += tally.expired;
    sum.state_losses += tally.state_losses;
    sum.retried += tally.retried;
    sum.kills += tally.kills;
    sum.stops += tally.stops;
    sum.cuts += tally.cuts;
    sum.client_deaths += tally.client_deaths;
    sum.restarts += tally.restarts;
  }
  // What never happened has not been tested.
  CHECK(sum.ok > 5 * count);
  for (std::uint64_t happened : {sum.failed, sum.cancelled, sum.expired, sum.state_losses, sum.retried, sum.kills,
                                 sum.stops, sum.cuts, sum.client_deaths, sum.restarts}) {
    CHECK(happened > count / 20);
  }
}

TEST_CASE("the same seed gives the same run") {
  Simulator one({7});
  Simulator two({7});
  CHECK(one.run() == two.run());
  CHECK(one.world().steps() == two.world().steps());
  CHECK(one.world().log() == two.world().log());
}

}  // namespace callboard::simulation
