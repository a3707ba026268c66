#include "kernels/memory/lease_table.h"

#include <algorithm>
#include <vector>

#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

const ActorId kHolder{"client", 1};
const ActorId kOther{"cpu1", 4};

TEST_CASE("a lease ends once, and its number is not used again") {
  LeaseTable table;
  const LeaseTable::Grant first = table.grant(kHolder, 0x1000, 64, Clock::now());
  REQUIRE(first.live);
  REQUIRE(table.release(first.lease) == 0x1000);
  REQUIRE_FALSE(table.release(first.lease));
  REQUIRE_FALSE(table.release(0));
  REQUIRE_FALSE(table.release(77));
  REQUIRE(table.grant(kHolder, 0x1000, 64, Clock::now()).lease > first.lease);
  REQUIRE(table.size() == 1);
}

TEST_CASE("a holder's end gives one block for each of its leases and leaves the others'") {
  LeaseTable table;
  table.grant(kHolder, 0x1000, 64, Clock::now());
  const LeaseTable::Grant other = table.grant(kOther, 0x1000, 64, Clock::now());
  table.grant(kHolder, 0x1000, 64, Clock::now());
  table.grant(kHolder, 0x2000, 64, Clock::now());
  std::vector<std::uintptr_t> blocks = table.holder_gone(kHolder);
  std::sort(blocks.begin(), blocks.end());
  REQUIRE(blocks == std::vector<std::uintptr_t>{0x1000, 0x1000, 0x2000});
  REQUIRE(table.holder_gone(kHolder).empty());
  REQUIRE(table.size() == 1);
  REQUIRE(table.list().front().lease == other.lease);
  REQUIRE(table.list().front().holder == kOther);
}

TEST_CASE("a lease for a holder that is gone has ended when it is granted") {
  LeaseTable table;
  REQUIRE(table.holder_gone(kHolder).empty());
  const LeaseTable::Grant late = table.grant(kHolder, 0x1000, 64, Clock::now());
  REQUIRE_FALSE(late.live);
  REQUIRE_FALSE(table.release(late.lease));
  REQUIRE(table.grant({"client", 2}, 0x1000, 64, Clock::now()).live);
  REQUIRE(table.size() == 1);
}

}  // namespace
}  // namespace callboard::kernels
