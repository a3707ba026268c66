// Constants as this device's kernels see them: segments that the node actor holds, mapped privately, each once.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "actors/core/memory_lane.h"
#include "kernels/runtime.h"

namespace callboard::actors {

/// Thread-safe. Outlives every ConstantStorage it gave only through the lane: keep the lane until the runtime is gone.
class ConstantStore {
 public:
  explicit ConstantStore(MemoryLane& lane) : lane_(lane) {}

  /// The storage with this content. Its `keep` unmaps the segment with the last constant in it and tells the node actor
  /// that this process no longer uses the hash. kConstantMissing; kMalformed if the node actor's answer does not fit.
  Result<kernels::ConstantStorage> open(const ContentHash& hash, std::uint64_t bytes);

 private:
  struct Mapping;
  Result<std::shared_ptr<Mapping>> map_segment(SegmentId segment, std::uint64_t segment_bytes, UniqueFd fd);

  MemoryLane& lane_;
  std::mutex mutex_;
  std::map<SegmentId, std::weak_ptr<Mapping>> mappings_;  // guarded by mutex_
};

}  // namespace callboard::actors
