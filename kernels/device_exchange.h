// How tensors in a device's own memory get to other processes and come from them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "kernels/device_backend.h"
#include "kernels/helper_memory.h"
#include "messages/base/error.h"
#include "messages/base/ids.h"
#include "messages/protocol.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// Of one backend; streams are that backend's. Thread-safe. Lease numbers are the owner's own and are distinct from
/// those of its arena, so that a number alone says whose it is.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  /// Between the two, what ATen allocates on this backend's streams can be lent. Counted: they nest, on any thread.
  virtual void begin_lendable() = 0;
  virtual void end_lendable() noexcept = 0;

  /// False where this machine lets no other process reach the device's memory: then everybody reads host memory.
  virtual bool can_lend() const = 0;
  /// A lease for `holder` on the block that the tensor's data lie in, ordered after what `stream` was given so far. The
  /// block stays, unchanged, until the lease ends. nullopt if the memory is not of the kind that can be lent.
  /// The handle's meta is the caller's; its offset names the block's start, `start` is that address here.
  struct Lent {
    CudaIpcBlock handle;
    std::byte* start = nullptr;
  };
  virtual Result<std::optional<Lent>> lend(const at::Tensor& tensor, const ActorId& holder, StreamContext& stream) = 0;

  /// Memory that another process of this host lent, or this one itself. What `stream` is given from here on runs after
  /// its writer. The lease ends when the last copy of the pointer is gone and what `stream` was given by then is done;
  /// or at once if this fails: kTensorLost if the lease or its owner has ended, kUnsupported where the device cannot
  /// reach that memory, kMalformed.
  virtual Result<std::shared_ptr<std::byte>> open(const CudaIpcBlock& block, StreamContext& stream) = 0;
  /// kTensorLost if the owner of a block that was opened has ended since: what was read may have been anything.
  virtual Status still_there(const CudaIpcBlock& block) const = 0;
  /// Ends the lease of a block that will not be opened.
  virtual void discard(const CudaIpcBlock& block) noexcept = 0;

  // For processes of a GIL domain, which read and write this memory; see kernels/helper_memory.h.
  /// Whether a storage lies in memory that can be lent.
  virtual bool lends(const c10::Storage& /*storage*/) const { return false; }
  virtual std::string device_uuid() const { return {}; }
  /// `stream` computes; it outlives the calls. kUnsupported where this machine or this kind of device cannot.
  virtual Result<std::unique_ptr<DeviceRoom>> make_room(StreamContext& /*stream*/) {
    return fail(ErrorCode::kUnsupported, "this device's memory cannot be shared with processes of a GIL domain",
                "give the device python: inline");
  }

  // The test of the way to another device of this kind (kernels/cuda/transport_test.h); both halves.
  /// Bytes that nobody can guess, written on `stream`, as a block for `reader`; held under the number `test` until
  /// judge(). kUnsupported (nothing can be lent here at all), kOutOfMemory, kDeviceFailed.
  virtual Result<CudaIpcBlock> offer_transport(const ActorId& reader, std::uint64_t test, StreamContext& stream) = 0;
  /// Reads another device's offer as it would read a result; the thread waits until the bytes are there. What does not
  /// work is an answer, too, except kDeviceFailed. The answer's number is the caller's.
  virtual Result<TransportTested> answer_transport(const CudaIpcBlock& block, StreamContext& stream) = 0;
  /// Compares and ends the offer. kHostCopy also where there is none of that number. Any thread.
  virtual TransportChosen judge_transport(const ActorId& reader, const TransportTested& answer) = 0;

  /// Gives back what is free beyond a small reserve. Called when the device has been idle for a while.
  virtual void trim() = 0;
  /// Ends a lease that this process gave. False if there is none of that number.
  virtual bool release(LeaseId lease) noexcept = 0;
  /// Ends all that `holder` had; the number ended.
  virtual std::size_t holder_gone(const ActorId& holder) noexcept = 0;
  /// `owner` is gone: what it lent cannot be opened any more.
  virtual void owner_gone(const ActorId& owner) noexcept = 0;
};

/// Holds begin_lendable()/end_lendable() for a scope; nothing for nullptr.
class LendableScope {
 public:
  explicit LendableScope(DeviceExchange* exchange) : exchange_(exchange) {
    if (exchange_ != nullptr) exchange_->begin_lendable();
  }
  ~LendableScope() {
    if (exchange_ != nullptr) exchange_->end_lendable();
  }
  LendableScope(const LendableScope&) = delete;
  LendableScope& operator=(const LendableScope&) = delete;

 private:
  DeviceExchange* exchange_;
};

}  // namespace callboard::kernels
