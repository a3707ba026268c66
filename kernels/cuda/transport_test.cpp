#include "kernels/cuda/transport_test.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace callboard::kernels::cuda {

namespace {

Result<Nonce> make_nonce() {
  Nonce nonce{};
  std::size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t count = ::getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    if (count < 0 && errno != EINTR) {
      return fail(ErrorCode::kEnvironment, std::string("the system gives no random numbers: ") + std::strerror(errno));
    }
    if (count > 0) filled += static_cast<std::size_t>(count);
  }
  return nonce;
}

class TransportOfferImpl final : public TransportOffer {
 public:
  TransportOfferImpl(std::shared_ptr<SlabPool> pool, ActorId reader, Stream stream)
      : pool_(std::move(pool)), reader_(std::move(reader)), stream_(stream) {}
  /// The stream may be gone by then; but for a write() that failed half way, it is done with the memory.
  ~TransportOfferImpl() override { pool_->deallocate(memory_, written_ ? nullptr : stream_); }

  Status write(RuntimeTable& runtime, DeviceHealth& health) {
    CALLBOARD_ASSIGN(nonce_, make_nonce());
    CALLBOARD_ASSIGN(memory_, pool_->allocate(nonce_.size(), stream_));
    const CurrentDeviceGuard current(runtime, health, pool_->device());
    CALLBOARD_TRY(current.status());
    CALLBOARD_TRY(health.note(runtime.memcpy_async(memory_, nonce_.data(), nonce_.size(), stream_), "cudaMemcpyAsync",
                              "the nonce of a transport test"));
    // Only then it is certain that the nonce has been read, which may go with this object (CudaStream::copy says why).
    CALLBOARD_TRY(health.note(runtime.stream_synchronize(stream_), "cudaStreamSynchronize"));
    written_ = true;
    CALLBOARD_ASSIGN(block_, pool_->lease(memory_, nonce_.size(), reader_, stream_, nullptr));
    return {};
  }

  const CudaIpcBlock& block() const override { return block_; }
  TransportVerdict judge(const TransportAnswer& answer) const override {
    const auto host_copy = [this](const std::string& why) {
      return TransportVerdict{TransportPath::kHostCopy, reader_.to_string() + " takes host copies: " + why};
    };
    if (!answer.problem.empty()) return host_copy(answer.problem);
    if (answer.path == TransportPath::kHostCopy) return host_copy("it says so without a reason");
    if (answer.read != nonce_) return host_copy("what it read is not what was written");
    if (answer.path == TransportPath::kSameProcess && reader_ != block_.owner) {
      return host_copy("it takes itself for " + block_.owner.to_string());
    }
    std::string reason;
    if (answer.path == TransportPath::kPeer) reason = reader_.to_string() + " reads from another device";
    return {answer.path, std::move(reason)};
  }

 private:
  const std::shared_ptr<SlabPool> pool_;
  const ActorId reader_;
  const Stream stream_;
  bool written_ = false;
  Nonce nonce_{};
  void* memory_ = nullptr;
  CudaIpcBlock block_;
};

/// Device memory of the reader's own: results are copied into such, and that a copy works is to be shown.
class Scratch {
 public:
  Scratch(RuntimeTable& runtime, DeviceHealth& health) : runtime_(runtime), health_(health) {}
  ~Scratch() {
    if (memory_ != nullptr && !health_.failed()) (void)health_.note(runtime_.free(memory_), "cudaFree");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Result<void*> take(std::size_t bytes) {
    CALLBOARD_TRY(health_.note(runtime_.malloc(&memory_, bytes), "cudaMalloc", "scratch of a transport test"));
    return memory_;
  }

 private:
  RuntimeTable& runtime_;
  DeviceHealth& health_;
  void* memory_ = nullptr;
};

Result<Nonce> read_nonce(RuntimeTable& runtime, DeviceHealth& health, const ReadableBlock& block, Stream stream) {
  Nonce read{};
  if (block.bytes() != read.size()) {
    return fail(ErrorCode::kMalformed, "the block of a transport test has " + std::to_string(block.bytes()) +
                                           " bytes, not " + std::to_string(read.size()));
  }
  const CurrentDeviceGuard current(runtime, health, block.device());
  CALLBOARD_TRY(current.status());
  Scratch scratch(runtime, health);
  CALLBOARD_ASSIGN(void* const copy, scratch.take(read.size()));
  const Status first =
      health.note(runtime.memcpy_async(copy, block.data(), read.size(), stream), "cudaMemcpyAsync", "to this device");
  const Status second = first ? health.note(runtime.memcpy_async(read.data(), copy, read.size(), stream),
                                            "cudaMemcpyAsync", "to the host")
                              : first;
  // Also after a refused copy: the first one may be under way, and its memory goes with this scope.
  const Status done = health.note(runtime.stream_synchronize(stream), "cudaStreamSynchronize");
  for (const Status& status : {first, second, done}) CALLBOARD_TRY(status);
  CALLBOARD_TRY(block.check());
  return read;
}

}  // namespace

Result<std::unique_ptr<TransportOffer>> TransportOffer::make(RuntimeTable& runtime,
                                                             std::shared_ptr<DeviceHealth> health,
                                                             std::shared_ptr<SlabPool> pool, const ActorId& reader,
                                                             Stream stream) {
  auto offer = std::make_unique<TransportOfferImpl>(std::move(pool), reader, stream);
  CALLBOARD_TRY(offer->write(runtime, *health));
  return offer;
}

Result<TransportAnswer> answer_offer(RuntimeTable& runtime, DeviceHealth& health, SlabReader& reader,
                                     const CudaIpcBlock& block, Stream stream) {
  TransportAnswer answer;
  Result<Nonce> read = fail(ErrorCode::kInternal, "not read");
  if (auto opened = reader.open(block, stream)) {
    const ReadableBlock& found = **opened;
    answer.path =
        found.own() ? TransportPath::kSameProcess : (found.same_device() ? TransportPath::kIpc : TransportPath::kPeer);
    read = read_nonce(runtime, health, found, stream);
  } else {
    read = fail(std::move(opened).error());
  }
  CALLBOARD_TRY(health.status());
  if (read) {
    answer.read = *read;
  } else {
    answer.path = TransportPath::kHostCopy;
    answer.problem = read.error().to_string();
  }
  return answer;
}

}  // namespace callboard::kernels::cuda
