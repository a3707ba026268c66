// By which way results get to the processes of other devices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "kernels/device_exchange.h"
#include "messages/protocol.h"

namespace callboard::kernels {

/// The tests of the way (see DeviceRuntime), and who was shown to read this device's memory where it lies. Thread-safe.
class DeviceTransports {
 public:
  /// nullptr: the device's memory is the host's, and there is nothing to test. It outlives this object.
  explicit DeviceTransports(DeviceExchange* exchange) : exchange_(exchange) {}

  /// kUnsupported where there is nothing to test; `self` is for the text.
  Status supported(const ActorId& self) const;
  /// On the thread of `stream`.
  Result<CudaIpcBlock> offer(const ActorId& reader, std::uint64_t test, StreamContext& stream);
  TransportTested answer(const TestTransport& order, StreamContext& stream);
  /// Any thread.
  TransportChosen judge(const ActorId& reader, const TransportTested& answer);
  bool reads_device(const ActorId& reader) const;
  void holder_gone(const ActorId& reader) noexcept;

 private:
  DeviceExchange* const exchange_;
  mutable std::mutex mutex_;
  std::map<ActorId, TransportPath> shown_;  // guarded by mutex_; a reader that ends goes
};

}  // namespace callboard::kernels
