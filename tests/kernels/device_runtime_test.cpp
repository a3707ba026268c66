// Runs: order, poison, cancelling, deadlines, streams that overlap, hooks.
#include "kernels/runtime.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu_backend.h"
#include "kernels/host_event.h"
#include "tests/kernels/support/test_device.h"
#include "tests/kernels/support/test_operators.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

/// x → cbtest::hook → …, with a body that the test chooses.
Fragment hooked(const std::string& name, std::size_t kernels_before = 0, std::size_t kernels_after = 0) {
  FragmentMaker maker(name);
  ValueId v = maker.input();
  for (std::size_t i = 0; i < kernels_before; ++i) v = maker.node("cbtest::count", {value(v)});
  v = maker.node("cbtest::hook", {value(v)});
  for (std::size_t i = 0; i < kernels_after; ++i) v = maker.node("cbtest::count", {value(v)});
  maker.output(v);
  return maker.build();
}

struct Pending {
  Signal ended;
  RunResult result;
};

std::shared_ptr<Pending> start(TestDevice& device, RunOrder order) {
  auto pending = std::make_shared<Pending>();
  const Status queued = device.runtime().run(std::move(order), [pending](RunResult result) {
    pending->result = std::move(result);
    pending->ended.set();
  });
  REQUIRE(queued);
  return pending;
}

/// For the time of a test.
struct HookBody {
  explicit HookBody(std::function<void()> body) {
    hook_body = std::move(body);
    count_calls = 0;
  }
  ~HookBody() { hook_body = nullptr; }
};

}  // namespace

TEST_CASE("a fragment gives what the same operators give when called directly") {
  FragmentMaker maker("mlp");
  maker.symbol("s0", 1, 64);
  const ValueSpec in{"x", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::symbol(0), Expr::constant(8)}};
  const ValueId x = maker.input(in);
  const ValueId w = maker.input(tensor_spec(DType::kFloat32, {8, 4}));
  const ValueSpec out{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::symbol(0), Expr::constant(4)}};
  const ValueId h = maker.node("aten::mm", {value(x), value(w)}, {}, out);
  maker.output(maker.node("aten::relu", {value(h)}, {}, out));
  const Fragment fragment = maker.build();
  TestDevice device;
  const at::Tensor weight = at::rand({8, 4});
  for (const std::int64_t batch : {1, 3, 64}) {
    const at::Tensor input = at::rand({batch, 8}) - 0.5;
    CHECK(identical(device.result(fragment, {input, weight}, {batch}), at::relu(input.mm(weight))));
  }
  const RunResult wrong = device.run(TestDevice::order(fragment, {to_wire(at::rand({3, 8})), to_wire(weight)}, {4}));
  REQUIRE(wrong.error);
  CHECK(wrong.error->code == ErrorCode::kBadInput);
  CHECK(wrong.error->message.find("input 0 'x'") != std::string::npos);
}

TEST_CASE("a kernel that fails poisons what depends on it, which does not run") {
  FragmentMaker maker("poison");
  const ValueId x = maker.input();
  const ValueId bad = maker.node("cbtest::throws", {value(x), std::string("check")});
  maker.output(maker.node("cbtest::count", {value(bad)}));
  TestDevice device;
  count_calls = 0;
  const RunResult result = device.run(maker.build(), {to_wire(at::ones({2, 3}))});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kKernelFailed);
  CHECK(result.error->message.find("ATen trouble") != std::string::npos);
  CHECK(result.error->op == "cbtest::throws");
  CHECK(result.error->node == 100);
  CHECK(result.error->actor == "cpu0#1");
  CHECK(result.error->detail.find("x = float32[2, 3] on cpu") != std::string::npos);
  CHECK(result.error->detail.find("model.py:10") != std::string::npos);
  CHECK(count_calls == 0);
  CHECK(result.to_client.empty());
}

TEST_CASE("whatever a kernel throws, the device goes on") {
  TestDevice device;
  for (const auto& [how, code] :
       {std::pair{"runtime_error", ErrorCode::kKernelFailed}, std::pair{"int", ErrorCode::kKernelFailed},
        std::pair{"bad_alloc", ErrorCode::kOutOfMemory}, std::pair{"failure", ErrorCode::kPythonFailed}}) {
    FragmentMaker maker(std::string("throws ") + how);
    maker.input();
    maker.output(maker.node("cbtest::throws", {value(0), std::string(how)}));
    CHECK(device.run(maker.build(), {to_wire(at::ones({1}))}).error->code == code);
  }
  FragmentMaker maker("after the throws");
  maker.input();
  maker.output(maker.node("aten::relu", {value(0)}));
  CHECK_FALSE(device.run(maker.build(), {to_wire(at::ones({1}))}).error);
}

TEST_CASE("a kernel that asks for more memory than the arena has fails its request with operator and sizes") {
  FragmentMaker maker("too much");
  maker.output(maker.node("aten::zeros", {ints({std::int64_t{3} << 28})}, {{"dtype", ArgDType{DType::kFloat32}}}));
  TestDevice device;
  const RunResult result = device.run(maker.build(), {});
  REQUIRE(result.error);
  INFO(result.error->to_string());
  CHECK(result.error->code == ErrorCode::kOutOfMemory);
  CHECK(result.error->op == "aten::zeros");
  CHECK(result.error->message.find("cannot allocate 3") != std::string::npos);
}

TEST_CASE("an output that differs from its declaration fails the run with expected and found") {
  FragmentMaker maker("mismatch");
  maker.input();
  maker.output(maker.node("cbtest::twice", {value(0)}, {}, tensor_spec(DType::kFloat32, {3})));
  TestDevice device;
  const RunResult result = device.run(maker.build(), {to_wire(at::ones({3}))});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kOutputMismatch);
  CHECK(result.error->message.find("expected float32[3] on cpu, found float32[6] on cpu") != std::string::npos);
  RuntimeOptions lenient;
  lenient.check_outputs = false;
  TestDevice unchecked(lenient);
  CHECK_FALSE(unchecked.run(maker.build(), {to_wire(at::ones({3}))}).error);
}

TEST_CASE("a kernel that leaves another stream current fails and the next run is not harmed") {
  static std::unique_ptr<DeviceBackend> backend = make_cpu_backend().value();
  static std::unique_ptr<StreamContext> other = backend->make_stream(StreamKind::kCompute).value();
  TestDevice device;
  const Fragment fragment = hooked("leaves a stream");
  {
    const HookBody body([] { other->enter(); });
    const RunResult result = device.run(fragment, {to_wire(at::ones({1}))});
    REQUIRE(result.error);
    CHECK(result.error->code == ErrorCode::kKernelFailed);
    CHECK(result.error->message.find("stream") != std::string::npos);
  }
  const HookBody body([] {});
  const RunResult next = device.run(fragment, {to_wire(at::ones({1}))});
  INFO((next.error ? next.error->to_string() : std::string()));
  CHECK_FALSE(next.error);
}

TEST_CASE("cancelling stops a run between two kernels, with the reason given") {
  TestDevice device;
  const Fragment fragment = hooked("cancel", 1, 3);
  REQUIRE(device.load(fragment));
  const HookBody body([&] { device.runtime().cancel(1, Error(ErrorCode::kCancelled, "the client asked")); });
  const RunResult result = device.run(TestDevice::order(fragment, {to_wire(at::ones({1}))}));
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kCancelled);
  CHECK(result.error->message == "the client asked");
  CHECK(count_calls == 1);
}

TEST_CASE("a run that is cancelled while it is queued never starts") {
  TestDevice device;
  const Fragment fragment = hooked("cancel queued");
  REQUIRE(device.load(fragment));
  Signal started;
  Signal go_on;
  std::atomic<int> bodies{0};
  const HookBody body([&] {
    ++bodies;
    started.set();
    go_on.wait();
  });
  const auto first = start(device, TestDevice::order(fragment, {to_wire(at::ones({1}))}));
  REQUIRE(started.wait());
  RunOrder order = TestDevice::order(fragment, {to_wire(at::ones({1}))});
  order.run = 2;
  const auto second = start(device, std::move(order));
  CHECK(device.runtime().load_now().queued == 1);
  CHECK(device.runtime().load_now().running == 1);
  device.runtime().cancel(2, Error(ErrorCode::kCancelled, "no longer wanted"));
  go_on.set();
  REQUIRE(second->ended.wait());
  CHECK(second->result.error->message == "no longer wanted");
  CHECK_FALSE(first->result.error);
  CHECK(bodies == 1);
  CHECK(device.runtime().load_now().queued == 0);
}

TEST_CASE("a deadline that has passed stops a run before it starts, and between kernels") {
  TestDevice device;
  const Fragment fragment = hooked("deadline", 0, 40);
  REQUIRE(device.load(fragment));
  RunOrder late = TestDevice::order(fragment, {to_wire(at::ones({1}))});
  late.deadline = Clock::now();
  CHECK(device.run(std::move(late)).error->code == ErrorCode::kDeadlineExceeded);

  RunOrder short_order = TestDevice::order(fragment, {to_wire(at::ones({1}))});
  const TimePoint deadline = Clock::now() + std::chrono::milliseconds(300);
  short_order.deadline = deadline;
  const HookBody body([deadline] { HostEvent().wait_until(deadline + std::chrono::milliseconds(1)); });
  const RunResult result = device.run(std::move(short_order));
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kDeadlineExceeded);
  CHECK(count_calls < 40);
}

TEST_CASE("runs of one device are done in the order they were queued") {
  TestDevice device;
  const Fragment fragment = hooked("order");
  REQUIRE(device.load(fragment));
  std::vector<RunId> order;
  const auto all = std::make_shared<Signal>();
  for (RunId id = 1; id <= 20; ++id) {
    RunOrder next = TestDevice::order(fragment, {to_wire(at::ones({1}))});
    next.run = id;
    REQUIRE(device.runtime().run(std::move(next), [&order, id, all](RunResult) {
      order.push_back(id);
      if (id == 20) all->set();
    }));
  }
  REQUIRE(all->wait());
  CHECK(std::is_sorted(order.begin(), order.end()));
  CHECK(order.size() == 20);
  CHECK(device.runtime().load_now().finished == 20);
}

TEST_CASE("a large copy of one run's result overlaps with the next run's kernels") {
  TestDevice device;
  FragmentMaker maker("identity of a large input");
  maker.output(maker.input());
  const Fragment copying = maker.build();
  const Fragment computing = hooked("computes meanwhile");
  REQUIRE(device.load(copying));
  REQUIRE(device.load(computing));
  const at::Tensor large = at::rand({1 << 20});
  Signal copied;
  Signal computing_now;
  bool kernel_saw_the_copy_end = false;
  bool copy_saw_the_kernel = false;
  std::thread::id copy_thread;
  std::thread::id kernel_thread;
  // Each side waits for the other one in the middle of its work: on one thread neither could end.
  const HookBody body([&] {
    kernel_thread = std::this_thread::get_id();
    computing_now.set();
    kernel_saw_the_copy_end = copied.wait();
  });
  const auto first_ended = std::make_shared<Signal>();
  const auto first = std::make_shared<RunResult>();
  REQUIRE(device.runtime().run(TestDevice::order(copying, {to_wire(large)}), [&, first_ended, first](RunResult result) {
    copy_thread = std::this_thread::get_id();
    copy_saw_the_kernel = computing_now.wait();
    copied.set();
    *first = std::move(result);
    first_ended->set();
  }));
  RunOrder second = TestDevice::order(computing, {to_wire(at::ones({1}))});
  second.run = 2;
  const RunResult computed = device.run(std::move(second));
  REQUIRE(first_ended->wait());
  CHECK_FALSE(computed.error);
  CHECK(copy_saw_the_kernel);
  CHECK(kernel_saw_the_copy_end);
  CHECK(copy_thread != kernel_thread);
  CHECK(identical(from_wire(first->to_client.at(0)), large));
}

TEST_CASE("inputs are released before a run is reported done, also where the result is the input") {
  TestDevice device;
  FragmentMaker maker("identity");
  maker.output(maker.input());
  const Fragment fragment = maker.build();
  const at::Tensor large = at::rand({1 << 18});
  REQUIRE(device.load(fragment));
  const std::uint64_t before = test_memory().peer->stats().leases;
  std::uint64_t at_done = 99;
  const auto ended = std::make_shared<Signal>();
  const auto result = std::make_shared<RunResult>();
  REQUIRE(device.runtime().run(TestDevice::order(fragment, {to_wire(large)}), [&, ended, result](RunResult made) {
    at_done = test_memory().peer->stats().leases;
    *result = std::move(made);
    ended->set();
  }));
  REQUIRE(ended->wait());
  CHECK(at_done == before);
  CHECK(identical(from_wire(result->to_client.at(0)), large));
}

TEST_CASE("an output goes to the client and along each edge, each with a lease of its own holder") {
  TestDevice device;
  FragmentMaker maker("edges");
  const ValueId x = maker.input();
  const ValueId y = maker.node("aten::add.Tensor", {value(x), std::int64_t{1}});
  maker.output(y, true, 2);
  maker.output(x, false, 1);
  const Fragment fragment = maker.build();
  REQUIRE(device.load(fragment));
  const at::Tensor large = at::rand({1 << 18});
  RunOrder order = TestDevice::order(fragment, {to_wire(large)});
  order.edge_holders = {{"cpu1", 1}, {"cpu2", 4}, {"cpu3", 2}};
  const RunResult result = device.run(std::move(order));
  REQUIRE_FALSE(result.error);
  REQUIRE(result.to_client.size() == 1);
  REQUIRE(result.on_edges.size() == 3);
  std::vector<std::string> holders;
  for (const LeaseInfo& lease : test_memory().arena->leases()) holders.push_back(lease.holder.to_string());
  std::sort(holders.begin(), holders.end());
  CHECK(holders == std::vector<std::string>{"client#7", "cpu1#1", "cpu2#4", "cpu3#2"});
  CHECK(identical(from_wire(result.to_client[0]), large + 1));
  CHECK(identical(from_wire(result.on_edges[1]), large + 1));
  CHECK(identical(from_wire(result.on_edges[2]), large));
  CHECK(identical(from_wire(result.on_edges[0]), large + 1));
  CHECK(test_memory().arena->stats().leases == 0);
}

TEST_CASE("an edge from a device to itself is neither mapped nor copied") {
  TestDevice device;
  FragmentMaker maker("own block");
  maker.output(maker.node("aten::add.Tensor", {value(maker.input()), std::int64_t{1}}), true, 1);
  const Fragment fragment = maker.build();
  REQUIRE(device.load(fragment));
  const at::Tensor large = at::rand({1 << 18});
  RunOrder order = TestDevice::order(fragment, {to_wire(large)});
  order.edge_holders = {kSelf};
  RunResult first = device.run(std::move(order));
  REQUIRE_FALSE(first.error);
  CHECK(identical(from_wire(first.to_client[0]), large + 1));
  const std::uint64_t mapped = test_memory().segments->mapped_bytes();
  const RunResult second = device.run(TestDevice::order(fragment, {first.on_edges[0]}));
  REQUIRE_FALSE(second.error);
  CHECK(test_memory().segments->mapped_bytes() == mapped);
  CHECK(identical(from_wire(second.to_client[0]), large + 1 + 1));
  from_wire(second.on_edges[0]);
  CHECK(test_memory().arena->stats().leases == 0);
}

TEST_CASE("a result that a client holds may come back to its device as an input") {
  TestDevice device;
  FragmentMaker maker("result as input");
  maker.output(maker.node("aten::add.Tensor", {value(maker.input()), std::int64_t{1}}));
  const Fragment fragment = maker.build();
  const at::Tensor large = at::rand({1 << 18});
  RunResult result = device.run(fragment, {to_wire(large)});
  REQUIRE_FALSE(result.error);
  result = device.run(fragment, {std::move(result.to_client[0])});
  REQUIRE_FALSE(result.error);
  CHECK(identical(from_wire(result.to_client[0]), large + 1 + 1));
  CHECK(test_memory().arena->stats().leases == 0);
}

TEST_CASE("the leases on inputs of a run that never starts end with it") {
  TestDevice device;
  const Fragment fragment = hooked("never starts");
  REQUIRE(device.load(fragment));
  const std::uint64_t before = test_memory().peer->stats().leases;
  RunOrder order = TestDevice::order(fragment, {to_wire(at::rand({1 << 18}))});
  order.deadline = Clock::now();
  CHECK(test_memory().peer->stats().leases == before + 1);
  CHECK(device.run(std::move(order)).error->code == ErrorCode::kDeadlineExceeded);
  CHECK(test_memory().peer->stats().leases == before);
}

TEST_CASE("nothing of an output stays leased when a later output cannot be exported") {
  TestDevice device;
  FragmentMaker maker("half exported");
  const ValueId x = maker.input();
  maker.output(maker.node("aten::add.Tensor", {value(x), std::int64_t{1}}));
  maker.output(maker.node("aten::to_sparse", {value(x)}));
  const RunResult result = device.run(maker.build(), {to_wire(at::rand({1 << 18}))});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kUnsupported);
  CHECK(test_memory().arena->stats().leases == 0);
}

TEST_CASE("a run of a fragment that is not loaded is refused, one that could not be loaded is answered") {
  TestDevice device;
  const Fragment fragment = hooked("never loaded");
  CHECK(device.run(TestDevice::order(fragment, {})).error->code == ErrorCode::kProgramUnknown);
  REQUIRE(device.load(fragment));
  device.runtime().unload(fragment.program);
  CHECK(device.run(TestDevice::order(fragment, {})).error->code == ErrorCode::kProgramUnknown);
}

TEST_CASE("unloading takes effect behind the runs that are queued") {
  TestDevice device;
  const Fragment fragment = hooked("unload behind");
  REQUIRE(device.load(fragment));
  Signal started;
  Signal go_on;
  const HookBody body([&] {
    started.set();
    go_on.wait();
  });
  const auto first = start(device, TestDevice::order(fragment, {to_wire(at::ones({1}))}));
  REQUIRE(started.wait());
  const auto second = start(device, TestDevice::order(fragment, {to_wire(at::ones({1}))}));
  device.runtime().unload(fragment.program);
  go_on.set();
  REQUIRE(second->ended.wait());
  CHECK_FALSE(first->result.error);
  CHECK_FALSE(second->result.error);
}

TEST_CASE("a full queue refuses a run at once and every accepted one is answered when the device goes") {
  std::vector<std::shared_ptr<Pending>> accepted;
  Signal started;
  Signal go_on;
  const HookBody body([&] {
    started.set();
    go_on.wait();
  });
  const Fragment fragment = hooked("overload");
  std::thread releaser;
  {
    TestDevice device;
    REQUIRE(device.load(fragment));
    accepted.push_back(start(device, TestDevice::order(fragment, {to_wire(at::ones({1}))})));
    REQUIRE(started.wait());
    for (std::size_t i = 0; i < limits::kStreamQueueMax; ++i) {
      accepted.push_back(start(device, TestDevice::order(fragment, {to_wire(at::ones({1}))})));
    }
    const Status refused =
        device.runtime().run(TestDevice::order(fragment, {}), [](RunResult) { FAIL("not accepted, not answered"); });
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOverloaded);
    CHECK(device.runtime().load_now().queued == limits::kStreamQueueMax);
    releaser = std::thread([&] { go_on.set(); });
  }
  releaser.join();
  for (const auto& pending : accepted) CHECK(pending->ended.wait());
}

TEST_CASE("wrong counts of inputs and symbols, and lost tensors, fail the request only") {
  TestDevice device;
  FragmentMaker maker("counts");
  maker.symbol("s0");
  maker.output(maker.node("aten::relu", {value(maker.input())}));
  const Fragment fragment = maker.build();
  CHECK(device.run(fragment, {}, {1}).error->code == ErrorCode::kBadInput);
  CHECK(device.run(fragment, {to_wire(at::ones({1}))}, {}).error->code == ErrorCode::kBadInput);
  CHECK(device.run(fragment, {WireValue(std::int64_t{1})}, {1}).error->code == ErrorCode::kBadInput);
  WireValue lost = to_wire(at::rand({1 << 18}));
  std::get<ArenaBlock>(std::get<TensorHandle>(lost).data).segment += 1'000;
  const RunResult result = device.run(fragment, {lost}, {1});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kTensorLost);
  CHECK(result.error->message.find("input 0 'v0'") != std::string::npos);
  CHECK_FALSE(device.run(fragment, {to_wire(at::ones({1}))}, {1}).error);
}

TEST_CASE("the trace has a span for each kernel while it is on") {
  TestDevice device;
  const Fragment fragment = hooked("trace", 1);
  device.run(fragment, {to_wire(at::ones({1}))});
  CHECK(device.runtime().take_trace(1 << 20).events == "[]");
  device.runtime().set_trace(true);
  device.run(fragment, {to_wire(at::ones({1}))});
  device.runtime().set_trace(false);
  device.run(fragment, {to_wire(at::ones({1}))});
  const std::string trace = device.runtime().take_trace(1 << 20).events;
  CHECK(trace.find("\"name\":\"cbtest::count\"") != std::string::npos);
  CHECK(trace.find("\"node\":101") != std::string::npos);
  CHECK(trace.find("\"module\":\"model.layer\"") != std::string::npos);
  CHECK(trace.find("\"ph\":\"X\"") != std::string::npos);
  CHECK(trace.find("cbtest::count", trace.find("cbtest::count") + 1) == std::string::npos);
  CHECK(device.runtime().take_trace(1 << 20).events == "[]");
}

TEST_CASE("profiling times each node of one program, and of no other") {
  TestDevice device;
  const Fragment fragment = hooked("profiled", 1);
  const Fragment other = hooked("other", 1);
  const ContentHash& program = fragment.program;
  CHECK(device.runtime().take_profile(program, 0, 10).error().code == ErrorCode::kProgramUnknown);
  REQUIRE(device.runtime().begin_profile(program));
  CHECK(device.runtime().begin_profile(other.program).error().code == ErrorCode::kOverloaded);
  for (int i = 0; i < 3; ++i) {
    device.run(fragment, {to_wire(at::ones({1}))});
    device.run(other, {to_wire(at::ones({1}))});
  }
  const auto times = device.runtime().take_profile(program, 0, 1'000);
  REQUIRE(times);
  CHECK(times->runs == 3);
  REQUIRE(times->nodes == 102);  // its two nodes are numbers 100 and 101
  REQUIRE(times->median_ns.size() == 102);
  CHECK(times->median_ns[101] > 0);
  CHECK(times->median_ns[100] > 0);
  CHECK(times->median_ns[99] == 0);
  CHECK(device.runtime().take_profile(program, 101, 1)->median_ns.size() == 1);
  CHECK(device.runtime().take_profile(other.program, 0, 10).error().code == ErrorCode::kProgramUnknown);
  REQUIRE(device.runtime().begin_profile(program));  // afresh
  CHECK(device.runtime().take_profile(program, 0, 10)->nodes == 0);
  device.runtime().unload(program);  // ends it: another one may be profiled
  CHECK(device.runtime().begin_profile(other.program));
  device.runtime().end_profile(program);  // not the one that is
  CHECK(device.runtime().take_profile(other.program, 0, 10));
  device.runtime().end_profile(other.program);
  CHECK_FALSE(device.runtime().take_profile(other.program, 0, 10));
}

TEST_CASE("the NaN check fails the run at the kernel that made the NaN") {
  RuntimeOptions options;
  options.nan_check = true;
  options.timing = true;
  TestDevice device(options);
  FragmentMaker maker("nan");
  const ValueId y = maker.node("aten::log", {value(maker.input())});
  maker.output(maker.node("aten::relu", {value(y)}));
  const Fragment fragment = maker.build();
  CHECK_FALSE(device.run(fragment, {to_wire(at::ones({2}))}).error);
  const RunResult result = device.run(fragment, {to_wire(at::zeros({2}))});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kNanFound);
  CHECK(result.error->op == "aten::log");
  const std::string text = device.runtime().describe();
  CHECK(text.find("\"aten::log\":{\"calls\":2,\"failed\":1") != std::string::npos);
  CHECK(text.find("\"backend\":\"cpu\"") != std::string::npos);
}

TEST_CASE("an unknown kind of device names the kinds there are") {
  RuntimeOptions options;
  options.kind = "tpu";
  const auto made = create_device_runtime(options, test_memory().arena, nullptr, nullptr);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == ErrorCode::kUnsupported);
  CHECK(made.error().hint.find("cpu") != std::string::npos);
}
