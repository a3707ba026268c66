// The device stream around Python code.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "kernels/python/gil.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// For a scope in which Python code runs: its current CUDA stream is the calling thread's, which is the KernelStream's
/// (PyTorch keeps one current stream for a thread, whether C++ or Python asks), and afterwards it is again, whatever
/// the code did. Where it left another one current, the KernelStream first waits, on the device, for what that one was
/// given: so what the code computed there is ordered before whoever reads its outputs. Where the device has no streams
/// (CPU, a process without CUDA) it does nothing. Belongs to one thread; ends before the GIL is given back.
class PythonCodeCudaStreamGuard {
 public:
  /// The reference is the proof that the GIL is held.
  PythonCodeCudaStreamGuard(const GilScopedAcquire& held, c10::Device device);
  /// Through another runtime than the process's; nullptr: without one.
  PythonCodeCudaStreamGuard(const GilScopedAcquire& held, c10::Device device,
                            const c10::impl::DeviceGuardImplInterface* runtime);
  ~PythonCodeCudaStreamGuard();
  PythonCodeCudaStreamGuard(const PythonCodeCudaStreamGuard&) = delete;
  PythonCodeCudaStreamGuard& operator=(const PythonCodeCudaStreamGuard&) = delete;
  PythonCodeCudaStreamGuard(PythonCodeCudaStreamGuard&&) = delete;
  PythonCodeCudaStreamGuard& operator=(PythonCodeCudaStreamGuard&&) = delete;

  /// What the destructor does, with an answer: kDeviceFailed where the runtime refuses. Once; later calls do nothing.
  Status restore() noexcept {
    if (runtime_ == nullptr) return {};
    return put_back();
  }

 private:
  Status put_back() noexcept;

  const c10::Device device_;
  const c10::impl::DeviceGuardImplInterface* runtime_;  // nullptr: nothing to do, or done
  std::optional<c10::Device> device_before_;
  std::optional<c10::Stream> stream_before_;
};

}  // namespace callboard::kernels
