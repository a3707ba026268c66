// The runtime on a GPU. Each test needs one and says so where there is none.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <sstream>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>

#include "kernels/cuda/slab_pool.h"
#include "tests/kernels/cuda_plugin/handle_text_cuda.h"
#include "tests/kernels/cuda_plugin/peer_process_cuda.h"
#include "tests/kernels/cuda_plugin/prove_transport_cuda.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/gpu.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kLarge = 1 << 22;

RuntimeOptions on_gpu() {
  RuntimeOptions options;
  options.kind = "cuda";
  return options;
}

/// x + 1, `count` times.
Fragment additions(const std::string& name, int count, std::int64_t size, bool to_client = true,
                   std::size_t edges = 0) {
  FragmentMaker maker(name);
  const ValueSpec spec = tensor_spec(DType::kFloat32, {size});
  ValueId x = maker.input(spec);
  for (int i = 0; i < count; ++i) x = maker.node("aten::add.Tensor", {value(x), std::int64_t{1}}, {}, spec);
  maker.output(x, to_client, edges);
  return maker.build();
}

/// One node of a test operator.
Fragment of_operator(const std::string& op, std::vector<Argument> more, std::int64_t size, bool to_client = true,
                     std::size_t edges = 0) {
  FragmentMaker maker(op + std::to_string(edges));
  const ValueSpec spec = tensor_spec(DType::kFloat32, {size});
  std::vector<Argument> arguments{value(maker.input(spec))};
  arguments.insert(arguments.end(), more.begin(), more.end());
  maker.output(maker.node(op, std::move(arguments), {}, spec), to_client, edges);
  return maker.build();
}

const CudaIpcBlock& lent(const WireValue& value) { return std::get<CudaIpcBlock>(std::get<TensorHandle>(value).data); }

}  // namespace

TEST_CASE("a fragment on a GPU gives what the cpu gives, small and large", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{1'000}, kLarge}) {
    const at::Tensor x = at::rand({size});
    CHECK(identical(device.result(additions("add " + std::to_string(size), 3, size), {x}), x + 1 + 1 + 1));
  }
  FragmentMaker maker("mm");
  const ValueId a = maker.input(tensor_spec(DType::kFloat32, {64, 32}));
  const ValueId b = add_constant(maker, at::ones({32, 16}));
  maker.output(maker.node("aten::mm", {value(a), value(b)}, {}, tensor_spec(DType::kFloat32, {64, 16})));
  const at::Tensor whole = at::arange(64 * 32, at::kFloat).reshape({64, 32});  // exact in float32
  CHECK(identical(device.result(maker.build(), {whole}), at::mm(whole, at::ones({32, 16}))));
}

TEST_CASE("views and offsets arrive on a GPU as they were sent, and come back so", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  FragmentMaker maker("views");
  const ValueId x = maker.input();
  maker.output(maker.node("aten::t", {value(x)}));
  maker.output(maker.node("aten::relu", {value(x)}));
  const Fragment fragment = maker.build();
  const at::Tensor turned = (at::rand({300, 200}) - 0.5).t();
  const RunResult result = device.run(fragment, {to_wire(turned)});
  REQUIRE_FALSE(result.error);
  CHECK(identical(from_wire(result.to_client.at(0)), turned.t()));
  CHECK(identical(from_wire(result.to_client.at(1)), at::relu(turned)));
}

TEST_CASE("another process reads a GPU result where it lies, after its writer, and its lease ends", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  load_gpu_operators();
  TestDevice device(on_gpu());
  PeerProcess peer(CALLBOARD_CUDA_PEER);
  REQUIRE(peer.read() == "ready");
  REQUIRE(prove_transport(device.runtime(), peer).path == TransportPath::kIpc);
  // The kernel takes long: whoever reads without waiting for the event reads something else.
  const Fragment fragment = of_operator("cbgpu::spin_add", {100.0, 2.0}, kLarge, false, 1);
  REQUIRE(device.load(fragment));
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = at::arange(kLarge, at::kFloat) + i;
    RunOrder order = TestDevice::order(fragment, {to_wire(x)});
    order.edge_holders = {kCudaPeer};
    const RunResult result = device.run(std::move(order));
    REQUIRE_FALSE(result.error);
    peer.send(to_line(std::get<TensorHandle>(result.on_edges.at(0))));
    std::istringstream answer(peer.read());
    std::string word;
    double sum = 0;
    double first = 0;
    double last = 0;
    answer >> word >> sum >> first >> last;
    INFO(answer.str());
    REQUIRE(word == "values");
    CHECK(first == i + 2);
    CHECK(last == x[-1].item<double>() + 2);
    CHECK(sum == (x + 2).sum(at::kDouble).item<double>());
    // With the word that it keeps the slab open.
    LeaseId released = 0;
    std::istringstream(peer.read()) >> word >> released;
    CHECK(word == "released");
    CHECK(released == (lent(result.on_edges[0]).lease | cuda::kKeepsSlabOpen));
    CHECK(device.runtime().release(released));
    CHECK_FALSE(device.runtime().release(lent(result.on_edges[0]).lease));
  }
}

TEST_CASE("a result keeps its values while others run, until its lease ends", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  const Fragment fragment = additions("kept", 1, kLarge, false, 1);
  REQUIRE(device.load(fragment));
  const auto run = [&](double start) {
    RunOrder order = TestDevice::order(fragment, {to_wire(at::ones({kLarge}) * start)});
    order.edge_holders = {kCudaPeer};
    return device.run(std::move(order));
  };
  PeerProcess peer(CALLBOARD_CUDA_PEER);
  REQUIRE(peer.read() == "ready");
  REQUIRE(prove_transport(device.runtime(), peer).path == TransportPath::kIpc);
  const RunResult kept = run(1);
  REQUIRE_FALSE(kept.error);
  for (int i = 0; i < 8; ++i) {
    const RunResult other = run(100 + i);
    REQUIRE_FALSE(other.error);
    CHECK(device.runtime().release(lent(other.on_edges.at(0)).lease));
  }
  peer.send(to_line(std::get<TensorHandle>(kept.on_edges.at(0))));
  CHECK(peer.read().find("values " + std::to_string(2 * kLarge) + " 2 2") == 0);
}

TEST_CASE("a handle whose lease has ended is lost, not garbage", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  // A reader of its own: to a name that has gone nothing is lent any more, by this process's other runtimes either.
  const ActorId reader{"cuda1", 2};
  PeerProcess peer(CALLBOARD_CUDA_PEER);
  REQUIRE(peer.read() == "ready");
  REQUIRE(prove_transport(device.runtime(), peer, reader).path == TransportPath::kIpc);
  const Fragment fragment = additions("stale", 1, kLarge, false, 1);
  REQUIRE(device.load(fragment));
  RunOrder order = TestDevice::order(fragment, {to_wire(at::ones({kLarge}))});
  order.edge_holders = {reader};
  const RunResult result = device.run(std::move(order));
  REQUIRE_FALSE(result.error);
  device.runtime().holder_gone(reader);
  const RunResult read = device.run(additions("reads stale", 1, kLarge), {result.on_edges.at(0)});
  REQUIRE(read.error);
  CHECK(read.error->code == ErrorCode::kTensorLost);
}

TEST_CASE("a static fragment is captured as a CUDA graph and replays with fresh inputs", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  const Fragment fragment = additions("graph", 16, 10'000);
  for (int i = 0; i < 8; ++i) {
    const at::Tensor x = at::rand({10'000}) * i;
    at::Tensor want = x;
    for (int k = 0; k < 16; ++k) want = want + 1;
    CHECK(identical(device.result(fragment, {x}), want));
  }
  CHECK(device.runtime().describe().find("captured, 7 replays") != std::string::npos);
}

TEST_CASE("an operator that cannot be captured is named and its fragment runs all the same", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  FragmentMaker maker("waits");
  ValueId x = maker.input(tensor_spec(DType::kFloat32, {100}));
  for (int i = 0; i < 4; ++i) x = maker.node("aten::relu", {value(x)}, {}, tensor_spec(DType::kFloat32, {100}));
  maker.output(maker.node("aten::nonzero", {value(x)}));
  const Fragment fragment = maker.build();
  for (int i = 1; i < 5; ++i) {
    at::Tensor input = at::ones({100}) * -1;
    input.slice(0, 0, i).fill_(1);
    CHECK(device.result(fragment, {input}).size(0) == i);
  }
  const std::string told = device.runtime().describe();
  INFO(told);
  CHECK(told.find("not captured: node 104 (aten::nonzero)") != std::string::npos);
}

TEST_CASE("a capture that fails leaves nothing behind, and captured fragments may come and go", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  const at::Tensor x = at::ones({10'000});
  const auto capture_and_unload = [&](const std::string& name) {
    const Fragment fragment = additions(name, 16, 10'000);
    for (int i = 0; i < 4; ++i) CHECK(identical(device.result(fragment, {x}), x + 16));
    CHECK(device.runtime().describe().find("captured, 3 replays") != std::string::npos);
    device.runtime().unload(fragment.program);
  };
  capture_and_unload("the first one");
  FragmentMaker waits("waits for the device");
  ValueId value_now = waits.input(tensor_spec(DType::kFloat32, {10'000}));
  for (int i = 0; i < 4; ++i) {
    value_now = waits.node("aten::relu", {value(value_now)}, {}, tensor_spec(DType::kFloat32, {10'000}));
  }
  waits.output(waits.node("aten::nonzero", {value(value_now)}));
  const Fragment refused = waits.build();
  for (int i = 0; i < 3; ++i) CHECK(device.result(refused, {x}).size(0) == 10'000);
  // The generator counts as one that is captured no longer, and allocations are the device's again.
  FragmentMaker random("random after it");
  random.output(random.node("aten::rand_like", {value(random.input(tensor_spec(DType::kFloat32, {10'000})))}, {},
                            tensor_spec(DType::kFloat32, {10'000})));
  const Fragment draws = random.build();
  CHECK_FALSE(identical(device.result(draws, {x}), device.result(draws, {x})));
  capture_and_unload("another one");
  capture_and_unload("and one more");
}

TEST_CASE("a kernel that leaves another stream current is found, and the next one runs on the right one", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  load_gpu_operators();
  TestDevice device(on_gpu());
  const RunResult wrong = device.run(of_operator("cbgpu::leave_stream", {}, 100), {to_wire(at::ones({100}))});
  REQUIRE(wrong.error);
  CHECK(wrong.error->code == ErrorCode::kKernelFailed);
  CHECK(wrong.error->message.find("another device stream") != std::string::npos);
  CHECK(identical(device.result(additions("after", 1, 100), {at::ones({100})}), at::ones({100}) + 1));
}

TEST_CASE("a deadline ends the wait for a GPU that is still at work", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  load_gpu_operators();
  TestDevice device(on_gpu());
  const Fragment slow = of_operator("cbgpu::spin_add", {2'000.0, 0.0}, 100);
  REQUIRE(device.load(slow));
  RunOrder order = TestDevice::order(slow, {to_wire(at::ones({100}))});
  order.deadline = after(Clock::now(), std::chrono::milliseconds(200));
  const RunResult result = device.run(std::move(order));
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("what does not fit the GPU fails with the operator's name, and the next run goes", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(on_gpu());
  FragmentMaker maker("too much");
  maker.output(maker.node("aten::zeros", {ints({std::int64_t{1} << 42})}, {{"dtype", ArgDType{DType::kFloat32}}}));
  const RunResult result = device.run(maker.build(), {});
  REQUIRE(result.error);
  CHECK(result.error->code == ErrorCode::kOutOfMemory);
  CHECK(result.error->op == "aten::zeros");
  CHECK_FALSE(device.run(additions("after oom", 1, 100), {to_wire(at::ones({100}))}).error);
}

TEST_CASE("R85: an error that breaks the context fails the run as the device's, and says so", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  // In a process of its own: nothing of this one's would run any more. It starts anew, since CUDA does not survive
  // fork.
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "test_cuda_plugin", "[.broken_context]", nullptr);
    ::_exit(127);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("breaks the context of its process", "[.broken_context]") {
  REQUIRE(why_no_gpu().empty());
  load_gpu_operators();
  std::atomic<int> told{0};
  RuntimeOptions options = on_gpu();
  options.device_failed = [&told](const Error& error) {
    if (error.code == ErrorCode::kDeviceFailed) ++told;
  };
  auto* device = new TestDevice(std::move(options));  // not destroyed: its device cannot be
  const RunResult result = device->run(of_operator("cbgpu::trap", {}, 100), {to_wire(at::ones({100}))});
  const RunResult next = device->run(additions("after the trap", 1, 100), {to_wire(at::ones({100}))});
  const auto failed = [](const RunResult& run) { return run.error && run.error->code == ErrorCode::kDeviceFailed; };
  CHECK(failed(result));
  CHECK(failed(next));
  CHECK(told == 1);
  std::fflush(nullptr);
  ::_exit(failed(result) && failed(next) && told == 1 ? 0 : 1);  // no destructors: they would wait for the device
}
