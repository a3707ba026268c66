// The helper's end of what helper_room.h is the device's end of: device memory of another process, to read arguments in
// and to allocate results in, and the order of what the two processes do.
//
// Invariants (tests carry the numbers):
//   HG-1  What the helper's stream is given after begin_call() and open() runs behind the device's event and the
//         argument's; what it is given in a granted segment runs behind that segment's.
//   HG-2  A lease is given back once, in the answer of the call in which its last use ended or of the next one, when
//         all that the stream had been given by then is done.
//   HG-3  A slab is closed only with no lease on any part of it that has not been given back, before the lease on its
//         mapping is. A few that are idle stay open for a while: see HelperGuestOptions.
//   HG-4  A result's memory is not used again before the device has let the result go.
//   HG-5  After a sticky error every call fails with it and nothing is given back: the end of the process does that.
//   HG-6  No lock is held across a call of the runtime, a question to the device, or the end of a `keep`.
//
// Not over SlabReader, though arguments are read as it reads: whoever has a block here also writes to others of the
// same slab, a slab must not be opened twice under one holder's name, and the two speak in turns. So nothing can be on
// its way while a lease on a mapping ends, no lease waits for somebody to poll, and an answer says all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/device_segments.h"
#include "kernels/cuda/helper_room.h"
#include "kernels/cuda/runtime_table.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda {

struct HelperGuestOptions {
  int device = 0;                  ///< ordinal in this process of the device whose memory it is
  std::size_t idle_slabs_max = 4;  ///< open without a use; the longest unused are closed with the next answer
  std::uint64_t idle_calls = 16;   ///< then they are closed in any case
};

struct HelperGuestStats {
  std::size_t open_slabs = 0;
  std::size_t leases = 0;    ///< arguments and segments that have not been given back
  std::size_t results = 0;   ///< that the device has not let go
  std::size_t ordinary = 0;  ///< segments of this process's own
};

/// Thread-safe but for begin_call() and end_call(), which belong to the thread that serves calls. Changes no thread's
/// current device. What it gave out may outlive it; the runtime and the stream must outlive both.
class HelperGuest : public DeviceSegments {
 public:
  /// A segment of so many bytes. kNotReady: the device does not listen just now.
  using Ask = std::function<Result<CudaIpcBlock>(std::uint64_t bytes)>;

  ~HelperGuest() override = default;
  /// `stream`: what the helper computes on. kUnsupported (no interprocess events), kDeviceFailed.
  static Result<std::shared_ptr<HelperGuest>> create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                     Stream stream, Ask ask, HelperGuestOptions options = {});

  /// `order`: the device's event, of HelperRoom::begin_call(). kTensorLost (the device has ended), kDeviceFailed.
  virtual Status begin_call(const IpcEventHandle& order) = 0;
  /// An argument, until the last copy of the pointer goes: whoever keeps it longer than its call keeps the lease. Only
  /// what the call declares may be written to. kTensorLost, kMalformed, kUnsupported (no IPC here), kDeviceFailed.
  virtual Result<std::shared_ptr<std::byte>> open(const CudaIpcBlock& block) = 0;

  // DeviceSegments: of the device's memory; where it does not listen, of this process's own.

  /// Where a result lies; nullopt: not in what the device has granted.
  virtual std::optional<SlabPlace> place_of(const void* pointer, std::uint64_t bytes) const = 0;
  /// The device gets it with the answer; `keep` holds the memory until it lets go.
  virtual void give(const SlabPlace& place, std::shared_ptr<void> keep) = 0;
  /// The device's word, or our own where the call fails after all. Unknown places are passed over.
  virtual void let_go(const std::vector<SlabPlace>& places) = 0;

  struct Answer {
    IpcEventHandle done;  ///< the same in all answers
    std::vector<LeaseId> released;
  };
  /// Parks until all that the stream was given is done: a fault of a kernel shows here, and in no other process. A
  /// device that got the answer therefore never waits for an event of a process that has ended. kDeviceFailed: this
  /// process can do no more.
  virtual Result<Answer> end_call() = 0;
  virtual HelperGuestStats stats() const = 0;
};

}  // namespace callboard::kernels::cuda
