// The reader's side: slabs of other processes, each opened once, and blocks in them to read.
//
// Invariants (tests carry the numbers):
//   SR-1  What `stream` does after open() is ordered behind the writer: the wait is queued with every open, not only
//         with the first one of a slab.
//   SR-2  A lease is released only after everything that the block's streams had queued when its last reference went
//         is done.
//   SR-3  A slab is closed only with no block of it left, and closed before the lease on its mapping, or, where that
//         lease may have ended, before the last lease on one of its blocks, is released.
//   SR-4  Each lease that open() was given is released exactly once, also when opening fails; but none after a sticky
//         error (the end of this process ends them), and none to an owner that has gone.
//   SR-5  A block of an owner that has gone is lost: open() and check() give kTensorLost.
//   SR-6  No lock is held across opening, closing or the release callback.
//
// The lease on a mapping: a slab may be freed only when nobody has it open, yet opening costs too much to do it for
// each result. So the exporter grants each reader one more lease for each slab (CudaIpcBlock::mapping, the same in
// every handle of that slab) and this side releases it when it closes the slab. A handle may be on its way while its
// mapping's lease is being released; `mapping` at or below the highest one released to that owner is therefore not
// trusted, and the slab is closed with its last block. Of a slab that was never opened there is nothing to close: so
// each block's lease is given back with the word whether the slab stays open (kKeepsSlabOpen), and where it does not
// the exporter ends the mapping's lease with the last block's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda/slab_pool.h"
#include "messages/base/clock.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda {

struct SlabReaderOptions {
  ActorId self = {};
  /// Ordinal of the device whose streams read. None: the exporter's own, which must be visible then (clients).
  std::optional<int> device = std::nullopt;
  std::size_t idle_slabs_max = 16;                    ///< open without a block in use
  Duration idle_slab_time = std::chrono::seconds(5);  ///< then they are closed by poll()
  std::size_t events_max = 4'096;                     ///< opened events kept; the longest unused are closed
  /// SlabPool::own_block, for handles of `self`.
  std::function<Result<OwnBlock>(const CudaIpcBlock&)> own_block = {};
};

/// Device memory of another process (or our own) to read. Never written: a writer would write the exporter's memory.
/// When the last reference goes, on whatever thread, an event is recorded on every stream that used it; the lease ends
/// when those are done (SlabReader::poll).
class ReadableBlock {
 public:
  virtual ~ReadableBlock() = default;
  virtual const void* data() const = 0;
  virtual std::uint64_t bytes() const = 0;
  virtual int device() const = 0;        ///< ordinal in this process that the address was opened for
  virtual bool own() const = 0;          ///< not opened: memory of this process
  virtual bool same_device() const = 0;  ///< it lies on device(); else every read crosses to another one
  /// Another stream reads it too: orders it behind the writer and the end of the lease behind it. kDeviceFailed,
  /// kTensorLost.
  virtual Status used_on(Stream stream) = 0;
  /// After the last read has been *done*, before anything made of it is shown: kTensorLost if the owner went meanwhile,
  /// kDeviceFailed.
  virtual Status check() const = 0;
};

struct SlabReaderStats {
  std::uint64_t open_slabs = 0;
  std::uint64_t open_bytes = 0;
  std::uint64_t blocks = 0;     ///< held by somebody
  std::uint64_t releasing = 0;  ///< let go, reads not done yet
  std::uint64_t opened_events = 0;
};

/// Thread-safe; every method from any thread, and none changes the thread's current device.
class SlabReader {
 public:
  /// Takes `lease` to its owner's SlabPool::release() as it is, in the order of the calls. Must not block.
  using ReleaseFn = std::function<void(const ActorId& owner, LeaseId lease)>;
  /// Blocks may outlive it, and `release` must then too: with the last of them what is left is waited for, released and
  /// closed.
  virtual ~SlabReader() = default;
  /// kEnvironment. `release` is called on whatever thread calls in.
  static Result<std::unique_ptr<SlabReader>> create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                    SlabReaderOptions options, ReleaseFn release);

  /// Opens the slab if it is not, and queues the wait for the writer on `stream`. kTensorLost (owner gone, handle
  /// stale), kMalformed (range outside the slab), kUnsupported (device not visible, no peer access: take host copies),
  /// kOutOfMemory, kDeviceFailed.
  virtual Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& block, Stream stream) = 0;
  /// The same for whoever does not know yet which stream will read: each is told by used_on() before it does.
  virtual Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& block) = 0;

  /// Ordinal in this process of a device; nothing if it is not visible here.
  virtual std::optional<int> visible(const DeviceUuid& uuid) const = 0;

  /// Releases the leases whose reads are done, closes slabs that nobody used for a while. Called by the owner's loop
  /// while pending(). kDeviceFailed.
  virtual Status poll(TimePoint now) = 0;
  /// Is there anything for poll() to do, now or later?
  virtual bool pending() const = 0;
  /// The exporter is gone: its blocks are lost, its slabs are closed as their blocks go.
  virtual void owner_gone(const ActorId& owner) = 0;
  virtual SlabReaderStats stats() const = 0;
};

}  // namespace callboard::kernels::cuda
