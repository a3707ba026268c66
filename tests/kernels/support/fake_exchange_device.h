// A device with memory of its own that needs no GPU: its memory is the heap, its exchange hands addresses out, and its
// captured work is a function of the test's.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cpu_backend.h"
#include "kernels/device_exchange.h"
#include "kernels/plugin.h"
#include "kernels/runtime.h"
#include "tests/kernels/support/test_device.h"
#include "tests/kernels/support/test_operators.h"
#include "tests/support/test.h"

namespace callboard::testing {

using namespace kernels;  // NOLINT: what a device is made of

inline const ActorId kReader{"fake1", 1};

/// What the fakes do and have done. One device at a time.
struct FakeDevice {
  std::mutex mutex;
  LeaseId next_lease = LeaseId{1} << 62;
  std::map<LeaseId, std::pair<ActorId, c10::Storage>> lent;  // guarded by mutex
  std::map<std::uint64_t, ActorId> offers;                   // readers by test; guarded by mutex
  std::atomic<int> lendable{0};
  std::atomic<int> lent_outside{0};  // while nothing was lendable
  std::atomic<int> released_cached{0};
  std::atomic<int> read_backs{0};
  std::atomic<int> synchronized{0};
  std::atomic<int> captures{0};
  std::atomic<int> entered_late{0};         // while something was lendable: inputs were imported before it
  std::atomic<int> copies_refused{0};       // the next ones, for want of memory
  std::function<Status()> replay;           // compute stream
  std::function<Status()> wait_for_device;  // when a stream is synchronized
  /// Copies to the host break off, and what they have read is read only when this is true.
  std::shared_ptr<std::atomic<bool>> unread;
  std::atomic<bool> can_lend{true};
  std::atomic<bool> lend_refused{false};
  std::atomic<bool> capture_refused{false};
  std::atomic<bool> sick{false};
  std::atomic<bool> owner_lost{false};
};
inline FakeDevice* fake = nullptr;

/// Of a stream that has not done what it was given; one flag for all of them.
class FakeEvent final : public DeviceEvent {
 public:
  explicit FakeEvent(std::shared_ptr<std::atomic<bool>> passed) : passed_(std::move(passed)) {}
  bool ready() const override { return *passed_; }

 private:
  const std::shared_ptr<std::atomic<bool>> passed_;
};

class FakeWork final : public CapturedWork {
 public:
  Status replay() override { return fake->replay ? fake->replay() : Status(); }
};

/// The cpu's stream, which counts.
class FakeStream final : public StreamContext {
 public:
  FakeStream(std::unique_ptr<StreamContext> real, StreamKind kind) : real_(std::move(real)), kind_(kind) {}
  void enter() override {
    if (kind_ == StreamKind::kCompute && fake->lendable > 0) ++fake->entered_late;
    real_->enter();
  }
  void leave() override { real_->leave(); }
  bool is_current() const override { return real_->is_current(); }
  std::shared_ptr<DeviceEvent> record() override {
    if (fake->unread && kind_ == StreamKind::kCommunicate) return std::make_shared<FakeEvent>(fake->unread);
    return real_->record();
  }
  Status wait(const DeviceEvent& event, TimePoint deadline) override { return real_->wait(event, deadline); }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    if (fake->copies_refused > 0) {
      --fake->copies_refused;
      return fail(ErrorCode::kOutOfMemory, "the fake device has no memory for a copy");
    }
    return real_->copy(to, from, bytes);
  }
  Status read_back(void* to, const void* from, std::size_t bytes, TimePoint deadline) override {
    ++fake->read_backs;
    if (fake->unread) return fail(ErrorCode::kDeadlineExceeded, "the deadline passed in the middle of a copy");
    return real_->read_back(to, from, bytes, deadline);
  }
  Status synchronize(TimePoint) override {
    ++fake->synchronized;
    return fake->wait_for_device ? fake->wait_for_device() : Status();
  }
  bool can_capture() const override { return true; }
  Result<std::unique_ptr<CapturedWork>> capture(const std::function<Status()>& work) override {
    ++fake->captures;
    CALLBOARD_TRY(work());
    if (fake->capture_refused) return fail(ErrorCode::kUnsupported, "the device refused the capture: test");
    return std::make_unique<FakeWork>();
  }

 private:
  const std::unique_ptr<StreamContext> real_;
  const StreamKind kind_;
};

inline const std::string kNonce = "a number that nobody can guess";

class FakeExchange : public DeviceExchange {
 public:
  void begin_lendable() override { ++fake->lendable; }
  void end_lendable() noexcept override { --fake->lendable; }
  bool can_lend() const override { return fake->can_lend; }
  Result<std::optional<Lent>> lend(const at::Tensor& tensor, const ActorId& holder, StreamContext&) override {
    if (fake->lendable == 0) ++fake->lent_outside;
    if (fake->lend_refused) return fail(ErrorCode::kUnsupported, "no other process reaches this memory");
    std::lock_guard lock(fake->mutex);
    CudaIpcBlock block;
    block.owner = kSelf;
    block.bytes = tensor.storage().nbytes();
    block.lease = fake->next_lease++;
    block.handles = std::string(CudaIpcBlock::kUuidBytes + 2 * CudaIpcBlock::kHandleBytes, 'h');
    fake->lent.emplace(block.lease, std::pair(holder, tensor.storage()));
    return Lent{block, static_cast<std::byte*>(tensor.storage().mutable_data())};
  }
  Result<std::shared_ptr<std::byte>> open(const CudaIpcBlock& block, StreamContext&) override {
    std::lock_guard lock(fake->mutex);
    const auto found = fake->lent.find(block.lease);
    if (found == fake->lent.end()) return fail(ErrorCode::kTensorLost, "no such lease");
    auto* data = static_cast<std::byte*>(found->second.second.mutable_data());
    return std::shared_ptr<std::byte>(data, [lease = block.lease](std::byte*) {
      std::lock_guard again(fake->mutex);
      fake->lent.erase(lease);
    });
  }
  Status still_there(const CudaIpcBlock&) const override {
    if (!fake->owner_lost) return {};
    return fail(ErrorCode::kTensorLost, "the owner of an input is gone");
  }
  void discard(const CudaIpcBlock& block) noexcept override { release(block.lease); }
  Result<CudaIpcBlock> offer_transport(const ActorId& reader, std::uint64_t test, StreamContext&) override {
    if (fake->lend_refused) return fail(ErrorCode::kUnsupported, "no other process reaches this memory");
    std::lock_guard lock(fake->mutex);
    fake->offers[test] = reader;
    CudaIpcBlock block;
    block.owner = kSelf;
    block.bytes = kNonce.size();
    return block;
  }
  Result<TransportTested> answer_transport(const CudaIpcBlock&, StreamContext&) override {
    if (fake->sick) return fail(ErrorCode::kDeviceFailed, "the fake device can run nothing more");
    return TransportTested{0, TransportPath::kIpc, kNonce, {}};
  }
  TransportChosen judge_transport(const ActorId& reader, const TransportTested& answer) override {
    std::lock_guard lock(fake->mutex);
    const bool offered = fake->offers.erase(answer.test) > 0;
    if (offered && answer.read == kNonce) return {reader, answer.path, {}};
    return {reader, TransportPath::kHostCopy, answer.problem.empty() ? "other bytes" : answer.problem};
  }
  void trim() override {}
  bool release(LeaseId lease) noexcept override {
    std::lock_guard lock(fake->mutex);
    return fake->lent.erase(lease) > 0;
  }
  std::size_t holder_gone(const ActorId& holder) noexcept override {
    std::lock_guard lock(fake->mutex);
    return std::erase_if(fake->lent, [&](const auto& entry) { return entry.second.first == holder; });
  }
  void owner_gone(const ActorId&) noexcept override { fake->owner_lost = true; }
};

class FakeBackend final : public DeviceBackend {
 public:
  std::string_view kind() const override { return "fake"; }
  c10::Device device() const override { return c10::Device(c10::DeviceType::CPU); }
  Result<std::unique_ptr<StreamContext>> make_stream(StreamKind kind) override {
    CALLBOARD_ASSIGN(auto real, cpu_->make_stream(kind));
    return std::make_unique<FakeStream>(std::move(real), kind);
  }
  Result<DeviceMemory> memory() const override { return cpu_->memory(); }
  void set_intra_op_threads(int threads) override { cpu_->set_intra_op_threads(threads); }
  bool can_run(const std::string& name, const std::string& overload) const override {
    return cpu_->can_run(name, overload);
  }
  DeviceExchange* exchange() override { return &exchange_; }
  bool release_cached_memory() override {
    if (fake->lendable != 0) ++fake->lent_outside;  // LibTorch gives nothing back while a pool is in use
    return ++fake->released_cached == 1;
  }
  Status health() const override {
    if (!fake->sick) return {};
    return fail(ErrorCode::kDeviceFailed, "the fake device can run nothing more");
  }
  std::string describe() const override { return R"({"fake": true})"; }

 private:
  const std::unique_ptr<DeviceBackend> cpu_ = make_cpu_backend().value();
  FakeExchange exchange_;
};

/// A runtime on a fake device, whose state begins anew.
struct Device {
  explicit Device(RuntimeOptions options = {}) : runtime(start(std::move(options))) {}
  ~Device() {
    runtime.reset();
    hook_body = nullptr;
    std::lock_guard lock(state.mutex);
    CHECK(state.lendable == 0);
    CHECK(state.lent_outside == 0);
  }

  std::unique_ptr<TestDevice> start(RuntimeOptions options) {
    fake = &state;
    register_backend("fake", [](const BackendOptions&) -> Result<std::unique_ptr<DeviceBackend>> {
      return std::make_unique<FakeBackend>();
    });
    options.kind = "fake";
    options.device_failed = [this](const Error&) { ++failures; };
    return std::make_unique<TestDevice>(std::move(options));
  }
  Result<CudaIpcBlock> offer(std::uint64_t test) {
    Signal there;
    Result<CudaIpcBlock> offered = fail(ErrorCode::kInternal, "not called");
    CALLBOARD_TRY(runtime->runtime().offer_transport(kReader, test, [&](Result<CudaIpcBlock> block) {
      offered = std::move(block);
      there.set();
    }));
    if (!there.wait()) return fail(ErrorCode::kDeadlineExceeded, "no offer came");
    return offered;
  }
  /// From here on kReader reads where results lie.
  void prove() {
    REQUIRE(offer(1));
    REQUIRE(runtime->runtime().judge_transport(kReader, {1, TransportPath::kIpc, kNonce, {}})->path ==
            TransportPath::kIpc);
  }
  std::size_t leases() {
    std::lock_guard lock(state.mutex);
    return state.lent.size();
  }

  FakeDevice state;
  std::atomic<int> failures{0};
  std::unique_ptr<TestDevice> runtime;
};

}  // namespace callboard::testing
