#include "kernels/python/stream_guard.h"

#include <exception>
#include <string>
#include <utility>

namespace callboard::kernels {

namespace {

const c10::impl::DeviceGuardImplInterface* runtime_of(c10::Device device) {
  if (device.is_cpu() || !c10::impl::hasDeviceGuardImpl(device.type())) return nullptr;
  const c10::impl::DeviceGuardImplInterface* runtime = c10::impl::getDeviceGuardImpl(device.type());
  return runtime->deviceCount() > 0 ? runtime : nullptr;
}

}  // namespace

PythonCodeCudaStreamGuard::PythonCodeCudaStreamGuard(const GilScopedAcquire& held, c10::Device device)
    : PythonCodeCudaStreamGuard(held, device, runtime_of(device)) {}

PythonCodeCudaStreamGuard::PythonCodeCudaStreamGuard(const GilScopedAcquire& /*held*/, c10::Device device,
                                                     const c10::impl::DeviceGuardImplInterface* runtime)
    : device_(device), runtime_(runtime) {
  if (runtime_ == nullptr) return;
  device_before_ = runtime_->getDevice();
  stream_before_ = runtime_->getStream(device_);
  if (*device_before_ != device_) runtime_->setDevice(device_);
}

PythonCodeCudaStreamGuard::~PythonCodeCudaStreamGuard() {
  // Asked here, an exception is on its way, which says more; the executor makes its stream current again in any case.
  static_cast<void>(restore());
}

Status PythonCodeCudaStreamGuard::put_back() noexcept {
  const c10::impl::DeviceGuardImplInterface* runtime = std::exchange(runtime_, nullptr);
  try {
    const c10::Stream left = runtime->getStream(device_);
    if (left != *stream_before_) {
      void* event = nullptr;
      runtime->record(&event, left, device_.index(), c10::EventFlag::PYTORCH_DEFAULT);
      runtime->block(event, *stream_before_);
      runtime->destroyEvent(event, device_.index());
      runtime->exchangeStream(*stream_before_);
    }
    if (runtime->getDevice() != *device_before_) runtime->setDevice(*device_before_);
    return {};
  } catch (const std::exception& thrown) {
    runtime->uncheckedSetDevice(*device_before_);
    return fail(
        ErrorCode::kDeviceFailed,
        "the device stream that was current before the Python code cannot be put back: " + std::string(thrown.what()));
  }
}

}  // namespace callboard::kernels
