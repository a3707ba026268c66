// The device backend of one GPU.
#pragma once

#include <string>

#include "kernels/device_backend.h"

namespace callboard::kernels {

/// kEnvironment names what is missing: a driver, a GPU at all, one of this number (and how many there are), one that
/// this build has code for.
Result<std::unique_ptr<DeviceBackend>> make_cuda_backend(const BackendOptions& options);

/// Chooses the GPU that `options` name and makes LibTorch's context on it, current for the calling thread; its number
/// here. Errors as above.
Result<int> open_gpu(const BackendOptions& options);

/// probe_devices("cuda"): see kernels/runtime.h.
Result<std::string> list_gpus();

}  // namespace callboard::kernels
