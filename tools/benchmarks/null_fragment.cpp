// The round trip of a fragment without operators, from C++: one float in, the same float out, through coordinator and
// device actor.   bench-null-fragment CLUSTER COUNT   prints {"p50_us": …, "p99_us": …}
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/client.h"

namespace {

using callboard::Error;
using callboard::actors::Client;
using callboard::actors::ClientValue;
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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench-null-fragment CLUSTER COUNT\n");
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
  std::vector<double> times;
  const int warm = count / 10;
  for (int i = 0; i < count + warm; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto future = (*program)->submit(inputs);
    if (!future) return complain(future.error());
    auto result = (*future)->get();
    if (!result) return complain(result.error());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    const auto& y = std::get<TensorRef>((*result)->outputs.at(0));
    float value = 0;
    std::memcpy(&value, y.data, sizeof value);
    if (value != x) {
      std::fprintf(stderr, "bench-null-fragment: wrong result\n");
      return 1;
    }
    if (i >= warm) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"p50_us\": %.3f, \"p99_us\": %.3f}\n", times[times.size() / 2], times[times.size() * 99 / 100]);
  return 0;
}
