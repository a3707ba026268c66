// What a code of the CUDA runtime means for a request and for the device, and whether the device can still be used.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "kernels/cuda/runtime_table.h"
#include "messages/base/error.h"

namespace callboard::kernels::cuda {

enum class Failure : std::uint8_t {
  kNone,         ///< success
  kNotReady,     ///< an answer to a query
  kOutOfMemory,  ///< this request only: kOutOfMemory
  kRequest,      ///< a kernel's launch was refused and nothing ran; the device is as good as before: kKernelFailed
  kStaleHandle,  ///< what a handle names is not there (any more): kTensorLost
  kUnreachable,  ///< this path does not exist here, another may: kUnsupported
  kEnvironment,  ///< no driver, no device, no permission: kEnvironment
  kUsage,        ///< our own fault: kInternal
  kDevice,       ///< sticky: nothing that this process does on the device can succeed or be trusted: kDeviceFailed
};

struct CodeInfo {
  Code code = kSuccess;
  std::string_view name;  ///< "cudaErrorMemoryAllocation"
  Failure failure = Failure::kDevice;
};

/// Every code of CUDA 13. A number that is not in the table counts as kDevice: an unknown failure must not be survived
/// by guessing.
CodeInfo code_info(Code code);
/// The error code that a failure travels as.
ErrorCode error_code(Failure failure);

/// Whether one device of this process can still be used. Shared by everything that makes calls for it. Thread-safe.
class DeviceHealth {
 public:
  /// `device` names it in errors ("cuda0#3 (GPU-…)"). `on_failed` is called once, on the thread that saw the first
  /// sticky error, and must only post: the actor has to end (class device).
  explicit DeviceHealth(std::string device, std::function<void(const Error&)> on_failed = {});

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// The first sticky error, again and again; nothing while there was none.
  Status status() const;

  /// Turns the code of `call` ("cudaMalloc") into a value. A sticky code makes the device failed; once it is, every
  /// call fails with the first sticky error whatever its own code says, kSuccess too. `about` says what it was for.
  /// 600 (not ready) is not given here.
  Status note(Code code, std::string_view call, std::string_view about = {});

  /// "cudaMalloc of …: cudaErrorMemoryAllocation (2)" as an error, without judging the device. For calls of which
  /// another meaning is known (a stale handle, a missing path).
  Error describe(Code code, std::string_view call, std::string_view about = {}) const;

 private:
  const std::string device_;
  const std::function<void(const Error&)> on_failed_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Error first_;  // guarded by mutex_, constant once failed_
};

/// Makes `device` the calling thread's current one for a scope; status() tells whether that worked. Puts back what was
/// current before, unless this process does not use that device: a thread's first one is 0, whoever owns that, and to
/// set it would make a context there, of some 500 MB. Never throws.
class CurrentDeviceGuard {
 public:
  CurrentDeviceGuard(RuntimeTable& runtime, DeviceHealth& health, int device);
  ~CurrentDeviceGuard();
  CurrentDeviceGuard(const CurrentDeviceGuard&) = delete;
  CurrentDeviceGuard& operator=(const CurrentDeviceGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  RuntimeTable& runtime_;
  int before_ = -1;
  Status status_;
};

/// For a scope, no capture (of a CUDA graph) forbids the calling thread any calls, nor is broken by them. For calls
/// that no captured stream or event takes part in.
class UnwatchedCalls {
 public:
  UnwatchedCalls(RuntimeTable& runtime, DeviceHealth& health);
  ~UnwatchedCalls();
  UnwatchedCalls(const UnwatchedCalls&) = delete;
  UnwatchedCalls& operator=(const UnwatchedCalls&) = delete;

 private:
  RuntimeTable& runtime_;
  CaptureMode mode_ = CaptureMode::kRelaxed;
};

}  // namespace callboard::kernels::cuda
