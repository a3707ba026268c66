// Constants as this device's kernels see them: segments and files that the node actor holds, mapped privately, each
// once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "actors/core/memory_lane.h"
#include "kernels/memory/segment_map.h"
#include "kernels/runtime.h"

namespace callboard::actors {

/// Thread-safe. Outlives every ConstantStorage it gave only through the lane: keep the lane until the runtime is gone.
class ConstantStore {
 public:
  explicit ConstantStore(MemoryLane& lane) : lane_(lane) {}

  /// The storage with this content. Its `keep` unmaps what it lies in with the last constant there and tells the node
  /// actor that this process no longer uses the hash. kConstantMissing; kFileChanged; kMalformed if the node actor's
  /// answer does not fit.
  Result<kernels::ConstantStorage> open(const ContentHash& hash, std::uint64_t bytes);

  /// Where this address lies, if it is a constant's; for helper processes, which map the same.
  std::optional<kernels::MemoryPlace> find(const void* pointer) const;
  /// kTensorLost if no constant of it is left.
  Result<kernels::OpenedSegment> descriptor(SegmentId segment) const;

 private:
  struct Mapping;
  /// What holds the constant, mapped.
  struct Place {
    std::byte* data = nullptr;
    std::shared_ptr<void> mapping;
    std::shared_ptr<kernels::MappedFile> file;
  };
  Result<Place> place(MemoryLane::OpenedConstant opened);
  Result<std::shared_ptr<Mapping>> map_segment(SegmentId segment, std::uint64_t segment_bytes, UniqueFd fd);
  Result<std::shared_ptr<kernels::MappedFile>> map_file(SegmentId segment, UniqueFd fd, ConstantFile file);

  MemoryLane& lane_;
  mutable std::mutex mutex_;
  std::map<SegmentId, std::weak_ptr<Mapping>> mappings_;           // guarded by mutex_, like files_
  std::map<SegmentId, std::weak_ptr<kernels::MappedFile>> files_;  // numbers are never used again
};

}  // namespace callboard::actors
