// A device's own memory between it and the processes of its GIL domain: both ends, as LibTorch's storages. What is
// behind them for GPUs, and which promises it makes, is in kernels/cuda/helper_room.h and helper_guest.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include "messages/base/error.h"
#include "messages/base/ids.h"
#include "messages/domain_messages.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// What ends a child's part of a call on the device: DomainResult's fields of these names.
struct DeviceAnswer {
  std::string done;
  std::vector<LeaseId> released;
};

/// The device's end, one for each child; its end ends all that the child had, so the child's process must be dead.
/// Thread-safe, but calls belong to the compute stream's thread. Results outlive it.
class DeviceRoom {
 public:
  virtual ~DeviceRoom() = default;

  /// Only what DeviceExchange::lends(). kOverloaded, kUnsupported, kOutOfMemory, kDeviceFailed.
  virtual Result<CudaIpcBlock> lend(const c10::Storage& storage) = 0;
  /// Memory for results. kOutOfMemory, kOverloaded, kUnsupported, kDeviceFailed.
  virtual Result<CudaIpcBlock> grant(std::uint64_t bytes) = 0;
  /// DomainCall::order, for a call that is sent now.
  virtual Result<std::string> begin_call() = 0;
  /// DomainCall::let_go; each is told once.
  virtual std::vector<DomainPlace> take_let_go() = 0;
  /// Before any result is taken. After an error the child must go: kPythonFailed, kMalformed, kDeviceFailed.
  virtual Status end_call(const DeviceAnswer& answer) = 0;
  /// kMalformed.
  virtual Result<c10::Storage> take(const DomainPlace& place) = 0;
};

/// The child's end. The thread that serves calls, but for what LibTorch's allocator asks by itself.
class DeviceGuest {
 public:
  virtual ~DeviceGuest() = default;
  virtual c10::Device device() const = 0;

  /// The device's stream here becomes the calling thread's current one, for good.
  virtual void enter() = 0;
  /// Whether this process can have the device's memory at all: asks it for some. kUnsupported, …
  virtual Status check() = 0;

  /// From here to end_call() what LibTorch allocates on the stream lies in the device's memory.
  virtual Status begin_call(const std::string& order, const std::vector<DomainPlace>& let_go) = 0;
  /// An argument; the lease goes with the storage.
  virtual Result<c10::Storage> open(const CudaIpcBlock& block) = 0;
  virtual c10::Storage empty() = 0;
  /// A result, copied first where it lies elsewhere: the device's until it lets go. kOutOfMemory, kDeviceFailed.
  virtual Result<DomainPlace> give(const c10::Storage& storage) = 0;
  /// The call has failed after all: they were never given.
  virtual void take_back(const std::vector<DomainPlace>& places) = 0;
  /// Parks until the call's work is done. kDeviceFailed: a kernel has failed, and this process can do no more.
  virtual Result<DeviceAnswer> end_call() = 0;
};

/// Which device a child's memory is of.
struct GuestOptions {
  ActorId self;  ///< for errors
  std::string uuid;
  /// Asks the device for memory; kNotReady while it does not listen. Any thread.
  std::function<Result<CudaIpcBlock>(std::uint64_t bytes)> ask;
};
using GuestFactory = std::function<Result<std::unique_ptr<DeviceGuest>>(const GuestOptions& options)>;

/// By the plug-in of devices of that kind.
void register_guest(std::string kind, GuestFactory factory);
/// Opens the plug-in. kUnsupported, kEnvironment.
Result<std::unique_ptr<DeviceGuest>> make_guest(const std::string& kind, const GuestOptions& options);

}  // namespace callboard::kernels
