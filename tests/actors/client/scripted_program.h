// A program without a cluster: it keeps what it was given, and the test says how each request ends.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/fragment_builder.h"
#include "actors/client/future_state.h"
#include "actors/client/tensor_parts.h"
#include "tests/actors/client/fake_cluster.h"
#include "tests/support/test.h"

namespace callboard::actors {

/// Ends as the test says; cancel() is counted and does nothing more.
class ScriptedFuture final : public Future {
 public:
  bool is_ready() const override { return value_.is_set(); }
  bool wait_for(Duration wait) const override { return value_.wait_until(after(Clock::now(), wait)); }
  FutureValue get() override {
    value_.wait_until(after(Clock::now(), kPatience));
    return value_.is_set() ? value_.value() : fail(ErrorCode::kInternal, "the test never ended this request");
  }
  void cancel() override { ++cancels; }
  void on_ready(std::function<void()> done) override { value_.on_set(std::move(done)); }

  void end(FutureValue value) { value_.set(std::move(value)); }
  void fail_with(ErrorCode code, std::string message) { end(fail(code, std::move(message))); }

  std::atomic<int> cancels{0};

 private:
  OneShot<FutureValue> value_;
};

struct ScriptedCall {
  std::vector<ClientValue> inputs;
  std::optional<Duration> deadline;
  std::shared_ptr<ScriptedFuture> future;
  SubmitOptions options;
};

class ScriptedProgram final : public Program {
 public:
  explicit ScriptedProgram(ProgramGraph graph, const std::string& device = "cpu0", bool pure = true)
      : graph_(std::move(graph)), id_(ContentHash::of(device.data(), device.size())) {
    PlannedFragment fragment;
    fragment.device = device;
    fragment.pure = pure;
    plan_ = {fragment};
  }

  const ContentHash& id() const override { return id_; }
  const ProgramGraph& graph() const override { return graph_; }
  const std::vector<PlannedFragment>& plan() const override { return plan_; }
  Result<std::vector<StageReport>> stages(std::optional<Duration>) const override {
    return std::vector<StageReport>(1);
  }
  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs, const SubmitOptions& options) override {
    auto future = std::make_shared<ScriptedFuture>();
    ScriptedCall call{{inputs.begin(), inputs.end()}, options.deadline, future, options};
    std::function<FutureValue(const ScriptedCall&)> answer;
    {
      std::lock_guard lock(mutex_);
      ++calls_;
      if (refusal_) return fail(*refusal_);
      if (full_ && !options.wait) return fail(ErrorCode::kOverloaded, "full");
    }
    if (Status room = wait_for_room(options); !room) return fail(std::move(room).error());
    {
      std::lock_guard lock(mutex_);
      answer = answer_;
      if (!answer) waiting_.push_back(call);
      given_.push_back(future);
    }
    if (answer) future->end(answer(call));
    came_.notify_all();
    return future;
  }

  /// From now on each request ends at once, on its caller's thread.
  void answer(std::function<FutureValue(const ScriptedCall&)> answer) {
    std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  void refuse(std::optional<Error> error) {
    std::lock_guard lock(mutex_);
    refusal_ = std::move(error);
  }
  /// From now on, or no longer, there is no room: a request waits for it as SubmitOptions say.
  void full(bool is_full) {
    std::lock_guard lock(mutex_);
    full_ = is_full;
    came_.notify_all();
  }
  /// Until a request waits for room.
  void await_waiting() {
    std::unique_lock lock(mutex_);
    REQUIRE(came_.wait_for(lock, kPatience, [&] { return without_room_ > 0; }));
  }
  /// The next request; fails the test if none comes within kPatience.
  ScriptedCall await() {
    std::unique_lock lock(mutex_);
    REQUIRE(came_.wait_for(lock, kPatience, [&] { return !waiting_.empty(); }));
    ScriptedCall call = std::move(waiting_.front());
    waiting_.pop_front();
    return call;
  }
  /// As a client does when it closes: what nobody has ended is cancelled, and lets go of what waits for it.
  void end_all() {
    std::vector<std::weak_ptr<ScriptedFuture>> given;
    {
      std::lock_guard lock(mutex_);
      given.swap(given_);
    }
    for (const auto& future : given) {
      if (const auto open = future.lock()) open->fail_with(ErrorCode::kCancelled, "the client is closed");
    }
  }
  std::size_t calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  Status wait_for_room(const SubmitOptions& options) {
    std::unique_lock lock(mutex_);
    ++without_room_;
    came_.notify_all();
    while (full_) {
      lock.unlock();
      const bool interrupted = options.interrupted && options.interrupted();
      lock.lock();
      if (interrupted) {
        --without_room_;
        return fail(ErrorCode::kCancelled, "the call was interrupted");
      }
      came_.wait_for(lock, std::chrono::milliseconds(5), [&] { return !full_; });
    }
    --without_room_;
    return {};
  }

  const ProgramGraph graph_;
  const ContentHash id_;
  std::vector<PlannedFragment> plan_;
  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::deque<ScriptedCall> waiting_;
  std::vector<std::weak_ptr<ScriptedFuture>> given_;
  std::function<FutureValue(const ScriptedCall&)> answer_;
  std::optional<Error> refusal_;
  bool full_ = false;
  std::size_t without_room_ = 0;
  std::size_t calls_ = 0;
};

/// y [batch, width] = f(x [batch, width], n), and batch * 4, 3, None as further outputs.
inline ProgramGraph rows_graph(std::int64_t min = 1, std::int64_t max = 64) {
  FragmentBuilder builder("rows");
  const std::vector<Expr> sizes{builder.symbol("batch", min, max).value(), builder.symbol("width", 1, 1 << 20).value()};
  const ValueId x = builder.add_tensor_input("x", DType::kFloat32, sizes).value();
  builder.add_input({"n", ValueKind::kInt, DType::kUndefined, {}}).value();
  const ValueId y = builder.call("aten::neg", {ArgValue{x}}, {"y", ValueKind::kTensor, DType::kFloat32, sizes}).value();
  REQUIRE(builder.add_output("y", y));
  REQUIRE(builder.add_output(
      {"quadruple", ArgSymbol{Expr{{{ExprOp::kSymbol, 0}, {ExprOp::kConst, 4}, {ExprOp::kMul, 0}}}}}));
  REQUIRE(builder.add_output({"three", std::int64_t{3}}));
  REQUIRE(builder.add_output({"none", ArgNone{}}));
  return builder.finish().value();
}

/// All elements `fill`, in memory of its own.
inline TensorRef rows_of(float fill, std::int64_t rows, std::int64_t width = 2) {
  TensorRef made = allocate_private(TensorMeta::contiguous(DType::kFloat32, {rows, width})).value();
  std::fill_n(reinterpret_cast<float*>(made.data), rows * width, fill);
  return made;
}

inline float element(const TensorRef& tensor, std::int64_t row, std::int64_t column = 0) {
  const std::int64_t at = tensor.meta.storage_offset + row * tensor.meta.strides[0] + column * tensor.meta.strides[1];
  float value = 0;
  std::memcpy(&value, tensor.data + at * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

/// The first column.
inline std::vector<float> column_of(const ClientValue& value) {
  const auto& tensor = std::get<TensorRef>(value);
  std::vector<float> values;
  for (std::int64_t row = 0; row < tensor.meta.sizes[0]; ++row) values.push_back(element(tensor, row));
  return values;
}

/// What rows_graph() gives for y.
inline FutureValue rows_result(TensorRef y) {
  auto result = std::make_shared<RequestResult>();
  const std::int64_t rows = y.meta.sizes[0];
  result->outputs = {std::move(y), rows * 4, std::int64_t{3}, std::monostate()};
  return result;
}

/// y is x, negated.
inline FutureValue negated(const ScriptedCall& call) {
  const auto& x = std::get<TensorRef>(call.inputs.at(0));
  TensorRef y = allocate_private(TensorMeta::contiguous(DType::kFloat32, x.meta.sizes)).value();
  auto* to = reinterpret_cast<float*>(y.data);
  for (std::int64_t row = 0; row < x.meta.sizes[0]; ++row) {
    for (std::int64_t column = 0; column < x.meta.sizes[1]; ++column) *to++ = -element(x, row, column);
  }
  return rows_result(std::move(y));
}

inline ErrorCode code_of_future(Future& future) {
  const FutureValue value = future.get();
  return value ? ErrorCode::kOk : value.error().code;
}

}  // namespace callboard::actors
