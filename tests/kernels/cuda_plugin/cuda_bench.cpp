// Figures of a GPU, as one JSON line each. Needs the plug-in and its test operators (built by tools/gpu_check and by
// the main build where nvcc is). Argument: the path of cuda_peer.
//   per-op overhead   a chain of additions on one element as a fragment (kernel by kernel, and as a CUDA graph) against
//   a
//                     loop over at::add on a stream of its own
//   hand-over         1 MiB to 1 GiB to another process, from the run's end to values read there
//   overlap           a large result copied to the host while the next runs compute, against one after the other
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include "kernels/device_backend.h"
#include "tests/kernels/cuda_plugin/handle_text_cuda.h"
#include "tests/kernels/cuda_plugin/peer_process_cuda.h"
#include "tests/kernels/cuda_plugin/prove_transport_cuda.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/gpu.h"
#include "tests/kernels/support/test_device.h"

namespace {

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

constexpr int kNodes = 1'000;
constexpr int kRounds = 7;

double microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

RuntimeOptions on_gpu(bool capture) {
  RuntimeOptions options;
  options.kind = "cuda";
  options.capture = capture;
  return options;
}

void must(const RunResult& result) {
  if (!result.error) return;
  std::fprintf(stderr, "%s\n", result.error->to_string().c_str());
  std::exit(1);
}

Fragment chain(int nodes, std::int64_t size, const std::string& name) {
  FragmentMaker maker(name);
  const ValueSpec spec = tensor_spec(DType::kFloat32, {size});
  ValueId x = maker.input(spec);
  for (int i = 0; i < nodes; ++i) x = maker.node("aten::add.Tensor", {value(x), std::int64_t{1}}, {}, spec);
  maker.output(x);
  return maker.build();
}

double per_op(bool capture) {
  TestDevice device(on_gpu(capture));
  const Fragment fragment = chain(kNodes, 1, capture ? "graph" : "kernels");
  const WireValue input = to_wire(at::ones({1}));
  for (int i = 0; i < 3; ++i) must(device.run(fragment, {input}));
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    times.push_back(microseconds([&] { must(device.run(TestDevice::order(fragment, {input}))); }) / kNodes);
  }
  return median(times);
}

double loop_per_op() {
  auto backend = make_backend("cuda");
  if (!backend) std::exit(1);
  auto stream = (*backend)->make_stream(StreamKind::kCompute);
  if (!stream) std::exit(1);
  const c10::InferenceMode inference;
  const CurrentStreamGuard current(**stream);
  const at::Tensor x = at::ones({1}, at::TensorOptions().device((*backend)->device()));
  std::vector<double> times;
  for (int i = 0; i < kRounds + 3; ++i) {
    const double took = microseconds([&] {
      at::Tensor y = x;
      for (int k = 0; k < kNodes; ++k) y = at::add(y, 1);
      float value = 0;
      static_cast<void>((*stream)->read_back(&value, y.const_data_ptr(), sizeof value, kNever));
    });
    if (i >= 3) times.push_back(took / kNodes);
  }
  return median(times);
}

void overhead() {
  const double loop = loop_per_op();
  const double kernels = per_op(false);
  const double graph = per_op(true);
  std::printf(
      "{\"figure\": \"op_overhead\", \"loop_us\": %.3f, \"fragment_us\": %.3f, \"graph_us\": %.3f, \"ratio\": %.3f, "
      "\"graph_ratio\": %.3f}\n",
      loop, kernels, graph, kernels / loop, graph / loop);
}

void hand_over(const char* peer_program) {
  TestDevice device(on_gpu(false));
  PeerProcess peer(peer_program);
  if (peer.read() != "ready") std::exit(1);
  const TransportChosen way = prove_transport(device.runtime(), peer);
  if (way.path == TransportPath::kHostCopy) {
    std::fprintf(stderr, "no hand-over between two processes here: %s\n", way.reason.c_str());
    std::exit(1);
  }
  for (const std::int64_t mebibytes : {1, 16, 128, 1024}) {
    const std::int64_t size = mebibytes << 18;
    FragmentMaker maker("hand over " + std::to_string(mebibytes));
    maker.output(maker.node("aten::ones", {ints({size})}, {{"dtype", ArgDType{DType::kFloat32}}}), false, 1);
    const Fragment fragment = maker.build();
    if (!device.load(fragment)) std::exit(1);
    std::vector<double> run;
    std::vector<double> read;
    for (int i = 0; i < kRounds; ++i) {
      RunOrder order = TestDevice::order(fragment, {});
      order.edge_holders = {kCudaPeer};
      RunResult result;
      run.push_back(microseconds([&] { result = device.run(std::move(order)); }));
      must(result);
      const auto& handle = std::get<TensorHandle>(result.on_edges.at(0));
      peer.send(to_line(handle));
      std::istringstream answer(peer.read());
      std::string word;
      double sum = 0;
      double first = 0;
      double last = 0;
      double took = 0;
      answer >> word >> sum >> first >> last >> took;
      if (word != "values" || sum != static_cast<double>(size)) {
        std::fprintf(stderr, "the peer read something else: %s\n", answer.str().c_str());
        std::exit(1);
      }
      read.push_back(took);
      peer.read();  // released
      device.runtime().release(std::get<CudaIpcBlock>(handle.data).lease);
    }
    std::printf(
        "{\"figure\": \"hand_over\", \"mib\": %lld, \"run_us\": %.1f, \"open_and_sum_us\": %.1f, \"first_us\": %.1f}\n",
        static_cast<long long>(mebibytes), median(run), median(read), read.front());
  }
}

void overlap() {
  load_gpu_operators();
  TestDevice device(on_gpu(false));
  constexpr std::int64_t kSize = 16 << 20;  // 64 MiB to the host
  FragmentMaker maker("overlap");
  const ValueSpec spec = tensor_spec(DType::kFloat32, {kSize});
  const ValueId x = maker.input(spec);
  maker.output(maker.node("cbgpu::spin_add", {value(x), 10.0, 1.0}, {}, spec));
  const Fragment fragment = maker.build();
  // An input's lease ends with its run, so each run has one of its own.
  const auto once = [&](bool at_once) {
    constexpr int kRuns = 8;
    return microseconds([&] {
      std::vector<std::shared_ptr<Signal>> ends;
      for (int i = 0; i < kRuns; ++i) {
        auto end = std::make_shared<Signal>();
        RunOrder order = TestDevice::order(fragment, {to_wire(at::ones({kSize}))});
        order.run = static_cast<RunId>(i + 1);
        const Status queued = device.runtime().run(std::move(order), [end](RunResult result) {
          must(result);
          from_wire(result.to_client.at(0));
          end->set();
        });
        if (!queued || (!at_once && !end->wait())) std::exit(1);
        ends.push_back(std::move(end));
      }
      for (const auto& end : ends) {
        if (at_once && !end->wait()) std::exit(1);
      }
    });
  };
  if (!device.load(fragment)) std::exit(1);
  once(false);
  std::vector<double> serial;
  std::vector<double> overlapped;
  for (int i = 0; i < 3; ++i) {
    serial.push_back(once(false));
    overlapped.push_back(once(true));
  }
  std::printf("{\"figure\": \"overlap\", \"serial_us\": %.0f, \"overlapped_us\": %.0f, \"ratio\": %.3f}\n",
              median(serial), median(overlapped), median(overlapped) / median(serial));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench-cuda PATH_OF_CUDA_PEER\n");
    return 2;
  }
  if (!why_no_gpu().empty()) {
    std::printf("skipped: bench-cuda: %s\n", why_no_gpu().c_str());
    return 0;
  }
  overhead();
  hand_over(argv[1]);
  overlap();
  return 0;
}
