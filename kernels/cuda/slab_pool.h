// The exporter's side: device memory that other processes can open. Slabs from cudaMalloc, blocks in them, leases on
// the blocks, and an interprocess event for every lease that orders the reader behind the writer. No LibTorch here: its
// caching allocator asks allocate() for segments through a MemPool.
//
// Invariants (tests carry the numbers):
//   SP-1  A block's memory is not given out again while a lease on it exists, or before the work that its stream had
//         queued when it was deallocated is done (on the same stream: at once, the stream's order is enough).
//   SP-2  deallocate() and the end of the last lease together, in either order, give a block back exactly once.
//   SP-3  A slab is freed only with no block, no lease and no reader's mapping of it left. A reader may have a mapping
//         from its first lease on a block of the slab until its last one has ended, or, where it has said that it keeps
//         the slab open (kKeepsSlabOpen), until it gives the mapping's lease back.
//   SP-4  An event is recorded again only after the lease that it was handed out with has ended.
//   SP-5  Growth is checked against the limit first; where the device refuses, empty slabs are given back once and it
//   is
//         asked once more; the refusal names the sizes and leaves everything as it was.
//   SP-6  After a sticky error every call fails with that error; nothing is handed out, reused or freed any more.
//   SP-7  No lock is held across a call of the runtime that can wait for the device, nor while a `keep` is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/device_segments.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/memory/arena.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda {

/// Set in the number by which a reader gives a block's lease back: it has the slab open and keeps it so, until it gives
/// the lease on its mapping back, too. Whoever gives the lease of a block back that was never opened does not know the
/// bit, and so the exporter knows that nothing of it is open. Numbers count from 1 and never come to it.
constexpr LeaseId kKeepsSlabOpen = LeaseId{1} << 61;

struct SlabPoolOptions {
  ActorId owner = {};                      ///< goes into every handle
  int device = 0;                          ///< ordinal in this process
  std::uint64_t memory_limit = 0;          ///< bytes of all slabs together; 0: what the device has left
  std::uint64_t device_reserve = 0;        ///< of the device's free memory, never taken
  std::uint64_t slab_bytes = 256u << 20;   ///< of an ordinary slab; a larger block gets one of its own
  std::uint64_t spare_bytes = 256u << 20;  ///< of empty slabs, kept by trim()
  std::size_t leases_max = 16'384;         ///< each holds one interprocess event; more is kOverloaded
};

struct SlabPoolStats {
  std::uint64_t reserved_bytes = 0;  ///< sizes of all slabs
  std::uint64_t in_use_bytes = 0;    ///< allocated, leased or waiting for a stream
  std::uint64_t leased_bytes = 0;    ///< of all leases together
  std::uint64_t peak_bytes = 0;      ///< highest in_use_bytes
  std::uint64_t leases = 0;          ///< on blocks
  std::uint64_t mappings = 0;        ///< slabs that readers may have open, counted for each reader
  std::uint64_t slabs = 0;
  std::uint64_t events = 0;  ///< interprocess events made, in use or pooled
};

/// A block that this process itself exported: CUDA forbids opening its handles here.
struct OwnBlock {
  void* address = nullptr;
  Event written = nullptr;  ///< to wait for in place of the opened one; the lease keeps it
};

/// Thread-safe; every method from any thread, and none changes the thread's current device. The runtime and the streams
/// given must outlive the pool.
class SlabPool : public DeviceSegments {
 public:
  /// Frees all slabs: for a process that ends its readers first, or for tests. A device actor never ends it. Where the
  /// device has failed nothing is freed (the end of the process does).
  ~SlabPool() override = default;
  /// kEnvironment (no such device), kDeviceFailed. A device that cannot hand memory out (no interprocess events, a
  /// driver without IPC) still allocates; lease() then says why it does not.
  static Result<std::shared_ptr<SlabPool>> create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                  SlabPoolOptions options);

  /// A block of whole 2 MiB units, for work on `stream`; contents unspecified. What LibTorch's MemPool calls for each
  /// segment. kOutOfMemory with requested size, limit and use; kDeviceFailed. nullptr for 0 bytes.
  Result<void*> allocate(std::size_t bytes, Stream stream) override = 0;
  /// Work that `stream` has queued on the block may still run. Accepts nullptr; otherwise what allocate() gave. Other
  /// streams that used the block are the caller's to wait for (LibTorch's allocator does that).
  void deallocate(void* pointer, Stream stream) noexcept override = 0;

  /// Where the address lies, if in a live block of this pool.
  struct Location {
    SegmentId slab = 0;
    std::uint64_t offset = 0;        ///< of the address in its slab
    std::uint64_t block_offset = 0;  ///< of the block's start in its slab
    std::uint64_t block_bytes = 0;
    void* block = nullptr;
  };
  virtual std::optional<Location> find(const void* pointer) const = 0;

  /// A lease for `holder` on `bytes` bytes from `pointer`, as handle: readers are ordered behind what `producer` has
  /// queued by now. `keep` is held until the lease ends and then dropped without a lock, on the thread that ended it
  /// (the tensor's storage, so that LibTorch does not use the memory again). A holder that is known to be gone gets a
  /// handle whose lease has ended already. kBadArgument if the range is not in one live block, kOverloaded
  /// (leases_max), kUnsupported (this memory cannot be handed out: take a host copy), kOutOfMemory, kDeviceFailed.
  virtual Result<CudaIpcBlock> lease(const void* pointer, std::uint64_t bytes, const ActorId& holder, Stream producer,
                                     std::shared_ptr<void> keep) = 0;
  /// Ends a lease on a block (with or without kKeepsSlabOpen), or on a reader's mapping. Whoever releases has finished
  /// reading: its events are done. False if there is none of that number: nothing happens.
  virtual bool release(LeaseId lease) noexcept = 0;
  /// Ends all leases of a holder whose process is gone; the number ended.
  virtual std::size_t holder_gone(const ActorId& holder) noexcept = 0;

  /// For handles of our own. kTensorLost if the lease is not one that exists; kMalformed if the range is not in its
  /// slab.
  virtual Result<OwnBlock> own_block(const CudaIpcBlock& block) const = 0;

  /// Takes back blocks whose streams are done and frees empty slabs beyond `spare_bytes`. Called by the owner's loop
  /// when idle. kDeviceFailed.
  virtual Status trim() = 0;
  /// Frees every empty slab (LibTorch asks after an emptyCache; a request ran out of memory elsewhere).
  Status release_cached() override = 0;
  virtual SlabPoolStats stats() const = 0;
  virtual std::vector<LeaseInfo> leases() const = 0;  ///< on blocks
  virtual const DeviceUuid& device_uuid() const = 0;
  virtual int device() const = 0;
};

}  // namespace callboard::kernels::cuda
