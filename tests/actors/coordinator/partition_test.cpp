#include "actors/coordinator/partition.h"

#include <algorithm>
#include <limits>

#include "tests/support/random_graph.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

double dearest_part(const PartitionProblem& problem, const std::vector<std::size_t>& ends) {
  double dearest = 0;
  std::size_t begin = 0;
  for (std::size_t end : ends) {
    double cost = 0;
    for (; begin < end; ++begin) cost += problem.blocks[begin].cost;
    dearest = std::max(dearest, cost);
  }
  return dearest;
}

/// Tries every cut.
double best_by_force(const PartitionProblem& problem, std::size_t begin, std::size_t device) {
  double best = std::numeric_limits<double>::infinity();
  double cost = 0;
  if (device + 1 == problem.limits.size()) {
    for (std::size_t i = begin; i < problem.blocks.size(); ++i) cost += problem.blocks[i].cost;
    return cost;
  }
  for (std::size_t end = begin; end <= problem.blocks.size(); ++end) {
    best = std::min(best, std::max(cost, best_by_force(problem, end, device + 1)));
    if (end < problem.blocks.size()) cost += problem.blocks[end].cost;
  }
  return best;
}

}  // namespace

TEST_CASE("a partition is as good as the best one found by force") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    test::Random random(seed);
    PartitionProblem problem;
    problem.blocks.resize(1 + random.below(12));
    for (PartitionBlock& block : problem.blocks) block.cost = static_cast<double>(1 + random.below(100));
    problem.limits.assign(1 + random.below(4), 0);
    const auto ends = partition_contiguous(problem);
    REQUIRE(ends);
    REQUIRE(ends->size() == problem.limits.size());
    CHECK(ends->back() == problem.blocks.size());
    CHECK(std::is_sorted(ends->begin(), ends->end()));
    CHECK(dearest_part(problem, *ends) <= 1.0001 * best_by_force(problem, 0, 0));
  }
}

TEST_CASE("every device gets a block where there are enough") {
  PartitionProblem problem;
  problem.blocks = {{10, 0, {}}, {1, 0, {}}, {1, 0, {}}};
  problem.limits = {0, 0, 0};
  CHECK(*partition_contiguous(problem) == std::vector<std::size_t>{1, 2, 3});
  problem.limits = {0, 0, 0, 0};
  CHECK(*partition_contiguous(problem) == std::vector<std::size_t>{1, 2, 3, 3});
}

TEST_CASE("limits are kept, shared storages count once, and what cannot fit is said") {
  PartitionProblem problem;
  problem.storage_bytes = {60, 50};
  problem.blocks = {{1, 0, {0}}, {1, 0, {0}}, {1, 0, {0}}, {1, 0, {1}}};
  problem.limits = {70, 70};
  CHECK(*partition_contiguous(problem) == std::vector<std::size_t>{3, 4});
  problem.limits = {40, 200};
  CHECK(*partition_contiguous(problem) == std::vector<std::size_t>{0, 4});
  problem.limits = {70, 40};
  CHECK_FALSE(partition_contiguous(problem));
}

}  // namespace callboard::actors
