#include "kernels/device_transports.h"

#include <utility>

namespace callboard::kernels {

Status DeviceTransports::supported(const ActorId& self) const {
  if (exchange_ != nullptr) return {};
  return fail(ErrorCode::kUnsupported,
              "the memory of " + self.to_string() + " is the host's: there is no other way to it to be tested");
}

Result<CudaIpcBlock> DeviceTransports::offer(const ActorId& reader, std::uint64_t test, StreamContext& stream) {
  return exchange_->offer_transport(reader, test, stream);
}

TransportTested DeviceTransports::answer(const TestTransport& order, StreamContext& stream) {
  auto answer = exchange_->answer_transport(order.block, stream);
  if (!answer) return {order.test, TransportPath::kHostCopy, {}, answer.error().to_string()};
  answer->test = order.test;
  return std::move(*answer);
}

TransportChosen DeviceTransports::judge(const ActorId& reader, const TransportTested& answer) {
  TransportChosen chosen = exchange_->judge_transport(reader, answer);
  // A test that failed says nothing against another one that did not.
  if (chosen.path != TransportPath::kHostCopy) {
    std::lock_guard lock(mutex_);
    shown_[reader] = chosen.path;
  }
  return chosen;
}

bool DeviceTransports::reads_device(const ActorId& reader) const {
  std::lock_guard lock(mutex_);
  return shown_.contains(reader);
}

void DeviceTransports::holder_gone(const ActorId& reader) noexcept {
  std::lock_guard lock(mutex_);
  shown_.erase(reader);
}

}  // namespace callboard::kernels
