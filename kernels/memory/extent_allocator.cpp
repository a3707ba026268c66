#include "kernels/memory/extent_allocator.h"

#include <algorithm>
#include <iterator>

#include "messages/base/check.h"

namespace callboard::kernels {

// -- ExtentSet -------------------------------------------------------------------------------------------------------

void ExtentSet::insert_run(Extent extent) {
  by_first_.emplace(extent.first, extent.pages);
  by_size_.emplace(extent.pages, extent.first);
  pages_ += extent.pages;
}

void ExtentSet::erase_run(std::map<std::uint64_t, std::uint64_t>::iterator run) {
  by_size_.erase({run->second, run->first});
  pages_ -= run->second;
  by_first_.erase(run);
}

void ExtentSet::add(Extent extent) {
  if (extent.pages == 0) return;
  CALLBOARD_CHECK(!overlaps(extent), "pages are given back once");
  auto next = by_first_.lower_bound(extent.first);
  if (next != by_first_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == extent.first) {
      extent = {before->first, before->second + extent.pages};
      erase_run(before);
    }
  }
  if (next != by_first_.end() && next->first == extent.end()) {
    extent.pages += next->second;
    erase_run(next);
  }
  insert_run(extent);
}

void ExtentSet::remove(Extent extent) {
  if (extent.pages == 0) return;
  auto run = by_first_.upper_bound(extent.first);
  CALLBOARD_CHECK(run != by_first_.begin(), "only pages of the set are taken from it");
  --run;
  const Extent whole{run->first, run->second};
  CALLBOARD_CHECK(extent.end() <= whole.end(), "only pages of one run are taken at once");
  erase_run(run);
  if (whole.first < extent.first) insert_run({whole.first, extent.first - whole.first});
  if (extent.end() < whole.end()) insert_run({extent.end(), whole.end() - extent.end()});
}

std::optional<Extent> ExtentSet::smallest_holding(std::uint64_t pages) const {
  const auto found = by_size_.lower_bound({pages, 0});
  if (found == by_size_.end()) return std::nullopt;
  return Extent{found->second, found->first};
}

std::vector<Extent> ExtentSet::parts_in(Extent range) const {
  std::vector<Extent> parts;
  auto run = by_first_.upper_bound(range.first);
  if (run != by_first_.begin()) --run;
  for (; run != by_first_.end() && run->first < range.end(); ++run) {
    const std::uint64_t first = std::max(run->first, range.first);
    const std::uint64_t end = std::min(run->first + run->second, range.end());
    if (first < end) parts.push_back({first, end - first});
  }
  return parts;
}

bool ExtentSet::overlaps(Extent range) const {
  auto run = by_first_.lower_bound(range.first);
  if (run != by_first_.end() && run->first < range.end()) return true;
  if (run == by_first_.begin()) return false;
  --run;
  return run->first + run->second > range.first;
}

// -- ExtentAllocator -------------------------------------------------------------------------------------------------

namespace {

std::uint64_t pages_of(const std::vector<Extent>& parts) {
  std::uint64_t pages = 0;
  for (const Extent& part : parts) pages += part.pages;
  return pages;
}

}  // namespace

ExtentAllocator::ExtentAllocator(std::uint64_t pages) : pages_(pages) { free_.add({0, pages}); }

std::uint64_t ExtentAllocator::fit(std::uint64_t pages, bool warm_only) const {
  const std::optional<Extent> run = (warm_only ? warm_ : free_).smallest_holding(pages);
  return run ? run->pages : 0;
}

std::optional<ExtentAllocator::Grant> ExtentAllocator::allocate(std::uint64_t pages) {
  CALLBOARD_CHECK(pages > 0, "a block has at least one page");
  if (const std::optional<Extent> run = warm_.smallest_holding(pages)) {
    const Extent taken{run->first, pages};
    warm_.remove(taken);
    free_.remove(taken);
    return Grant{taken, {}};
  }
  const std::optional<Extent> run = free_.smallest_holding(pages);
  if (!run) return std::nullopt;
  Extent taken{run->first, pages};
  std::vector<Extent> warm = warm_.parts_in(taken);
  const Extent upper{run->end() - pages, pages};
  if (std::vector<Extent> upper_warm = warm_.parts_in(upper); pages_of(upper_warm) > pages_of(warm)) {
    taken = upper;
    warm = std::move(upper_warm);
  }
  Grant grant{taken, {}};
  std::uint64_t next = taken.first;
  for (const Extent& part : warm) {
    if (next < part.first) grant.cold.push_back({next, part.first - next});
    next = part.end();
    warm_.remove(part);
  }
  if (next < taken.end()) grant.cold.push_back({next, taken.end() - next});
  free_.remove(taken);
  return grant;
}

void ExtentAllocator::release(Extent extent, bool warm) {
  CALLBOARD_CHECK(extent.end() <= pages_, "pages lie inside their segment");
  free_.add(extent);
  if (warm) warm_.add(extent);
}

std::vector<Extent> ExtentAllocator::take_warm(std::uint64_t pages) {
  std::vector<Extent> taken;
  while (pages > 0 && warm_.pages() > 0) {
    const Extent run = *warm_.smallest_holding(warm_.largest());
    const std::uint64_t count = std::min(run.pages, pages);
    // From the run's end: what stays is adjacent to lower pages, where blocks are placed first.
    const Extent part{run.end() - count, count};
    warm_.remove(part);
    free_.remove(part);
    taken.push_back(part);
    pages -= count;
  }
  return taken;
}

}  // namespace callboard::kernels
