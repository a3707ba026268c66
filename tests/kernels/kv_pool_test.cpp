#include "kernels/kv_pool.h"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "tests/support/test.h"

using callboard::kernels::BlockPool;
using callboard::kernels::common_prefix;
using Blocks = std::vector<std::int32_t>;

TEST_CASE("a fresh pool gives ascending blocks, and what was released last comes first") {
  BlockPool pool(5);
  CHECK(pool.allocate(3) == Blocks{0, 1, 2});
  pool.release(0);
  pool.release(2);
  CHECK(pool.allocate(3) == Blocks{2, 0, 3});
  CHECK(pool.num_free() == 1);
}

TEST_CASE("an allocation that cannot be whole changes nothing") {
  BlockPool pool(3);
  CHECK_FALSE(pool.allocate(4));
  CHECK_FALSE(pool.allocate(-1));
  CHECK_FALSE(pool.allocate(std::numeric_limits<std::int64_t>::min()));
  const std::vector<std::int64_t> too_many{2, 2};
  CHECK_FALSE(pool.allocate_many(too_many));
  const std::vector<std::int64_t> overflowing(4, std::numeric_limits<std::int64_t>::max());
  CHECK_FALSE(pool.allocate_many(overflowing));
  const std::vector<std::int64_t> negative{1, -1};
  CHECK_THROWS_AS(pool.allocate_many(negative), std::invalid_argument);
  CHECK(pool.num_free() == 3);
  const std::vector<std::int64_t> fitting{1, 0, 2};
  CHECK(pool.allocate_many(fitting) == std::vector<Blocks>{{0}, {}, {1, 2}});
}

TEST_CASE("a block has as many owners as were counted, and wrong use of one throws") {
  BlockPool pool(2);
  REQUIRE(pool.allocate(1));
  pool.retain(0);
  pool.release(0);
  CHECK(pool.num_free() == 1);
  pool.release(0);
  CHECK(pool.num_free() == 2);
  CHECK_THROWS_AS(pool.release(0), std::logic_error);
  CHECK_THROWS_AS(pool.retain(0), std::logic_error);
  CHECK_THROWS_AS(pool.retain(2), std::out_of_range);
  CHECK_THROWS_AS(pool.release(-1), std::out_of_range);
  CHECK_THROWS_AS(BlockPool(-1), std::invalid_argument);
  CHECK_THROWS_AS(BlockPool(std::int64_t{1} << 31), std::invalid_argument);
  CHECK_FALSE(BlockPool(0).allocate(1));
}

TEST_CASE("the common prefix ends at the first difference or with the shorter sequence") {
  const Blocks a{1, 2, 3, 4};
  const Blocks b{1, 2, 9};
  CHECK(common_prefix(a, b) == 2);
  CHECK(common_prefix(b, a) == 2);
  CHECK(common_prefix(a, Blocks{1, 2}) == 2);
  CHECK(common_prefix(a, a) == 4);
  CHECK(common_prefix({}, a) == 0);
}
