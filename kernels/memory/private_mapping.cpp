#include "kernels/memory/private_mapping.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/memory/memory_budget.h"
#include "messages/base/check.h"
#include "messages/base/fd.h"

namespace callboard::kernels {

namespace {

// linux/fs.h of Linux 6.7; declared here since distributions ship older headers than kernels.
struct PageRegion {
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t categories;
};
struct PagemapScan {
  std::uint64_t size;
  std::uint64_t flags;
  std::uint64_t start;
  std::uint64_t end;
  std::uint64_t walk_end;
  std::uint64_t regions;
  std::uint64_t region_count;
  std::uint64_t max_pages;
  std::uint64_t category_inverted;
  std::uint64_t category_mask;
  std::uint64_t category_anyof_mask;
  std::uint64_t return_mask;
};
static_assert(sizeof(PageRegion) == 24 && sizeof(PagemapScan) == 96, "the kernel's layout");
constexpr std::uint64_t kPageIsFile = 1u << 2;
constexpr std::uint64_t kPageIsPresent = 1u << 3;
constexpr std::uint64_t kPageIsSwapped = 1u << 4;
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PagemapScan);

/// Calls visit(start, bytes) for each run of pages in memory or swap that are not the file's own, i.e. copies made by a
/// write of this process; visit returns false to stop. False if the kernel cannot tell.
template <class Visit>
bool scan_written(std::byte* start, std::uint64_t bytes, Visit visit) {
  // Opened each time: a descriptor kept over a fork would show the parent's pages.
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return false;
  std::array<PageRegion, 128> regions;
  PagemapScan scan{};
  scan.size = sizeof scan;
  scan.start = reinterpret_cast<std::uintptr_t>(start);
  scan.end = scan.start + bytes;
  scan.regions = reinterpret_cast<std::uintptr_t>(regions.data());
  scan.region_count = regions.size();
  scan.category_inverted = kPageIsFile;
  scan.category_mask = kPageIsFile;
  scan.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
  scan.return_mask = kPageIsPresent | kPageIsSwapped;
  while (scan.start < scan.end) {
    const int found = ::ioctl(pagemap.get(), kPagemapScan, &scan);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) return false;
    for (int i = 0; i < found; ++i) {
      const PageRegion& region = regions[static_cast<std::size_t>(i)];
      if (!visit(reinterpret_cast<std::byte*>(region.start), region.end - region.start)) return true;
    }
    if (scan.walk_end <= scan.start) return false;
    scan.start = scan.walk_end;
  }
  return true;
}

void forget(std::byte* start, std::uint64_t bytes) {
  // Failing would leave stale bytes where a later block is read: a wrong result, so not an error to go on from.
  CALLBOARD_CHECK(::madvise(start, bytes, MADV_DONTNEED) == 0, "pages of a private mapping can be dropped");
}

}  // namespace

PrivateMapping::Writable PrivateMapping::writable_here() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  return file >> mode && mode == 2 ? Writable::kByRange : Writable::kWhole;
}

Result<PrivateMapping> PrivateMapping::map(int fd, std::uint64_t offset, std::uint64_t bytes, Writable writable) {
  const int protection = writable == Writable::kWhole ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kResourceExhausted,
                "cannot map " + format_bytes(bytes) + " of another process's memory: " + std::strerror(errno),
                "raise vm.max_map_count, or the limits of address space and data (ulimit -v, ulimit -d)");
  }
  ::madvise(data, bytes, MADV_DONTDUMP);
  PrivateMapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  mapping.writable_ = writable;
  return mapping;
}

PrivateMapping::PrivateMapping(PrivateMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), writable_(other.writable_) {}

PrivateMapping& PrivateMapping::operator=(PrivateMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(writable_, other.writable_);
  return *this;
}

PrivateMapping::~PrivateMapping() {
  if (data_) ::munmap(data_, bytes_);
}

Status PrivateMapping::begin_range(std::uint64_t offset, std::uint64_t bytes) const {
  if (writable_ == Writable::kWhole) return {};
  if (::mprotect(data_ + offset, bytes, PROT_READ | PROT_WRITE) == 0) return {};
  return fail(ErrorCode::kResourceExhausted,
              "cannot make " + format_bytes(bytes) + " of a result writable: " + std::strerror(errno),
              "vm.overcommit_memory is 2 here: raise vm.overcommit_ratio, or hold fewer results at once");
}

std::optional<bool> PrivateMapping::written(std::uint64_t offset, std::uint64_t bytes) const {
  bool any = false;
  const bool told = scan_written(data_ + offset, bytes, [&any](std::byte*, std::uint64_t) {
    any = true;
    return false;
  });
  return told ? std::optional(any) : std::nullopt;
}

void PrivateMapping::drop_written(std::uint64_t offset, std::uint64_t bytes) const {
  const bool told = scan_written(data_ + offset, bytes, [](std::byte* start, std::uint64_t length) {
    forget(start, length);
    return true;
  });
  if (!told) forget(data_ + offset, bytes);
  if (writable_ == Writable::kByRange) ::mprotect(data_ + offset, bytes, PROT_READ);
}

void PrivateMapping::drop_all(std::uint64_t offset, std::uint64_t bytes) const {
  forget(data_ + offset, bytes);
  if (writable_ == Writable::kByRange) ::mprotect(data_ + offset, bytes, PROT_READ);
}

}  // namespace callboard::kernels
