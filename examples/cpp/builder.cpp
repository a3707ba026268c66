// A program made in C++ and run on a cluster: no Python, no LibTorch in this process.
//     callboard up --detach examples/two_cpu.yaml && example-builder two-cpu
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "actors/client/client.h"
#include "actors/client/fragment_builder.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

/// y = relu(x @ weight) for any number of rows, on the first device.
Status run(const std::string& cluster) {
  CALLBOARD_ASSIGN(const std::unique_ptr<Client> client, Client::connect({.cluster = cluster}));

  std::vector<float> weight = {1, 0, -1, 2, 0, 1};  // 2 x 3
  FragmentBuilder builder("relu-of-product");
  CALLBOARD_ASSIGN(const Expr rows, builder.symbol("rows", 1, 1'000));
  CALLBOARD_ASSIGN(const ValueId x,
                   builder.add_tensor_input("x", DType::kFloat32, std::vector<Expr>{rows, Expr::constant(2)}));
  CALLBOARD_ASSIGN(const ValueId w,
                   builder.add_constant("weight", {weight.data(), weight.size() * sizeof(float), nullptr},
                                        TensorMeta::contiguous(DType::kFloat32, {2, 3})));
  const ValueSpec result{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{rows, Expr::constant(3)}};
  CALLBOARD_ASSIGN(const ValueId product, builder.call("aten::mm", {ArgValue{x}, ArgValue{w}}, result));
  CALLBOARD_ASSIGN(const ValueId y, builder.call("aten::relu", {ArgValue{product}}, result));
  CALLBOARD_TRY(builder.add_output("y", y));
  CALLBOARD_ASSIGN(ProgramGraph graph, builder.finish());
  CALLBOARD_ASSIGN(const std::shared_ptr<Program> program,
                   client->load(std::move(graph), builder.constants(), Placement{}));

  // An argument in memory that the device can read as it lies; any other memory would be copied once.
  CALLBOARD_ASSIGN(TensorRef input, client->allocate(TensorMeta::contiguous(DType::kFloat32, {2, 2})));
  const float values[] = {1, 2, -3, 4};
  std::memcpy(input.data, values, sizeof values);
  const std::vector<ClientValue> inputs{input};
  CALLBOARD_ASSIGN(const std::shared_ptr<Future> future,
                   program->submit(inputs, {.deadline = std::chrono::seconds(10)}));
  CALLBOARD_ASSIGN(const std::shared_ptr<const RequestResult> outcome, future->get());

  const auto& output = std::get<TensorRef>(outcome->outputs[0]);
  const auto* numbers = reinterpret_cast<const float*>(output.data) + output.meta.storage_offset;
  std::printf("%s\n", output.meta.to_string().c_str());
  for (std::int64_t row = 0; row < output.meta.sizes[0]; ++row) {
    const float* line = numbers + row * output.meta.strides[0];
    std::printf("%g %g %g\n", line[0], line[1], line[2]);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "");
  if (status) return 0;
  std::fprintf(stderr, "example-builder: %s\n", status.error().to_string().c_str());
  return 1;
}
