// A client's shared memory: the lane to the node actor, the arena of its inputs, the mappings of its results.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "messages/tensor_ref.h"
#include "actors/core/memory_lane.h"
#include "kernels/cuda/gpu_results.h"
#include "kernels/memory/arena.h"
#include "actors/client/admission.h"
#include "messages/base/fd.h"
#include "messages/tensor_handle.h"

namespace callboard::actors {

/// Thread-safe. What it gave out may outlive it: blocks of the arena stay, and a mapped result keeps its lease (and the
/// lane) until it goes itself.
class ClientMemory {
 public:
  struct Options {
    std::string socket;
    ActorId self;
    std::uint64_t memory_limit = 0;
    std::shared_ptr<Admission> line = {};  ///< who waits for memory; told when a block goes
    /// Opens results that lie on GPUs; nullptr: they are refused.
    const kernels::cuda::ClientPlugin* gpus = nullptr;
  };
  static Result<std::unique_ptr<ClientMemory>> connect(Options options);
  ~ClientMemory();

  /// A block of at least `bytes` bytes in the arena, freed with its last owner. The first call creates the arena.
  Result<std::shared_ptr<void>> allocate(std::size_t bytes);
  /// Of the arena; 0: what the machine has left.
  std::uint64_t memory_limit() const { return options_.memory_limit; }
  /// The part of its block that starts at `data`, without a lease. nullopt if it does not lie in the arena.
  std::optional<ArenaBlock> find(const void* data) const;

  /// A result as memory of this process, or of a GPU. Its lease ends with the last `keep`, or at once if this fails.
  /// May ask the node actor (the first time for each segment), or the driver (for each slab).
  Result<TensorRef> open(TensorHandle handle);
  /// Ends the lease of a result that nobody reads.
  void release(const WireValue& value);

  /// Gives pages back that a peak left behind; for quiet times.
  void trim();

  MemoryLane& lane();
  /// Readable (and never drained) once the node actor is gone.
  int node_gone_fd() const;

 private:
  struct Mappings;
  ClientMemory(Options options, std::shared_ptr<Mappings> mappings);
  Result<std::shared_ptr<kernels::Arena>> arena();
  Result<TensorRef> open_on_gpu(const TensorHandle& handle, const CudaIpcBlock& block);

  const Options options_;
  const std::shared_ptr<Mappings> mappings_;
  mutable std::mutex creation_;
  std::shared_ptr<kernels::Arena> owned_;        // guarded by creation_; set once. Each block that is out owns it, too
  std::atomic<kernels::Arena*> arena_{nullptr};  // the same, for a look without the lock
};

/// Memory of a client's own for a small result: aligned to 64 bytes, as ATen likes it.
TensorRef own_copy(TensorMeta meta, std::string_view bytes);

}  // namespace callboard::actors
