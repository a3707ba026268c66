// The runtime on a device with memory of its own, as far as that needs no GPU: the device is a fake whose memory is the
// heap, whose exchange hands addresses out, and whose captured work is a function of the test's.
#include "kernels/device_exchange.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>

#include "kernels/cpu_backend.h"
#include "kernels/plugin.h"
#include "kernels/runtime.h"
#include "tests/kernels/support/fake_exchange_device.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/test_device.h"
#include "tests/kernels/support/test_operators.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kLarge = 1 << 18;

/// relu applied `count` times.
Fragment relus(const std::string& name, int count, std::int64_t size, bool to_client = true, std::size_t edges = 0) {
  FragmentMaker maker(name);
  const ValueSpec spec = tensor_spec(DType::kFloat32, {size});
  ValueId x = maker.input(spec);
  for (int i = 0; i < count; ++i) x = maker.node("aten::relu", {value(x)}, {}, spec);
  maker.output(x, to_client, edges);
  return maker.build();
}

bool is_lent(const WireValue& value) {
  return std::holds_alternative<CudaIpcBlock>(std::get<TensorHandle>(value).data);
}

}  // namespace

TEST_CASE("a device with memory of its own lends to those that read it and copies for all others") {
  Device device;
  device.prove();
  const Fragment fragment = relus("lend", 1, kLarge, true, 2);
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor x = at::rand({kLarge}) - 0.5;
  RunOrder order = TestDevice::order(fragment, {to_wire(x)});
  order.edge_holders = {kReader, {"cpu5", 1}};
  const RunResult result = device.runtime->run(std::move(order));
  REQUIRE_FALSE(result.error);
  CHECK_FALSE(is_lent(result.to_client.at(0)));
  CHECK(is_lent(result.on_edges.at(0)));
  CHECK_FALSE(is_lent(result.on_edges.at(1)));
  CHECK(device.leases() == 1);
  CHECK(device.state.read_backs == 1);  // one copy for both that read host memory
  CHECK(device.state.synchronized > 0);
  CHECK(identical(from_wire(result.to_client[0]), at::relu(x)));
  CHECK(identical(from_wire(result.on_edges[1]), at::relu(x)));

  // And back in, along an edge.
  const Fragment next = relus("lent in", 1, kLarge);
  REQUIRE(device.runtime->load(next));
  const RunResult read = device.runtime->run(TestDevice::order(next, {result.on_edges[0]}));
  REQUIRE_FALSE(read.error);
  CHECK(identical(from_wire(read.to_client.at(0)), at::relu(x)));
  CHECK(device.leases() == 0);  // ended with the run
}

TEST_CASE("clients that can open the device's memory get results there where that was asked for, small ones too") {
  RuntimeOptions options;
  options.results_on_device = GENERATE(true, false);
  Device device(options);
  const std::int64_t size = GENERATE(std::int64_t{kLarge}, std::int64_t{16});  // values: a reference would dangle
  const Fragment fragment = relus("to client " + std::to_string(size), 1, size, true, 1);
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor x = at::rand({size});
  const auto run = [&](bool client_reads_device) {
    RunOrder order = TestDevice::order(fragment, {to_wire(x)});
    order.client_reads_device = client_reads_device;
    order.edge_holders = {ActorId{"cpu5", 1}};
    RunResult result = device.runtime->run(std::move(order));
    REQUIRE_FALSE(result.error);
    REQUIRE(result.to_client.size() == 1);
    REQUIRE(result.on_edges.size() == 1);
    CHECK(identical(from_wire(result.on_edges[0]), x));  // the other reader's is a copy, or its bytes
    return result;
  };
  const RunResult blind = run(false);
  CHECK_FALSE(is_lent(blind.to_client[0]));
  CHECK(identical(from_wire(blind.to_client[0]), x));
  const RunResult seeing = run(true);
  CHECK(is_lent(seeing.to_client[0]) == options.results_on_device);
  if (is_lent(seeing.to_client[0])) {
    const auto& block = std::get<CudaIpcBlock>(std::get<TensorHandle>(seeing.to_client[0]).data);
    CHECK(device.leases() == 1);
    CHECK(device.runtime->runtime().release(block.lease));
  } else {
    CHECK(identical(from_wire(seeing.to_client[0]), x));
  }
  CHECK(device.leases() == 0);
  device.state.can_lend = false;
  const RunResult copied = run(true);
  CHECK_FALSE(is_lent(copied.to_client[0]));
  CHECK(identical(from_wire(copied.to_client[0]), x));
}

TEST_CASE("of an empty result there is nothing to leave on the device") {
  RuntimeOptions options;
  options.results_on_device = true;
  Device device(options);
  const Fragment fragment = relus("empty", 1, 0);
  REQUIRE(device.runtime->load(fragment));
  RunOrder order = TestDevice::order(fragment, {to_wire(at::rand({0}))});
  order.client_reads_device = true;
  const RunResult result = device.runtime->run(std::move(order));
  REQUIRE_FALSE(result.error);
  CHECK_FALSE(is_lent(result.to_client.at(0)));
}

TEST_CASE("where the system refuses to lend a block, its reader gets a copy") {
  Device device;
  device.prove();
  device.state.lend_refused = true;
  const Fragment fragment = relus("refused to lend", 1, kLarge, false, 1);
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor x = at::rand({kLarge});
  RunOrder order = TestDevice::order(fragment, {to_wire(x)});
  order.edge_holders = {kReader};
  const RunResult result = device.runtime->run(std::move(order));
  REQUIRE_FALSE(result.error);
  CHECK(identical(from_wire(result.on_edges.at(0)), x));
}

TEST_CASE(
    "DC-5: a device gets copies until a test has shown that it reads this one's memory, and again after its end") {
  Device device;
  const Fragment fragment = relus("shown", 1, kLarge, false, 1);
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor x = at::rand({kLarge});
  const auto lent_now = [&] {
    RunOrder order = TestDevice::order(fragment, {to_wire(x)});
    order.edge_holders = {kReader};
    const RunResult result = device.runtime->run(std::move(order));
    REQUIRE_FALSE(result.error);
    const bool lent = is_lent(result.on_edges.at(0));
    if (lent) {
      device.runtime->runtime().release(std::get<CudaIpcBlock>(std::get<TensorHandle>(result.on_edges[0]).data).lease);
    } else {
      CHECK(identical(from_wire(result.on_edges[0]), x));
    }
    return lent;
  };
  DeviceRuntime& runtime = device.runtime->runtime();
  CHECK_FALSE(lent_now());
  REQUIRE(device.offer(1));
  const auto wrong = runtime.judge_transport(kReader, {1, TransportPath::kIpc, "a guess", {}});
  REQUIRE(wrong);
  CHECK(wrong->path == TransportPath::kHostCopy);
  CHECK_FALSE(lent_now());
  device.prove();
  CHECK(lent_now());
  const auto late = runtime.judge_transport(kReader, {1, TransportPath::kHostCopy, {}, "it comes too late"});
  CHECK(late->reason == "it comes too late");
  CHECK(lent_now());  // what has been shown stays
  runtime.holder_gone(kReader);
  CHECK_FALSE(lent_now());
}

TEST_CASE("DC-5: a device answers another one's test, also where its own has failed, which it tells") {
  Device device;
  const auto answer = [&] {
    Signal there;
    TransportTested answered;
    TestTransport order;
    order.test = 9;
    REQUIRE(device.runtime->runtime().answer_transport(std::move(order), [&](TransportTested tested) {
      answered = std::move(tested);
      there.set();
    }));
    REQUIRE(there.wait());
    return answered;
  };
  CHECK(answer() == TransportTested{9, TransportPath::kIpc, kNonce, {}});
  device.state.sick = true;
  const TransportTested failed = answer();
  CHECK(failed.test == 9);
  CHECK(failed.path == TransportPath::kHostCopy);
  CHECK(failed.problem.find("nothing more") != std::string::npos);
  device.runtime.reset();  // after which the stream's thread has told it
  CHECK(device.failures == 1);
}

TEST_CASE("DC-5: a device whose memory is the host's has nothing to test") {
  TestDevice cpu;
  const Status offered = cpu.runtime().offer_transport(kReader, 1, [](Result<CudaIpcBlock>) {});
  REQUIRE_FALSE(offered);
  CHECK(offered.error().code == ErrorCode::kUnsupported);
  CHECK_FALSE(cpu.runtime().answer_transport({}, [](TransportTested) {}));
  CHECK_FALSE(cpu.runtime().judge_transport(kReader, {}));
}

TEST_CASE("an input that goes out again is copied before it is lent") {
  Device device;
  device.prove();
  FragmentMaker maker("passed on");
  maker.output(maker.input(tensor_spec(DType::kFloat32, {kLarge})), false, 1);
  const Fragment fragment = maker.build();
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor x = at::rand({kLarge});
  RunOrder order = TestDevice::order(fragment, {to_wire(x)});
  order.edge_holders = {kReader};
  const RunResult result = device.runtime->run(std::move(order));
  REQUIRE_FALSE(result.error);
  CHECK(is_lent(result.on_edges.at(0)));
  device.runtime->runtime().holder_gone(kReader);
  CHECK(device.leases() == 0);
}

TEST_CASE("a static fragment is captured at its second run and replayed from then on, with fresh inputs and outputs") {
  Device device;
  const Fragment fragment = relus("static", 4, 1'000);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 4; ++i) inputs.push_back(at::rand({1'000}) - 0.5);
  int replays = 0;
  device.state.replay = [&]() -> Status {
    ++replays;
    return {};
  };
  CHECK(identical(device.runtime->result(fragment, {inputs[0]}), at::relu(inputs[0])));
  CHECK(device.state.captures == 0);
  // The second run captures, whose work the fake has run on that run's inputs, and replays.
  CHECK(identical(device.runtime->result(fragment, {inputs[1]}), at::relu(inputs[1])));
  CHECK(device.state.captures == 1);
  CHECK(replays == 1);
  // A replay that does nothing leaves the captured outputs: what is handed out comes from there and not from kernels.
  CHECK(identical(device.runtime->result(fragment, {inputs[2]}), at::relu(inputs[1])));
  CHECK(replays == 2);
  CHECK(device.state.captures == 1);
  const std::string told = device.runtime->runtime().describe();
  CHECK(told.find("captured, 2 replays") != std::string::npos);
  CHECK(told.find(R"("fake":true)") != std::string::npos);
}

TEST_CASE("an input of another layout than the captured one runs kernel by kernel") {
  Device device;
  FragmentMaker maker("layouts");
  const ValueSpec spec = tensor_spec(DType::kFloat32, {8, 8});
  ValueId x = maker.input(spec);
  for (int i = 0; i < 4; ++i) x = maker.node("aten::relu", {value(x)}, {}, spec);
  maker.output(x);
  const Fragment fragment = maker.build();
  const at::Tensor plain = at::rand({8, 8}) - 0.5;
  for (int i = 0; i < 2; ++i) CHECK(identical(device.runtime->result(fragment, {plain}), at::relu(plain)));
  device.state.replay = []() -> Status { return fail(ErrorCode::kInternal, "nothing is to be replayed here"); };
  const at::Tensor turned = (at::rand({8, 8}) - 0.5).t();
  CHECK(identical(device.runtime->result(fragment, {turned}), at::relu(turned)));
}

TEST_CASE("what keeps a fragment from being captured is named, and it runs all the same") {
  Device device;
  const at::Tensor x = at::rand({64});
  const auto run_three = [&](const Fragment& fragment) {
    for (int i = 0; i < 3; ++i) CHECK_FALSE(device.runtime->run(fragment, {to_wire(x)}).error);
    return device.runtime->runtime().describe();
  };
  CHECK(run_three(relus("few", 2, 64)).find("not captured: it has 2 kernels") != std::string::npos);

  FragmentMaker random("random");
  ValueId y = random.input();
  for (int i = 0; i < 4; ++i) y = random.node("aten::rand_like", {value(y)});
  random.output(y);
  CHECK(run_three(random.build()).find("not captured: it draws random numbers") != std::string::npos);

  device.state.capture_refused = true;
  CHECK(run_three(relus("refused", 4, 64)).find("not captured: the device refused the capture: test") !=
        std::string::npos);
  CHECK(device.state.captures == 1);
  device.state.capture_refused = false;

  // Fails while it is captured and never else, as an operator does that waits for the device.
  FragmentMaker waits("waits");
  ValueId z = waits.input();
  for (int i = 0; i < 3; ++i) z = waits.node("aten::relu", {value(z)});
  waits.output(waits.node("cbtest::hook", {value(z)}));
  hook_body = [&device] {
    if (device.state.captures == 2) {
      device.state.captures = 3;
      throw std::runtime_error("not permitted when the stream is capturing");
    }
  };
  CHECK(run_three(waits.build())
            .find("not captured: node 103 (cbtest::hook): not permitted when the stream is capturing") !=
        std::string::npos);
}

TEST_CASE("with capturing switched off nothing is captured") {
  RuntimeOptions options;
  options.capture = false;
  Device device(options);
  const at::Tensor x = at::rand({64});
  for (int i = 0; i < 3; ++i) CHECK_FALSE(device.runtime->run(relus("never", 8, 64), {to_wire(x)}).error);
  CHECK(device.state.captures == 0);
}

TEST_CASE("out of memory: what is cached is given back, and a pure fragment runs once more") {
  Device device;
  FragmentMaker maker("hungry");
  maker.output(maker.node("cbtest::hook", {value(maker.input())}));
  const Fragment fragment = maker.build();
  int calls = 0;
  hook_body = [&calls] {
    if (++calls == 1) throw std::bad_alloc();
  };
  CHECK_FALSE(device.runtime->run(fragment, {to_wire(at::rand({8}))}).error);
  CHECK(calls == 2);
  CHECK(device.state.released_cached == 1);
  hook_body = [] { throw std::bad_alloc(); };
  const RunResult again = device.runtime->run(fragment, {to_wire(at::rand({8}))});
  REQUIRE(again.error);  // nothing was left to give back
  CHECK(again.error->code == ErrorCode::kOutOfMemory);
}

TEST_CASE("where a fragment cannot be loaded for want of memory, what is cached is given back and it is tried again") {
  Device device;
  FragmentMaker maker("hungry constants");
  maker.output(maker.node("aten::add.Tensor", {value(maker.input()), value(add_constant(maker, at::rand({8})))}));
  const Fragment fragment = maker.build();
  device.state.copies_refused = 1;
  CHECK(device.runtime->load(fragment));
  CHECK(device.state.released_cached == 1);
}

TEST_CASE("a run does not begin on a stream that a kernel of an earlier run left current") {
  Device device;
  FragmentMaker maker("leaves another stream");
  maker.output(maker.node("cbtest::hook", {value(maker.input())}));
  const Fragment fragment = maker.build();
  const auto other = make_cpu_backend().value()->make_stream(StreamKind::kCompute).value();
  hook_body = [&other] { other->enter(); };
  for (int i = 0; i < 3; ++i) CHECK(device.runtime->run(fragment, {to_wire(at::rand({8}))}).error);
  CHECK(device.state.entered_late == 0);
}

TEST_CASE("R85: a device that can run nothing more fails the run that finds it, with its root, and says so once") {
  Device device;
  const Fragment fragment = relus("sick", 1, kLarge);
  device.state.sick = true;
  for (int i = 0; i < 2; ++i) {
    const RunResult result = device.runtime->run(fragment, {to_wire(at::rand({kLarge}))});
    REQUIRE(result.error);
    CHECK(result.error->code == ErrorCode::kDeviceFailed);
    CHECK(result.error->actor == "cpu0#1");
    CHECK(result.to_client.empty());
  }
  CHECK(device.failures == 1);
}

namespace {

/// A block that this device lent, as if another one had.
WireValue lent_by_another(Device& device, std::int64_t size) {
  device.prove();
  const Fragment first = relus("owner", 1, size, false, 1);
  REQUIRE(device.runtime->load(first));
  RunOrder order = TestDevice::order(first, {to_wire(at::rand({size}))});
  order.edge_holders = {kReader};
  const RunResult lent = device.runtime->run(std::move(order));
  REQUIRE_FALSE(lent.error);
  WireValue value = lent.on_edges.at(0);
  std::get<CudaIpcBlock>(std::get<TensorHandle>(value).data).owner = kReader;
  return value;
}

}  // namespace

TEST_CASE("a result made of memory whose owner went before the device had read it is not shown, lent or copied") {
  Device device;
  const bool lends = GENERATE(true, false);
  const WireValue lent = lent_by_another(device, kLarge);
  // Its kernels are queued by then; the owner ends while the device is still at work.
  device.state.wait_for_device = [&]() -> Status {
    device.runtime->runtime().owner_gone(kReader);
    return {};
  };
  const Fragment fragment = relus("reader", 1, kLarge, !lends, lends ? 1 : 0);
  REQUIRE(device.runtime->load(fragment));
  RunOrder order = TestDevice::order(fragment, {lent});
  if (lends) order.edge_holders = {kReader};
  const RunResult read = device.runtime->run(std::move(order));
  REQUIRE(read.error);
  CHECK(read.error->code == ErrorCode::kTensorLost);
  CHECK(read.error->actor == "cpu0#1");
  CHECK(read.to_client.empty());
  CHECK(read.on_edges.empty());
  CHECK(device.leases() == 0);  // neither the input's nor one of a result that nobody hears of
  CHECK(test_memory().arena->stats().leases == 0);
}

TEST_CASE("a run whose inputs are the device's own or the host's lends its results before the device has made them") {
  Device device;
  device.prove();
  const Fragment fragment = relus("first stage", 1, kLarge, false, 1);
  REQUIRE(device.runtime->load(fragment));
  RunOrder order = TestDevice::order(fragment, {to_wire(at::rand({kLarge}))});
  order.edge_holders = {kReader};
  const RunResult lent = device.runtime->run(std::move(order));
  REQUIRE_FALSE(lent.error);
  REQUIRE(is_lent(lent.on_edges.at(0)));
  CHECK(device.state.synchronized == 0);
  RunOrder again = TestDevice::order(fragment, {lent.on_edges[0]});
  again.edge_holders = {kReader};
  CHECK_FALSE(device.runtime->run(std::move(again)).error);
  CHECK(device.state.synchronized == 0);
}

TEST_CASE("a state made of memory whose owner went before the device had read it does not move on") {
  Device device;
  const WireValue lent = lent_by_another(device, kLarge);
  FragmentMaker maker("state of another's memory");
  const ValueSpec spec = tensor_spec(DType::kFloat32, {kLarge});
  const ValueId x = maker.input(spec);
  const ValueId total = add_constant(maker, at::zeros({kLarge}));
  const ValueId after = maker.node("aten::add.Tensor", {value(total), value(x)}, {}, spec);
  maker.state(total, after);
  maker.output(after);
  const Fragment fragment = maker.build();
  REQUIRE(device.runtime->load(fragment));
  const at::Tensor one = at::ones({kLarge});
  CHECK(device.runtime->run(TestDevice::order(fragment, {to_wire(one)})).state_version == 1);
  device.state.wait_for_device = [&]() -> Status {
    device.runtime->runtime().owner_gone(kReader);
    return {};
  };
  const RunResult lost = device.runtime->run(TestDevice::order(fragment, {lent}));
  REQUIRE(lost.error);
  CHECK(lost.error->code == ErrorCode::kTensorLost);
  device.state.wait_for_device = nullptr;
  const RunResult next = device.runtime->run(TestDevice::order(fragment, {to_wire(one)}));
  REQUIRE_FALSE(next.error);
  CHECK(next.state_version == 2);
  CHECK(identical(from_wire(next.to_client.at(0)), one + one));
}

TEST_CASE("what a copy that broke off may still read stays until the device has read it") {
  Device device;
  const WireValue lent = lent_by_another(device, kLarge);
  const auto read = std::make_shared<std::atomic<bool>>(false);
  device.state.unread = read;
  FragmentMaker maker("hands its input on");
  const ValueId x = maker.input(tensor_spec(DType::kFloat32, {kLarge}));
  maker.output(x);
  const Fragment fragment = maker.build();
  REQUIRE(device.runtime->load(fragment));
  const RunResult broken = device.runtime->run(TestDevice::order(fragment, {lent}));
  REQUIRE(broken.error);
  CHECK(broken.error->code == ErrorCode::kDeadlineExceeded);
  CHECK(device.leases() == 1);
  device.runtime->runtime().trim();
  CHECK(device.leases() == 1);
  *read = true;
  device.runtime->runtime().trim();
  CHECK(device.leases() == 0);
}

TEST_CASE("a plug-in that cannot be used is named with its file and what is wrong with it") {
  const auto missing = load_plugin("cuda", "/nowhere/at/all");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kEnvironment);
  CHECK(missing.error().message.find("/nowhere/at/all/callboard_cuda.so: No such file") != std::string::npos);
  CHECK(missing.error().hint.find("CALLBOARD_CUDA=ON") != std::string::npos);

  char folder[] = "/tmp/callboard-plugin-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string file = std::string(folder) + "/callboard_other.so";
  std::ofstream(file) << "no library";
  const auto broken = load_plugin("other", folder);
  std::remove(file.c_str());
  rmdir(folder);
  REQUIRE_FALSE(broken);
  CHECK(broken.error().code == ErrorCode::kEnvironment);
  CHECK(broken.error().message.find(file) != std::string::npos);
}

TEST_CASE("constants of equal content lie on the device once, for all fragments") {
  Device device;
  const at::Tensor weight = at::rand({64});
  for (const char* name : {"first", "second"}) {
    FragmentMaker maker(std::string("constants ") + name);
    const ValueId w = add_constant(maker, weight);
    maker.output(maker.node("aten::add.Tensor", {value(maker.input()), value(w)}));
    const at::Tensor x = at::rand({64});
    CHECK(identical(device.runtime->result(maker.build(), {x}), x + weight));
  }
}
