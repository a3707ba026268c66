#include "kernels/kernel.h"

#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu_backend.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {

using From = ArgumentStep::From;

class LambdaKernel final : public Kernel {
 public:
  LambdaKernel(ArgumentPlan arguments, OutputPlan outputs, std::function<void(Stack&)> body)
      : Kernel(std::make_shared<KernelInfo>(KernelInfo{"test::op", 42, "op_1", "model.layer", "model.py:3"}),
               std::move(arguments), std::move(outputs)),
        body_(std::move(body)) {}

 private:
  void compute(Stack& stack, KernelFrame&) override { body_(stack); }
  std::function<void(Stack&)> body_;
};

class RecordingHook final : public KernelHook {
 public:
  explicit RecordingHook(std::vector<std::string>& log) : log_(log) {}
  void before(const KernelCall&) override { log_.push_back("before"); }
  std::optional<Error> after(const KernelCall&, std::span<const Blob* const> outputs) override {
    log_.push_back(outputs.size() == 1 && outputs[0]->filled() ? "after, filled" : "after, not filled");
    return refuse;
  }
  void failed(const KernelCall&, const Error& error) override {
    log_.push_back("failed " + std::string(error_name(error.code)));
  }
  std::optional<Error> refuse;

 private:
  std::vector<std::string>& log_;
};

/// Says in the log when it is asked which stream is current, and what to answer.
class RecordingStream final : public StreamContext {
 public:
  explicit RecordingStream(std::vector<std::string>& log) : log_(log) {}
  void enter() override {}
  void leave() override {}
  bool is_current() const override {
    log_.push_back("stream check");
    return checks_ok-- > 0;
  }
  std::shared_ptr<DeviceEvent> record() override { return nullptr; }
  Status wait(const DeviceEvent&, TimePoint) override { return {}; }
  Status copy(void*, const void*, std::size_t) override { return {}; }
  Status read_back(void*, const void*, std::size_t, TimePoint) override { return {}; }
  Status synchronize(TimePoint) override { return {}; }
  mutable int checks_ok = 2;

 private:
  std::vector<std::string>& log_;
};

/// One input blob (slot 0), one output blob (slot 1).
struct Bench {
  Bench() : blobs(2), stream(log), hook(log) {
    REQUIRE(exprs.begin({}));
    blobs[0].expect();
    blobs[1].expect();
    blobs[0].set_tensor(at::ones({2, 3}));
    hooks = {&hook};
    frame.blobs = blobs;
    frame.exprs = &exprs;
    frame.stream = &stream;
    frame.hooks = hooks;
    frame.guard = &guard;
    frame.stack = &stack;
  }

  std::shared_ptr<const Error> run(std::function<void(Stack&)> body, From from = From::kBlob) {
    ArgumentPlan arguments;
    ArgumentStep step;
    step.from = from;
    arguments.steps.push_back(step);
    arguments.names = {"self"};
    OutputPlan outputs;
    ValueCheck check;
    check.slot = 1;
    check.dtype = at::kFloat;
    outputs.targets = {check};
    outputs.steps = {OutputStep{0, 1, false}};
    LambdaKernel kernel(arguments, outputs, [this, body = std::move(body)](Stack& s) {
      log.push_back("compute");
      body(s);
    });
    return kernel.run(frame);
  }

  std::vector<std::string> log;
  std::vector<Blob> blobs;
  ExprTable exprs;
  RecordingStream stream;
  RecordingHook hook;
  std::vector<KernelHook*> hooks;
  MutationGuard guard;
  Stack stack;
  KernelFrame frame;
};

void keep(Stack&) {}  // the argument is the result

}  // namespace

TEST_CASE("a blob goes from empty over pending to filled and is read only then") {
  Blob blob;
  CHECK(blob.state() == Blob::State::kEmpty);
  blob.expect();
  CHECK(blob.state() == Blob::State::kPending);
  blob.set_tensor(at::ones({2}));
  CHECK(blob.filled());
  CHECK(blob.value().toTensor().numel() == 2);
  blob.drop();
  CHECK(blob.state() == Blob::State::kEmpty);
}

TEST_CASE("a poisoned blob keeps its first root error, also over a value") {
  Blob blob;
  blob.expect();
  blob.set(c10::IValue(3));
  const auto first = std::make_shared<const Error>(ErrorCode::kKernelFailed, "first");
  blob.poison(first);
  blob.poison(std::make_shared<const Error>(ErrorCode::kKernelFailed, "second"));
  CHECK(blob.poisoned());
  CHECK(blob.error() == first);
}

TEST_CASE("another stream waits for a shared blob until it is filled or the deadline passes") {
  const auto blob = std::make_shared<SharedBlob>();
  CHECK(blob->wait_until(Clock::now()) == nullptr);
  std::thread filler([blob] { blob->set(c10::IValue(at::ones({3}))); });
  const Blob* filled = blob->wait_until(Clock::now() + std::chrono::seconds(20));
  filler.join();
  REQUIRE(filled != nullptr);
  CHECK(filled->value().toTensor().numel() == 3);
}

TEST_CASE("a kernel runs its seven steps in order") {
  Bench bench;
  CHECK(bench.run(keep) == nullptr);
  CHECK(bench.log == std::vector<std::string>{"before", "stream check", "compute", "stream check", "after, filled"});
  CHECK(bench.blobs[1].filled());
  CHECK(bench.blobs[0].filled());
}

TEST_CASE("the last use of a blob moves it to the kernel") {
  Bench bench;
  CHECK(bench.run(keep, From::kLastUse) == nullptr);
  CHECK(bench.blobs[0].state() == Blob::State::kEmpty);
  CHECK(bench.blobs[1].value().toTensor().use_count() == 1);
}

TEST_CASE("another stream current before the kernel: it does not run") {
  Bench bench;
  bench.stream.checks_ok = 0;
  const auto error = bench.run(keep);
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kInternal);
  CHECK(bench.log == std::vector<std::string>{"before", "stream check", "failed internal"});
  CHECK(bench.blobs[1].poisoned());
}

TEST_CASE("another stream current after the kernel fails it and poisons its outputs") {
  Bench bench;
  bench.stream.checks_ok = 1;
  const auto error = bench.run(keep);
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kKernelFailed);
  CHECK(error->message.find("stream") != std::string::npos);
  CHECK(bench.blobs[1].error() == error);
}

TEST_CASE("what a kernel throws becomes one root error with operator, node, shapes, module and source") {
  Bench bench;
  const auto error = bench.run([](Stack&) { TORCH_CHECK(false, "sizes do not match"); });
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kKernelFailed);
  CHECK(error->message.find("sizes do not match") != std::string::npos);
  CHECK(error->op == "test::op");
  CHECK(error->node == 42);
  CHECK(error->detail.find("self = float32[2, 3] on cpu") != std::string::npos);
  CHECK(error->detail.find("module: model.layer") != std::string::npos);
  CHECK(error->detail.find("source: model.py:3") != std::string::npos);
  CHECK(bench.blobs[1].error() == error);
  CHECK(bench.log.back() == "failed kernel_failed");
}

TEST_CASE("the error of a kernel that consumed its last-use input still says what it was given") {
  Bench bench;
  const auto error = bench.run([](Stack&) { throw std::runtime_error("no"); }, From::kLastUse);
  REQUIRE(error);
  CHECK(error->detail.find("self = float32[2, 3] on cpu") != std::string::npos);
}

TEST_CASE("each kind of exception gets its error code and none leaves the kernel") {
  Bench memory;
  CHECK(memory.run([](Stack&) { throw std::bad_alloc(); })->code == ErrorCode::kOutOfMemory);
  Bench refused;
  CHECK(refused.run([](Stack&) { C10_THROW_ERROR(OutOfMemoryError, "arena is full"); })->code ==
        ErrorCode::kOutOfMemory);
  Bench odd;
  CHECK(odd.run([](Stack&) { throw 3; })->code == ErrorCode::kKernelFailed);
  Bench own;
  const auto error = own.run([](Stack&) {
    Error failure(ErrorCode::kPythonFailed, "no such key");
    failure.detail = "Traceback";
    throw KernelFailure(failure);
  });
  CHECK(error->code == ErrorCode::kPythonFailed);
  CHECK(error->detail.find("Traceback") != std::string::npos);
  CHECK(error->detail.find("self = ") != std::string::npos);
}

TEST_CASE("a poisoned input is inherited: the kernel does not run and its outputs carry the same error") {
  Bench bench;
  const auto root = std::make_shared<const Error>(ErrorCode::kKernelFailed, "root");
  bench.blobs[0].poison(root);
  CHECK(bench.run(keep) == root);
  CHECK(bench.blobs[1].error() == root);
  CHECK(bench.log == std::vector<std::string>{"before", "stream check"});
}

TEST_CASE("a kernel that makes another dtype, count or kind than declared gives an output mismatch") {
  Bench dtype;
  const auto error = dtype.run([](Stack& s) { s[0] = at::ones({2, 3}, at::kDouble); });
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kOutputMismatch);
  CHECK(error->message.find("expected float32 on cpu, found float64[2, 3] on cpu") != std::string::npos);
  Bench count;
  CHECK(count.run([](Stack& s) { s.push_back(c10::IValue(1)); })->code == ErrorCode::kOutputMismatch);
  Bench kind;
  CHECK(kind.run([](Stack& s) { s[0] = c10::IValue(1); })->code == ErrorCode::kOutputMismatch);
  Bench undefined;
  CHECK(undefined.run([](Stack& s) { s[0] = at::Tensor(); })->code == ErrorCode::kOutputMismatch);
  Bench elsewhere;
  const auto device = elsewhere.run([](Stack& s) {
    s[0] = at::empty({2, 3}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  });
  REQUIRE(device);
  CHECK(device->message.find("meta") != std::string::npos);
}

TEST_CASE("a hook that refuses after the fill still poisons the outputs") {
  Bench bench;
  bench.hook.refuse = Error(ErrorCode::kNanFound, "a NaN");
  const auto error = bench.run(keep);
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kNanFound);
  CHECK(error->node == 42);
  CHECK(bench.blobs[1].poisoned());
}

TEST_CASE("without hooks and with output checks off a kernel still fills its blobs") {
  Bench bench;
  bench.frame.hooks = {};
  bench.frame.check_outputs = false;
  CHECK(bench.run([](Stack& s) { s[0] = at::ones({1}, at::kDouble); }) == nullptr);
  CHECK(bench.blobs[1].value().toTensor().scalar_type() == at::kDouble);
}

TEST_CASE("the NaN check names the kernel of the first NaN or infinity and accepts whole numbers") {
  NanCheckHook hook;
  const auto info = std::make_shared<const KernelInfo>(KernelInfo{"aten::log", 9, "", "", ""});
  const KernelCall call{info, 1};
  Blob blob;
  const Blob* outputs[] = {&blob};
  blob.set_tensor(at::ones({3}));
  CHECK_FALSE(hook.after(call, outputs));
  blob.drop();
  blob.set_tensor(at::ones({3}).log().div(at::ones({3}).log()));
  const auto error = hook.after(call, outputs);
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kNanFound);
  CHECK(error->message.find("node 9 (aten::log)") != std::string::npos);
  blob.drop();
  blob.set_tensor(at::ones({3}, at::kLong));
  CHECK_FALSE(hook.after(call, outputs));
  for (const auto type : {at::kHalf, at::kBFloat16, at::ScalarType::Float8_e4m3fn, at::kComplexFloat}) {
    blob.drop();
    blob.set_tensor(at::ones({3}).to(type));
    CHECK_FALSE(hook.after(call, outputs));
  }
}

TEST_CASE("the trace ring keeps the newest spans and counts what fell out") {
  TraceRing ring;
  for (std::size_t i = 0; i < TraceRing::kSpansMax + 3; ++i)
    ring.add({nullptr, "export", i, 1, TimePoint(), Duration(), false});
  constexpr std::size_t kAll = 1u << 30;
  const std::string text = ring.take(kAll).events;
  CHECK(text.find("\"spans dropped\"") != std::string::npos);
  CHECK(text.find("\"count\":3") != std::string::npos);
  CHECK(text.find("\"run\":2}") == std::string::npos);
  CHECK(text.find("\"run\":" + std::to_string(TraceRing::kSpansMax + 2) + "}") != std::string::npos);
  CHECK(ring.take(kAll).events == "[]");
}

TEST_CASE("a trace that does not fit into one message is taken in parts, oldest first, none twice") {
  TraceRing ring;
  for (RunId run = 0; run < 100; ++run) ring.add({nullptr, "export", run, 1, TimePoint(), Duration(), false});
  std::vector<RunId> runs;
  int parts = 0;
  for (bool more = true; more; ++parts) {
    const TraceBatch batch = ring.take(1000);
    CHECK(batch.events.size() < 1300);
    for (const auto& event : nlohmann::json::parse(batch.events)) runs.push_back(event["args"]["run"].get<RunId>());
    more = batch.more;
  }
  CHECK(parts > 5);
  std::vector<RunId> expected(100);
  std::iota(expected.begin(), expected.end(), RunId{0});
  CHECK(runs == expected);
  CHECK(ring.take(1).events == "[]");
}
