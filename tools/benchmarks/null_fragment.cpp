// The round trip of a fragment without operators, from C++: one float in, the same float out, through coordinator and
// device actor.   bench-null-fragment CLUSTER COUNT             one after the other: {"p50_us": …, "p99_us": …}
//                 bench-null-fragment CLUSTER COUNT IN_FLIGHT   a window of so many:  {"per_second": …}
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/client.h"

namespace {

using callboard::Error;
using callboard::actors::Client;
using callboard::actors::ClientValue;
using callboard::actors::Future;
using callboard::actors::TensorRef;

callboard::ProgramGraph null_program() {
  callboard::ProgramGraph graph;
  graph.name = "null";
  callboard::ValueSpec spec;
  spec.name = "x";
  spec.dtype = callboard::DType::kFloat32;
  spec.sizes = std::vector<callboard::Expr>{callboard::Expr::constant(1)};
  graph.values.push_back(spec);
  graph.inputs.push_back({"x", 0});
  graph.outputs.push_back({"x", callboard::ArgValue{0}});
  return graph;
}

int complain(const Error& error) {
  std::fprintf(stderr, "bench-null-fragment: %s\n", error.to_string().c_str());
  return 1;
}

/// Waits for the result and compares it; 0 or an exit code.
int take(Future& future, float expected) {
  auto result = future.get();
  if (!result) return complain(result.error());
  const auto& y = std::get<TensorRef>((*result)->outputs.at(0));
  float value = 0;
  std::memcpy(&value, y.data + static_cast<std::size_t>(y.meta.storage_offset) * sizeof value, sizeof value);
  if (value == expected) return 0;
  std::fprintf(stderr, "bench-null-fragment: wrong result\n");
  return 1;
}

template <class Submit>
int pipelined(const Submit& submit, float expected, int count, int in_flight) {
  std::deque<std::shared_ptr<Future>> window;
  auto begin = std::chrono::steady_clock::now();
  const int warm = std::max(in_flight, count / 10);
  for (int i = 0; i < count + warm; ++i) {
    if (i == warm) begin = std::chrono::steady_clock::now();
    if (window.size() == static_cast<std::size_t>(in_flight)) {
      if (const int bad = take(*window.front(), expected)) return bad;
      window.pop_front();
    }
    auto future = submit();
    if (!future) return complain(future.error());
    window.push_back(std::move(*future));
  }
  for (const auto& future : window) {
    if (const int bad = take(*future, expected)) return bad;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("{\"per_second\": %.0f}\n", static_cast<double>(count + in_flight) / took.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: bench-null-fragment CLUSTER COUNT [IN_FLIGHT]\n");
    return 2;
  }
  const int count = std::max(10, std::atoi(argv[2]));
  Client::Options options;
  options.cluster = argv[1];
  auto client = Client::connect(options);
  if (!client) return complain(client.error());
  auto program = (*client)->load(null_program(), {}, callboard::Placement{});
  if (!program) return complain(program.error());
  float x = 1.5F;
  TensorRef tensor;
  tensor.meta = callboard::TensorMeta::contiguous(callboard::DType::kFloat32, {1});
  tensor.data = reinterpret_cast<std::byte*>(&x);
  tensor.bytes = sizeof x;
  const std::vector<ClientValue> inputs{tensor};
  const auto submit = [&] { return (*program)->submit(inputs); };
  if (argc == 4) return pipelined(submit, x, count, std::max(1, std::atoi(argv[3])));
  std::vector<double> times;
  const int warm = count / 10;
  for (int i = 0; i < count + warm; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto future = submit();
    if (!future) return complain(future.error());
    if (const int bad = take(**future, x)) return bad;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= warm) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"p50_us\": %.3f, \"p99_us\": %.3f}\n", times[times.size() / 2], times[times.size() * 99 / 100]);
  return 0;
}
