#include "actors/device/constant_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

namespace callboard::actors {

struct ConstantStore::Mapping {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  UniqueFd fd;  // kept for helper processes
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) ::munmap(data, bytes);
  }
};

namespace {

template <class Place>
std::pair<const std::byte*, std::uint64_t> extent_of(const Place& place) {
  if constexpr (std::is_same_v<Place, kernels::MappedFile>) {
    return {place.data(), place.bytes()};
  } else {
    return {place.data, place.bytes};
  }
}

}  // namespace

Result<std::shared_ptr<ConstantStore::Mapping>> ConstantStore::map_segment(SegmentId segment,
                                                                           std::uint64_t segment_bytes, UniqueFd fd) {
  std::lock_guard lock(mutex_);
  if (auto known = mappings_[segment].lock()) return known;
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) < segment_bytes || segment_bytes == 0) {
    return fail(ErrorCode::kMalformed, "the segment of constants " + std::to_string(segment) + " is shorter than " +
                                           std::to_string(segment_bytes) + " bytes");
  }
  // Private and writable, so that a kernel that writes where it should not changes this process's view only.
  void* data = ::mmap(nullptr, segment_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kResourceExhausted,
                "cannot map " + std::to_string(segment_bytes) + " bytes of constants: " + std::strerror(errno));
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->data = static_cast<std::byte*>(data);
  mapping->bytes = segment_bytes;
  mapping->fd = std::move(fd);
  mappings_[segment] = mapping;
  return mapping;
}

Result<std::shared_ptr<kernels::MappedFile>> ConstantStore::map_file(SegmentId segment, UniqueFd fd,
                                                                     ConstantFile file) {
  std::lock_guard lock(mutex_);
  if (auto known = files_[segment].lock()) return known;
  CALLBOARD_ASSIGN(auto mapped, kernels::MappedFile::map(std::move(fd), std::move(file)));
  files_[segment] = mapped;
  return mapped;
}

Result<ConstantStore::Place> ConstantStore::place(MemoryLane::OpenedConstant opened) {
  if (!opened.file) {
    CALLBOARD_ASSIGN(const auto mapping, map_segment(opened.segment, opened.segment_bytes, std::move(opened.fd)));
    return Place{mapping->data + opened.span.offset, mapping, nullptr};
  }
  CALLBOARD_ASSIGN(const auto file, map_file(opened.segment, std::move(opened.fd), std::move(*opened.file)));
  CALLBOARD_TRY(file->add(opened.span));
  return Place{file->data() + opened.span.offset, file, file};
}

Result<kernels::ConstantStorage> ConstantStore::open(const ContentHash& hash, std::uint64_t bytes) {
  CALLBOARD_ASSIGN(MemoryLane::OpenedConstant opened, lane_.open_constant(hash));
  const ConstantSpan& span = opened.span;
  if (span.bytes != bytes || span.offset > opened.segment_bytes || bytes > opened.segment_bytes - span.offset) {
    lane_.release_constants({hash});
    return fail(ErrorCode::kMalformed, "constant " + hash.hex().substr(0, 12) + " has " + std::to_string(span.bytes) +
                                           " bytes at " + std::to_string(span.offset) + " of a segment of " +
                                           std::to_string(opened.segment_bytes) + "; " + std::to_string(bytes) +
                                           " bytes were expected");
  }
  auto placed = place(std::move(opened));
  if (!placed) {
    lane_.release_constants({hash});
    return fail(std::move(placed).error());
  }
  struct Use {
    MemoryLane& lane;
    ContentHash hash;
    std::shared_ptr<void> mapping;
    Use(MemoryLane& l, ContentHash h, std::shared_ptr<void> m) : lane(l), hash(std::move(h)), mapping(std::move(m)) {}
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { lane.release_constants({hash}); }
  };
  kernels::ConstantStorage storage;
  storage.data = placed->data;
  storage.bytes = bytes;
  storage.file = std::move(placed->file);
  storage.keep = std::make_shared<Use>(lane_, hash, std::move(placed->mapping));
  return storage;
}

std::optional<kernels::MemoryPlace> ConstantStore::find(const void* pointer) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  std::lock_guard lock(mutex_);
  const auto in = [at](const auto& places) -> std::optional<kernels::MemoryPlace> {
    for (const auto& [segment, place] : places) {
      const auto mapping = place.lock();
      if (!mapping) continue;
      const auto [start, bytes] = extent_of(*mapping);
      if (at < start || at >= start + bytes) continue;
      return kernels::MemoryPlace{segment, static_cast<std::uint64_t>(at - start)};
    }
    return std::nullopt;
  };
  const auto found = in(mappings_);
  return found ? found : in(files_);
}

Result<kernels::OpenedSegment> ConstantStore::descriptor(SegmentId segment) const {
  std::lock_guard lock(mutex_);
  const auto copy = [segment](int fd, std::uint64_t bytes, bool may_shrink) -> Result<kernels::OpenedSegment> {
    kernels::OpenedSegment opened{UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), bytes, may_shrink};
    if (opened.fd) return opened;
    return fail(ErrorCode::kResourceExhausted,
                "cannot copy the descriptor of constants " + std::to_string(segment) + ": " + std::strerror(errno),
                "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)");
  };
  if (const auto known = mappings_.find(segment); known != mappings_.end()) {
    if (const auto mapping = known->second.lock()) return copy(mapping->fd.get(), mapping->bytes, false);
  }
  if (const auto known = files_.find(segment); known != files_.end()) {
    if (const auto file = known->second.lock()) return copy(file->fd(), file->bytes(), true);
  }
  return fail(ErrorCode::kTensorLost, "the constants " + std::to_string(segment) + " are no longer mapped here");
}

}  // namespace callboard::actors
