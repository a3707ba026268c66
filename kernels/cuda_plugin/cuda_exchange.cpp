#include "kernels/cuda_plugin/cuda_exchange.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/cuda/reader_thread.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda/slab_reader.h"
#include "kernels/cuda/transport_test.h"
#include "kernels/cuda_plugin/cuda_helper.h"
#include "kernels/cuda_plugin/cuda_stream.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kOwnersRememberedMax = 1'024;

/// The pool and the arena of a process both count their leases from 1; on the wire the pool's have this bit.
constexpr LeaseId kDeviceLease = LeaseId{1} << 62;
LeaseId on_wire(LeaseId lease) { return lease == 0 ? 0 : lease | kDeviceLease; }
bool is_device_lease(LeaseId lease) { return (lease & kDeviceLease) != 0; }
LeaseId in_pool(LeaseId lease) { return lease & ~kDeviceLease; }

/// What outlives every backend of a GPU: LibTorch frees storages of the pool until the process ends.
struct Lender {
  std::shared_ptr<cuda::DeviceHealth> health;
  std::shared_ptr<cuda::SlabPool> pool;
  std::unique_ptr<CudaLending> lending;
};

/// One for each GPU and owner, never destroyed.
Result<Lender*> lender_of(c10::DeviceIndex device, const BackendOptions& options) {
  static std::mutex mutex;
  static auto* lenders = new std::map<std::pair<c10::DeviceIndex, ActorId>, Lender*>;
  std::lock_guard lock(mutex);
  Lender*& place = (*lenders)[{device, options.self}];
  if (place != nullptr) return place;
  auto made = std::make_unique<Lender>();
  made->health =
      std::make_shared<cuda::DeviceHealth>(options.self.to_string() + " (GPU " + std::to_string(device) + ")");
  cuda::SlabPoolOptions slabs;
  slabs.owner = options.self;
  slabs.device = device;
  slabs.memory_limit = options.memory_limit;
  CALLBOARD_ASSIGN(made->pool, cuda::SlabPool::create(cuda::cuda_runtime(), made->health, std::move(slabs)));
  made->lending = std::make_unique<CudaLending>(device, made->pool);
  place = made.release();
  return place;
}

/// Gives a lease back to whoever gave it.
using GiveBack = std::function<void(const ActorId& owner, LeaseId lease)>;

class CudaExchangeImpl final : public CudaExchange {
 public:
  CudaExchangeImpl(Lender& lender, const BackendOptions& options, cuda::Event probe)
      : lender_(lender), self_(options.self), probe_(probe) {
    give_back_ = [&lender, self = options.self, release = options.release](const ActorId& owner, LeaseId lease) {
      if (owner == self) {
        lender.pool->release(in_pool(lease));
      } else if (release) {
        release(owner, lease);
      }
    };
  }

  ~CudaExchangeImpl() override {
    leases_.reset();
    cuda::cuda_runtime().event_destroy(probe_);
  }

  Status start(c10::DeviceIndex device) {
    cuda::SlabReaderOptions options;
    options.self = self_;
    options.device = device;
    options.own_block = [&lender = lender_](const CudaIpcBlock& block) -> Result<cuda::OwnBlock> {
      CudaIpcBlock ours = block;
      ours.lease = in_pool(block.lease);
      ours.mapping = in_pool(block.mapping);
      return lender.pool->own_block(ours);
    };
    CALLBOARD_ASSIGN(reader_,
                     cuda::SlabReader::create(cuda::cuda_runtime(), lender_.health, std::move(options), give_back_));
    leases_ = std::make_unique<cuda::ReaderThread>(cuda::cuda_runtime(), *reader_);
    return {};
  }

  void begin_lendable() override { lender_.lending->begin(); }
  void end_lendable() noexcept override { lender_.lending->end(); }
  bool can_lend() const override { return !cannot_lend_.load(std::memory_order_relaxed); }

  Result<std::optional<Lent>> lend(const at::Tensor& tensor, const ActorId& holder, StreamContext& stream) override {
    const c10::Storage& storage = tensor.storage();
    auto* start = static_cast<std::byte*>(storage.mutable_data());
    if (!lender_.pool->find(start)) return std::nullopt;
    auto lease =
        lender_.pool->lease(start, storage.nbytes(), holder, raw_of(stream), std::make_shared<c10::Storage>(storage));
    if (!lease) {
      if (lease.error().code == ErrorCode::kUnsupported && !cannot_lend_.exchange(true)) {
        std::lock_guard lock(mutex_);
        why_not_lend_ = lease.error().message;
      }
      return fail(std::move(lease).error());
    }
    lease->lease = on_wire(lease->lease);
    lease->mapping = on_wire(lease->mapping);
    return Lent{std::move(*lease), start};
  }

  Result<std::shared_ptr<std::byte>> open(const CudaIpcBlock& block, StreamContext& stream) override {
    auto found = reader_->open(block, raw_of(stream));
    if (!found) {
      leases_->wake()();  // the slab may be open all the same, with nobody to use it
      return fail(std::move(found).error());
    }
    std::shared_ptr<cuda::ReadableBlock> opened = std::move(*found);
    // Nobody writes to it: the mutation guard copies inputs before a write.
    auto* data = static_cast<std::byte*>(const_cast<void*>(opened->data()));
    return std::shared_ptr<std::byte>(data, [wake = leases_->wake(), held = std::move(opened)](std::byte*) mutable {
      held.reset();
      wake();
    });
  }

  Status still_there(const CudaIpcBlock& block) const override {
    std::lock_guard lock(mutex_);
    if (std::ranges::find(gone_, block.owner) == gone_.end()) return {};
    return fail(ErrorCode::kTensorLost, "the memory of " + block.owner.to_string() + ", which lent an input, is gone");
  }

  bool lends(const c10::Storage& storage) const override { return lender_.pool->find(storage.data()).has_value(); }
  std::string device_uuid() const override { return lender_.pool->device_uuid().to_string(); }
  Result<std::unique_ptr<DeviceRoom>> make_room(StreamContext& stream) override {
    return make_cuda_room(lender_.health, lender_.pool, *lender_.lending, raw_of(stream));
  }

  void discard(const CudaIpcBlock& block) noexcept override {
    if (block.lease != 0) give_back_(block.owner, block.lease);
  }

  Result<CudaIpcBlock> offer_transport(const ActorId& reader, std::uint64_t test, StreamContext& stream) override {
    CALLBOARD_ASSIGN(auto offer, cuda::TransportOffer::make(cuda::cuda_runtime(), lender_.health, lender_.pool, reader,
                                                            raw_of(stream)));
    CudaIpcBlock block = offer->block();
    block.lease = on_wire(block.lease);
    block.mapping = on_wire(block.mapping);
    std::lock_guard lock(mutex_);
    offers_.insert_or_assign(test, Offer{reader, std::move(offer)});
    return block;
  }

  Result<TransportTested> answer_transport(const CudaIpcBlock& block, StreamContext& stream) override {
    CALLBOARD_ASSIGN(const cuda::TransportAnswer answer,
                     cuda::answer_offer(cuda::cuda_runtime(), *lender_.health, *reader_, block, raw_of(stream)));
    leases_->wake()();
    return TransportTested{0, answer.path, {answer.read.begin(), answer.read.end()}, answer.problem};
  }

  TransportChosen judge_transport(const ActorId& reader, const TransportTested& answer) override {
    std::unique_ptr<cuda::TransportOffer> offer;  // ends here, without the lock
    {
      std::lock_guard lock(mutex_);
      auto found = offers_.extract(answer.test);
      if (found && found.mapped().reader == reader) offer = std::move(found.mapped().offer);
    }
    if (!offer) {
      return {reader, TransportPath::kHostCopy,
              answer.problem.empty() ? "the test has ended before its answer came" : answer.problem};
    }
    cuda::TransportAnswer found;
    found.path = answer.path;
    found.problem = answer.problem;
    if (answer.read.size() == found.read.size()) std::ranges::copy(answer.read, found.read.begin());
    cuda::TransportVerdict verdict = offer->judge(found);
    return {reader, verdict.path, std::move(verdict.reason)};
  }

  void trim() override { static_cast<void>(lender_.pool->trim()); }
  bool release(LeaseId lease) noexcept override {
    return is_device_lease(lease) && lender_.pool->release(in_pool(lease));
  }
  std::size_t holder_gone(const ActorId& holder) noexcept override {
    std::vector<Offer> ended;  // without the lock
    {
      std::lock_guard lock(mutex_);
      for (auto offer = offers_.begin(); offer != offers_.end();) {
        if (offer->second.reader != holder) {
          ++offer;
          continue;
        }
        ended.push_back(std::move(offer->second));
        offer = offers_.erase(offer);
      }
    }
    ended.clear();
    return lender_.pool->holder_gone(holder);
  }
  void owner_gone(const ActorId& owner) noexcept override {
    {
      std::lock_guard lock(mutex_);
      gone_.push_back(owner);
      if (gone_.size() > kOwnersRememberedMax) gone_.pop_front();
    }
    reader_->owner_gone(owner);
    leases_->wake()();
  }

  CudaLending& lending() override { return *lender_.lending; }
  const std::shared_ptr<cuda::DeviceHealth>& health_record() const override { return lender_.health; }

  Status look_after_device() override {
    if (lender_.health->failed()) return lender_.health->status();
    // Any call tells of a context that is broken; this one costs least. What it says otherwise does not matter.
    static_cast<void>(lender_.health->note(cuda::cuda_runtime().event_query(probe_), "cudaEventQuery"));
    return lender_.health->status();
  }

  std::string stats_json() const override {
    const cuda::SlabReaderStats read = reader_->stats();
    nlohmann::json text = {{"open_slabs", read.open_slabs},
                           {"open_bytes", read.open_bytes},
                           {"blocks_read", read.blocks},
                           {"blocks_releasing", read.releasing}};
    const cuda::SlabPoolStats lent = lender_.pool->stats();
    text.update({{"reserved_bytes", lent.reserved_bytes},
                 {"in_use_bytes", lent.in_use_bytes},
                 {"leased_bytes", lent.leased_bytes},
                 {"peak_bytes", lent.peak_bytes},
                 {"leases", lent.leases},
                 {"slabs", lent.slabs}});
    std::lock_guard lock(mutex_);
    if (!why_not_lend_.empty()) text["cannot_lend"] = why_not_lend_;
    return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  static cuda::Stream raw_of(StreamContext& stream) {
    auto* ours = dynamic_cast<CudaStream*>(&stream);
    CALLBOARD_CHECK(ours != nullptr, "memory is exchanged on a stream of its own backend");
    return ours->raw();
  }

  /// A test of the way that is under way.
  struct Offer {
    ActorId reader;
    std::unique_ptr<cuda::TransportOffer> offer;
  };

  Lender& lender_;
  const ActorId self_;
  const cuda::Event probe_;
  GiveBack give_back_;
  mutable std::mutex mutex_;
  std::deque<ActorId> gone_;               // guarded by mutex_
  std::map<std::uint64_t, Offer> offers_;  // by the test's number; one for each reader. Guarded by mutex_
  std::string why_not_lend_;               // guarded by mutex_
  std::atomic<bool> cannot_lend_{false};
  std::unique_ptr<cuda::SlabReader> reader_;
  std::unique_ptr<cuda::ReaderThread> leases_;
};

}  // namespace

Result<std::unique_ptr<CudaExchange>> CudaExchange::create(c10::DeviceIndex device, const BackendOptions& options) {
  CALLBOARD_ASSIGN(Lender * lender, lender_of(device, options));
  cuda::Event probe = nullptr;
  CALLBOARD_TRY(
      lender->health->note(cuda::cuda_runtime().event_create(&probe, cuda::EventKind::kLocal), "cudaEventCreate"));
  auto exchange = std::make_unique<CudaExchangeImpl>(*lender, options, probe);
  CALLBOARD_TRY(exchange->start(device));
  return exchange;
}

}  // namespace callboard::kernels
