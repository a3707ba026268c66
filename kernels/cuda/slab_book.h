// Which slabs there are, which blocks and leases lie in them and what is free. Bookkeeping only, guarded by the pool's
// lock: no call of the runtime is made here. Private to kernels/cuda.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda/stream_marks.h"
#include "kernels/memory/extent_allocator.h"
#include "kernels/memory/lease_table.h"

namespace callboard::kernels::cuda {

// What cudaMalloc itself hands out at least, and what LibTorch's smallest segment is.
constexpr std::uint64_t kSlabUnit = 2u << 20;

struct ExportEvent {
  Event event = nullptr;
  IpcEventHandle handle;
};

struct SlabBlock {
  std::uint64_t units = 0;
  std::uint32_t leases = 0;  ///< being made ones too
  bool allocated = true;     ///< false: deallocated, and leases are left
  Stream stream = nullptr;   ///< of deallocate()
};

/// What one reader has of a slab.
struct SlabReading {
  LeaseId mapping = 0;       ///< lease on its mapping; 0: it has none
  std::uint32_t leases = 0;  ///< on blocks: as long as there are any, it may be about to open the slab
  bool keeps_open = false;   ///< it has said that it has the slab open, and not yet that it has closed it
};

struct Slab {
  Slab(SegmentId number, std::byte* start, std::uint64_t units, bool own)
      : id(number), base(start), dedicated(own), extents(units) {}
  std::uint64_t bytes() const { return extents.pages() * kSlabUnit; }
  bool holds(const std::byte* pointer) const { return pointer >= base && pointer < base + bytes(); }
  std::byte* at(std::uint64_t unit) const { return base + unit * kSlabUnit; }

  const SegmentId id;
  std::byte* const base;
  const bool dedicated;  ///< made for one block larger than an ordinary slab
  ExtentAllocator extents;
  std::map<std::uint64_t, SlabBlock> blocks;  ///< by first unit
  std::map<ActorId, SlabReading> readings;    ///< by reader; those who have nothing of it are not there
  IpcMemoryHandle handle;
  std::optional<Error> not_exportable;
};

/// A block that nobody owns any more, whose stream may still work on it.
struct Retired {
  Slab* slab = nullptr;  ///< stays: its units are not free
  Extent extent;
  Stream stream = nullptr;
  StreamMark done = {};  ///< behind that work
};

struct LeaseRecord {
  LeaseId lease = 0;
  Slab* slab = nullptr;
  std::optional<std::uint64_t> block;  ///< first unit; none: the lease is on a reader's mapping
  std::uint64_t bytes = 0;
  ActorId holder;
  ExportEvent event;
  std::shared_ptr<void> keep;
};

/// What the end of leases leaves to do without the lock.
struct Loose {
  std::vector<std::shared_ptr<void>> keeps;
  std::vector<Retired> retiring;  ///< without marks yet
};

/// Not thread-safe.
class SlabBook {
 public:
  // slabs
  void add(std::unique_ptr<Slab> slab);
  /// SP-3: those that are empty and that nobody has open, but for `spare_bytes` of them.
  std::vector<std::unique_ptr<Slab>> take_empty(std::uint64_t spare_bytes);

  // blocks
  struct Found {
    Slab* slab = nullptr;
    std::map<std::uint64_t, SlabBlock>::iterator block;
    std::uint64_t start() const { return block->first * kSlabUnit; }
    std::uint64_t bytes() const { return block->second.units * kSlabUnit; }
  };
  /// The live block around an address.
  std::optional<Found> find(const void* pointer) const;
  /// A block from what is free, best fit; nullptr if nothing is long enough.
  void* take_free(std::uint64_t units);
  /// A block from what `stream` itself let go: its order protects it. Marks that are not needed any more go to
  /// `unused`.
  void* take_retired(std::uint64_t units, Stream stream, std::vector<StreamMark>& unused);
  /// The owner lets the block go; what must be retired, unless leases are left.
  std::optional<Retired> end_block(const Found& found, Stream stream);
  void free(const Retired& block);

  // leases
  void begin_lease(const Found& found);  ///< keeps the block while the lease is being made
  void end_lease(Slab& slab, std::uint64_t block, Loose& loose);
  /// Numbers of the new lease and of the holder's lease on the slab's mapping. `record` is taken unless the holder is
  /// known to be gone: then nothing is kept and the mapping's number is 0.
  struct Granted {
    LeaseId lease = 0;
    LeaseId mapping = 0;
  };
  Granted grant(std::unique_ptr<LeaseRecord>& record);
  const LeaseRecord* block_lease(LeaseId lease) const;
  /// Events of ended leases go to `events`. False if there is no such lease. See kKeepsSlabOpen.
  bool release(LeaseId lease, Loose& loose, std::vector<ExportEvent>& events);
  std::size_t holder_gone(const ActorId& holder, Loose& loose, std::vector<ExportEvent>& events);
  std::vector<LeaseInfo> block_leases() const;

  std::vector<Retired> retired;
  std::vector<std::unique_ptr<Slab>> slabs;  ///< by address
  std::unordered_map<LeaseId, std::unique_ptr<LeaseRecord>> records;
  SlabPoolStats stats;  ///< all but `slabs` and `events`

 private:
  void* add_block(Slab& slab, Extent extent);
  void end_record(LeaseRecord& record, Loose& loose, std::vector<ExportEvent>& events);
  void end_mapping(Slab& slab, const ActorId& reader);

  LeaseTable leases_;
};

}  // namespace callboard::kernels::cuda
