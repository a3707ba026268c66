#include "kernels/memory/extent_allocator.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

enum class Page { kUsed, kCold, kWarm };

/// The same rules over one array entry for each page.
class NaiveModel {
 public:
  explicit NaiveModel(std::uint64_t pages) : pages_(pages, Page::kCold) {}

  std::uint64_t longest(bool warm_only) const {
    std::uint64_t best = 0;
    std::uint64_t run = 0;
    for (const Page page : pages_) {
      run = page == Page::kWarm || (page == Page::kCold && !warm_only) ? run + 1 : 0;
      best = std::max(best, run);
    }
    return best;
  }
  std::uint64_t count(Page kind) const {
    return static_cast<std::uint64_t>(std::count(pages_.begin(), pages_.end(), kind));
  }
  bool all_free(const Extent& extent) const {
    return std::all_of(at(extent.first), at(extent.end()), [](Page page) { return page != Page::kUsed; });
  }
  bool all_warm(const Extent& extent) const {
    return std::all_of(at(extent.first), at(extent.end()), [](Page page) { return page == Page::kWarm; });
  }
  std::vector<Extent> cold_in(const Extent& extent) const {
    std::vector<Extent> cold;
    for (std::uint64_t page = extent.first; page < extent.end(); ++page) {
      if (pages_[page] != Page::kCold) continue;
      if (!cold.empty() && cold.back().end() == page) {
        ++cold.back().pages;
      } else {
        cold.push_back({page, 1});
      }
    }
    return cold;
  }
  void set(const Extent& extent, Page kind) {
    std::fill(pages_.begin() + static_cast<std::ptrdiff_t>(extent.first),
              pages_.begin() + static_cast<std::ptrdiff_t>(extent.end()), kind);
  }

 private:
  std::vector<Page>::const_iterator at(std::uint64_t page) const {
    return pages_.begin() + static_cast<std::ptrdiff_t>(page);
  }
  std::vector<Page> pages_;
};

void check_equal(const ExtentAllocator& allocator, const NaiveModel& model) {
  REQUIRE(allocator.largest_free() == model.longest(false));
  REQUIRE(allocator.largest_warm() == model.longest(true));
  REQUIRE(allocator.warm_pages() == model.count(Page::kWarm));
  REQUIRE(allocator.free_pages() == model.count(Page::kWarm) + model.count(Page::kCold));
  REQUIRE(allocator.empty() == (model.count(Page::kUsed) == 0));
}

void run_against_model(std::uint32_t seed, std::uint64_t pages, int steps) {
  std::mt19937 random(seed);
  ExtentAllocator allocator(pages);
  NaiveModel model(pages);
  std::vector<Extent> live;
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t dice = random() % 100;
    if (dice < 50) {
      const std::uint64_t wanted = 1 + random() % std::max<std::uint64_t>(1, pages / (1 + random() % 16));
      const auto grant = allocator.allocate(wanted);
      REQUIRE(grant.has_value() == (model.longest(false) >= wanted));
      if (!grant) continue;
      REQUIRE(grant->extent.pages == wanted);
      REQUIRE(model.all_free(grant->extent));
      REQUIRE(grant->cold == model.cold_in(grant->extent));
      REQUIRE((model.longest(true) < wanted || grant->cold.empty()));
      model.set(grant->extent, Page::kUsed);
      live.push_back(grant->extent);
    } else if (dice < 95 && !live.empty()) {
      const std::size_t index = random() % live.size();
      const bool warm = random() % 4 != 0;
      allocator.release(live[index], warm);
      model.set(live[index], warm ? Page::kWarm : Page::kCold);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    } else {
      const std::uint64_t wanted = random() % pages;
      std::uint64_t taken = 0;
      const std::uint64_t warm = model.count(Page::kWarm);
      for (const Extent& part : allocator.take_warm(wanted)) {
        REQUIRE(model.all_warm(part));
        model.set(part, Page::kUsed);
        live.push_back(part);
        taken += part.pages;
      }
      REQUIRE(taken == std::min(wanted, warm));
    }
    check_equal(allocator, model);
  }
  for (const Extent& extent : live) allocator.release(extent, true);
  REQUIRE(allocator.empty());
  REQUIRE(allocator.largest_free() == pages);
}

TEST_CASE("extents behave like one flag a page, whatever the order of calls") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    run_against_model(seed, 1 + seed * 7 % 200, 500);
  }
}

TEST_CASE("all sequences of six calls on four pages agree with the model") {
  // Each call: allocate 1..3 pages, or release the oldest (warm or cold) or the newest live extent: 6 kinds.
  for (int code = 0; code < 6 * 6 * 6 * 6 * 6 * 6; ++code) {
    ExtentAllocator allocator(4);
    NaiveModel model(4);
    std::vector<Extent> live;
    for (int rest = code, step = 0; step < 6; ++step, rest /= 6) {
      const int kind = rest % 6;
      if (kind < 3) {
        const auto grant = allocator.allocate(static_cast<std::uint64_t>(kind + 1));
        REQUIRE(grant.has_value() == (model.longest(false) >= static_cast<std::uint64_t>(kind + 1)));
        if (!grant) continue;
        REQUIRE(model.all_free(grant->extent));
        REQUIRE(grant->cold == model.cold_in(grant->extent));
        model.set(grant->extent, Page::kUsed);
        live.push_back(grant->extent);
      } else if (!live.empty()) {
        const Extent extent = kind == 5 ? live.back() : live.front();
        allocator.release(extent, kind != 3);
        model.set(extent, kind != 3 ? Page::kWarm : Page::kCold);
        live.erase(kind == 5 ? live.end() - 1 : live.begin());
      }
      check_equal(allocator, model);
    }
  }
}

TEST_CASE("the smallest free run that is long enough is taken") {
  ExtentAllocator allocator(100);
  const auto whole = allocator.allocate(100);
  REQUIRE(whole);
  allocator.release({10, 20}, true);
  allocator.release({50, 8}, true);
  allocator.release({70, 30}, true);
  REQUIRE(allocator.allocate(7)->extent == Extent{50, 7});
  REQUIRE(allocator.allocate(20)->extent == Extent{10, 20});
  REQUIRE_FALSE(allocator.allocate(31));
}

TEST_CASE("of a partly warm run the end with more warm pages is taken") {
  ExtentAllocator allocator(20);
  REQUIRE(allocator.allocate(20));
  allocator.release({0, 12}, false);
  allocator.release({12, 8}, true);
  const auto grant = allocator.allocate(10);
  REQUIRE(grant);
  REQUIRE(grant->extent == Extent{10, 10});
  REQUIRE(grant->cold == std::vector<Extent>{{10, 2}});
}

}  // namespace
}  // namespace callboard::kernels
