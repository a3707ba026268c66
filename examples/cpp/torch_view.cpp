// A C++ program that uses LibTorch itself: its tensors go to the cluster and results come back, both without a copy of
// ours where the memory allows it.
//     example-torch-view CLUSTER
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>

#include "actors/client/client.h"
#include "actors/client/fragment_builder.h"
#include "kernels/client_tensor.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

Status run(const std::string& cluster) {
  CALLBOARD_ASSIGN(const std::unique_ptr<Client> client, Client::connect({.cluster = cluster}));
  FragmentBuilder builder("twice");
  CALLBOARD_ASSIGN(const Expr count, builder.symbol("count", 1));
  const std::vector<Expr> sizes{count};
  CALLBOARD_ASSIGN(const ValueId x, builder.add_tensor_input("x", DType::kFloat32, sizes));
  const ValueSpec result{"", ValueKind::kTensor, DType::kFloat32, sizes};
  CALLBOARD_ASSIGN(const ValueId y, builder.call("aten::add.Tensor", {ArgValue{x}, ArgValue{x}}, result));
  CALLBOARD_TRY(builder.add_output("y", y));
  CALLBOARD_ASSIGN(ProgramGraph graph, builder.finish());
  CALLBOARD_ASSIGN(const std::shared_ptr<Program> program, client->load(std::move(graph), {}, Placement{}));

  const at::Tensor numbers = at::arange(100'000, at::kFloat);
  CALLBOARD_ASSIGN(const TensorRef input, kernels::to_ref(numbers));
  const std::vector<ClientValue> inputs{input};
  CALLBOARD_ASSIGN(const std::shared_ptr<Future> future, program->submit(inputs));
  CALLBOARD_ASSIGN(const std::shared_ptr<const RequestResult> outcome, future->get());
  CALLBOARD_ASSIGN(const at::Tensor doubled, kernels::to_tensor(std::get<TensorRef>(outcome->outputs[0])));
  const bool equal = doubled.equal(at::add(numbers, numbers));
  std::printf("%s\n", equal ? "equal" : "different");
  return equal ? Status() : fail(ErrorCode::kOutputMismatch, "the device computed something else than this process");
}

}  // namespace

int main(int argc, char** argv) {
  const Status status = run(argc > 1 ? argv[1] : "");
  if (status) return 0;
  std::fprintf(stderr, "example-torch-view: %s\n", status.error().to_string().c_str());
  return 1;
}
