// What one process of a GIL domain (a helper) has of a device's memory, seen by the device: arguments that it reads,
// segments that it was granted to allocate in, its results in those, and the order of what the two do. The helper's end
// is helper_guest.h. Both speak in turns: the device sends a call, the helper may ask for segments, then it answers.
//
// Invariants (tests carry the numbers):
//   HR-1  A granted segment goes back to the pool exactly once: when its last result has gone and the helper has given
//         it up or has ended.
//   HR-2  A result lies in a segment that its helper was granted and has not given up, and overlaps no other result of
//         it that is still here: else it is refused and nothing changes.
//   HR-3  What the helper does in a call runs behind all that the device's stream had been given before that, and in
//         a segment behind all that it had been given before the grant.
//   HR-4  What the stream is given after end_call() runs behind all that the helper did in the call.
//   HR-5  By a helper's word only leases end that are its own; a number that is none of them refuses the whole answer.
//   HR-6  After gone() nothing is lent or granted, and nothing of the helper is left but results that somebody holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda/slab_pool.h"
#include "messages/base/ids.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda {

/// A part of a slab of the device's. Where a result begins is its name, as long as the device has it.
struct SlabPlace {
  SegmentId slab = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  auto operator<=>(const SlabPlace&) const = default;
};

struct HelperRoomOptions {
  ActorId helper = {};             ///< a name that no other one has or had
  std::size_t grants_max = 1'024;  ///< segments at once; more is kOverloaded
  /// False once the stream is no more; all it was given is done then. Any thread. Empty: the stream outlives all.
  std::function<bool()> stream_lives = {};
};

struct HelperRoomStats {
  std::size_t arguments = 0;  ///< leases that the helper has not given back
  std::size_t grants = 0;     ///< segments, given up ones with results in them included
  std::size_t results = 0;    ///< that somebody holds
  std::uint64_t granted_bytes = 0;
};

/// Thread-safe; none changes the thread's current device. Results outlive it, and the runtime those.
class HelperRoom {
 public:
  /// As gone(): the helper's process has ended, or never had anything.
  virtual ~HelperRoom() = default;
  /// `stream`: what the device computes on, before a call and after it. kUnsupported (no interprocess events),
  /// kDeviceFailed.
  static Result<std::unique_ptr<HelperRoom>> create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                    std::shared_ptr<SlabPool> pool, Stream stream,
                                                    HelperRoomOptions options);

  /// An argument in one of the pool's blocks; `keep` as for SlabPool::lease(), whose errors are these.
  virtual Result<CudaIpcBlock> lend(const void* pointer, std::uint64_t bytes, std::shared_ptr<void> keep) = 0;
  /// A segment to allocate results in. kOutOfMemory, kOverloaded, kUnsupported, kActorUnavailable, kDeviceFailed.
  virtual Result<CudaIpcBlock> grant(std::uint64_t bytes) = 0;

  /// The event that the helper's stream waits for before it does anything (HR-3), the same in all calls. kDeviceFailed.
  virtual Result<IpcEventHandle> begin_call() = 0;
  /// Results that nobody holds any more, each told once, for the next call: the helper may use their memory again,
  /// behind that call's event.
  virtual std::vector<SlabPlace> take_let_go() = 0;

  /// The helper has answered: `done` is an event behind its work, which is over, and it is done with `released`. First
  /// the stream waits (HR-4), then the leases end. kMalformed (HR-5), kPythonFailed where the helper has ended with its
  /// answer: nothing of the call is to be believed, and the helper must go; kDeviceFailed.
  virtual Status end_call(const IpcEventHandle& done, const std::vector<LeaseId>& released) = 0;
  /// A result of a call that has ended so. The memory stays until the last copy of the pointer is gone; on whatever
  /// thread that happens, others than the room's stream have finished with it. kMalformed (HR-2).
  virtual Result<std::shared_ptr<std::byte>> take(const SlabPlace& place) = 0;

  /// Its process has ended and touches nothing any more (HR-6).
  virtual void gone() noexcept = 0;
  virtual HelperRoomStats stats() const = 0;
};

}  // namespace callboard::kernels::cuda
