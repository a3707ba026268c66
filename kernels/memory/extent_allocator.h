// Which pages of one segment are free, and which of the free ones are warm (present, so that writing them costs no
// page fault). Bookkeeping only: no memory is touched, no system call is made.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace callboard::kernels {

/// A run of pages.
struct Extent {
  std::uint64_t first = 0;
  std::uint64_t pages = 0;

  std::uint64_t end() const { return first + pages; }
  bool operator==(const Extent&) const = default;
};

/// Disjoint runs of pages; neighbours are one run. Finding, adding and removing take O(log n).
class ExtentSet {
 public:
  /// `extent` must not overlap what is in the set.
  void add(Extent extent);
  /// `extent` must lie inside one run of the set.
  void remove(Extent extent);
  /// The smallest run of at least so many pages; the lowest of equal ones.
  std::optional<Extent> smallest_holding(std::uint64_t pages) const;
  /// What of the set lies inside `range`, in order.
  std::vector<Extent> parts_in(Extent range) const;
  bool overlaps(Extent range) const;
  /// Pages of the longest run; 0 if empty.
  std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  std::uint64_t pages() const { return pages_; }

 private:
  void insert_run(Extent extent);
  void erase_run(std::map<std::uint64_t, std::uint64_t>::iterator run);

  std::map<std::uint64_t, std::uint64_t> by_first_;            // first page → pages
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // (pages, first page)
  std::uint64_t pages_ = 0;
};

/// Best fit over the pages of one segment, warm pages first. Not thread-safe: the arena's lock guards it.
class ExtentAllocator {
 public:
  /// All pages free and cold.
  explicit ExtentAllocator(std::uint64_t pages);

  struct Grant {
    Extent extent;
    std::vector<Extent> cold;  ///< the parts of `extent` that must be populated; empty for a recycled block
  };
  /// Takes the smallest warm run that is long enough, else the smallest free run, at whichever of its ends more pages
  /// are warm. nullopt if no run is long enough.
  std::optional<Grant> allocate(std::uint64_t pages);
  /// Gives pages back. Ends the process if some of them are free already.
  void release(Extent extent, bool warm);
  /// Takes warm free runs, longest first, until `pages` pages are taken or none is warm. The caller punches them and
  /// releases them as cold.
  std::vector<Extent> take_warm(std::uint64_t pages);

  std::uint64_t largest_free() const { return free_.largest(); }
  std::uint64_t largest_warm() const { return warm_.largest(); }
  std::uint64_t free_pages() const { return free_.pages(); }
  std::uint64_t warm_pages() const { return warm_.pages(); }  ///< free and warm
  std::uint64_t pages() const { return pages_; }
  bool empty() const { return free_.pages() == pages_; }
  /// Pages of the run that allocate(pages) would take from, 0 if none; `warm_only`: only of warm runs.
  std::uint64_t fit(std::uint64_t pages, bool warm_only) const;

 private:
  std::uint64_t pages_;
  ExtentSet free_;
  ExtentSet warm_;  // a part of free_
};

}  // namespace callboard::kernels
