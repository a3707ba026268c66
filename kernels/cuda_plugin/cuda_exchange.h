// Lending a GPU's memory to other processes, and reading theirs.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda_plugin/cuda_lending.h"
#include "kernels/device_exchange.h"

namespace callboard::kernels {

/// DeviceExchange over a SlabPool and a SlabReader, with a ReaderThread.
class CudaExchange : public DeviceExchange {
 public:
  /// The device is current and initialised. `options` says whose memory it is and how much of it may be used.
  static Result<std::unique_ptr<CudaExchange>> create(c10::DeviceIndex device, const BackendOptions& options);

  virtual CudaLending& lending() = 0;
  virtual const std::shared_ptr<cuda::DeviceHealth>& health_record() const = 0;
  /// Asks the device, without waiting for it: kDeviceFailed where it can run nothing more.
  virtual Status look_after_device() = 0;
  /// JSON object: slabs, leases and mappings, in numbers and bytes.
  virtual std::string stats_json() const = 0;
};

}  // namespace callboard::kernels
