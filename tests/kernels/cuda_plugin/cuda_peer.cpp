// The other process of an IPC hand-over. Reads handles, one a line, from stdin; answers each with "values", the sum of
// the elements, the first and the last one, and the time from handle to values; then with "released" and the number of
// each lease that it gives back. "test" and a handle is the test of the way: "tested", the path, what was read and what
// was wrong. What it finds wrong is "error" and the text. Ends with stdin.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/sum.h>

#include "kernels/device_backend.h"
#include "kernels/device_exchange.h"
#include "kernels/own_blocks.h"
#include "kernels/tensor_import.h"
#include "tests/kernels/cuda_plugin/handle_text_cuda.h"
#include "tests/kernels/support/gpu.h"
#include "tests/kernels/support/test_device.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {

std::mutex out;

template <class... Parts>
void say(const Parts&... parts) {
  std::lock_guard lock(out);
  (std::cout << ... << parts) << std::endl;
}

/// "-" where nothing was read.
void answer_test(DeviceExchange& exchange, const std::string& handle, StreamContext& stream) {
  const auto answer = exchange.answer_transport(std::get<CudaIpcBlock>(testing::from_line(handle).data), stream);
  if (!answer) return say("error ", answer.error().to_string());
  say("tested ", static_cast<int>(answer->path), ' ', answer->read.empty() ? "-" : testing::to_hex(answer->read), ' ',
      answer->problem);
}

int serve() {
  if (!testing::why_no_gpu().empty()) {
    say("error ", testing::why_no_gpu());
    return 1;
  }
  BackendOptions options;
  options.self = ActorId{"cuda1", 1};
  options.release = [](const ActorId&, LeaseId lease) { say("released ", lease); };
  auto backend = make_backend("cuda", options);
  if (!backend) {
    say("error ", backend.error().to_string());
    return 1;
  }
  auto stream = (*backend)->make_stream(StreamKind::kCompute);
  if (!stream) {
    say("error ", stream.error().to_string());
    return 1;
  }
  OwnBlocks own(testing::test_memory().arena, options.self);
  const TensorImporter importer(own, nullptr, **backend);
  const CurrentStreamGuard current(**stream);
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("test ")) {
      answer_test(*(*backend)->exchange(), line.substr(5), **stream);
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    auto value = importer.import(testing::from_line(line), stream->get());
    if (!value) {
      say("error ", value.error().to_string());
      continue;
    }
    at::Tensor tensor = value->toTensor();
    value = c10::IValue();
    const at::Tensor flat = tensor.reshape({-1});
    const double sum = at::sum(flat, at::kDouble).item<double>();
    const double first = flat[0].item<double>();
    const double last = flat[-1].item<double>();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    say("values ", sum, ' ', first, ' ', last, ' ', took.count());
    tensor = at::Tensor();  // flat still reads it
  }
  return 0;
}

}  // namespace

int main() {
  std::cout.precision(17);
  try {
    return serve();
  } catch (const std::exception& thrown) {
    say("error ", thrown.what());
    return 1;
  }
}
