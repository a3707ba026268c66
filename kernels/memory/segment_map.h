// The reader's side: segments of other processes, each mapped once, privately, so that a write by this reader never
// reaches anybody else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "messages/base/fd.h"
#include "messages/base/ids.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// Fetches a segment's descriptor and size; the memory lane's OpenSegment. Blocks with a deadline; kTensorLost if the
/// segment is gone.
struct OpenedSegment {
  UniqueFd fd;
  std::uint64_t bytes = 0;
  /// It is a file of the disk, which nobody can seal: one that is cut short ends whoever reads it. Only for a process
  /// whose end is somebody's to bear.
  bool may_shrink = false;
};
using SegmentOpener = std::function<Result<OpenedSegment>(const ActorId& owner, SegmentId segment)>;

/// A readable block of another process. Ends (drops the pages this process wrote, then calls `on_release` with the
/// lease) when the last copy of the shared_ptr goes, on whatever thread; the release callback must not block.
class MappedBlock {
 public:
  virtual ~MappedBlock() = default;
  virtual std::byte* data() const = 0;  ///< private copy-on-write memory: writing is allowed and stays here
  virtual std::uint64_t bytes() const = 0;
};

/// Thread-safe. Mappings stay until drop_owner() and the end of their last block; of those without a block the 64 last
/// used are kept.
class SegmentMap {
 public:
  using ReleaseFn = std::function<void(const ActorId& owner, LeaseId lease)>;
  virtual ~SegmentMap() = default;
  static std::unique_ptr<SegmentMap> create(SegmentOpener opener, ReleaseFn on_release);

  /// Maps the segment if this is its first block here and checks that [offset, offset + bytes) lies inside its real
  /// size (kMalformed) before anything is touched. The lease is released also when opening fails.
  virtual Result<std::shared_ptr<MappedBlock>> open(const ArenaBlock& block) = 0;

  /// What a block that is open here names, seen from the address; nullopt if no block reaches there.
  struct Place {
    ActorId owner;
    SegmentId segment = 0;
    std::uint64_t offset = 0;  ///< of `pointer` in its segment
  };
  virtual std::optional<Place> find(const void* pointer) const = 0;

  /// Segments of `owner` that blocks still point into (answer to OwnerGone).
  virtual std::vector<SegmentId> held_segments(const ActorId& owner) const = 0;
  /// The owner is gone: unmaps what nobody points into; the rest goes with its last block.
  virtual void drop_owner(const ActorId& owner) = 0;
  virtual std::uint64_t mapped_bytes() const = 0;
};

}  // namespace callboard::kernels
