// Runs a program that Python has saved (program.save("model.safetensors")), with no Python and no LibTorch in this
// process. Inputs are filled with ones, sizes that the program leaves open are 2.
//     example-saved-program CLUSTER FILE
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "actors/client/client.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

constexpr std::int64_t kOpenSize = 2;

Result<TensorRef> ones(Client& client, const ProgramGraph& graph, const ValueSpec& spec) {
  if (spec.kind != ValueKind::kTensor || !spec.sizes) {
    return fail(ErrorCode::kUnsupported, "this example makes tensors of known rank only, not '" + spec.name + "'");
  }
  std::vector<std::int64_t> symbols;
  for (const SymbolSpec& symbol : graph.symbols) symbols.push_back(std::max(kOpenSize, symbol.min));
  std::vector<std::int64_t> sizes;
  for (const Expr& size : *spec.sizes) {
    CALLBOARD_ASSIGN(const std::int64_t value, size.evaluate(symbols));
    sizes.push_back(value);
  }
  CALLBOARD_ASSIGN(TensorRef tensor, client.allocate(TensorMeta::contiguous(spec.dtype, sizes)));
  const auto count = static_cast<std::size_t>(tensor.meta.numel());
  if (spec.dtype == DType::kFloat32) {
    std::fill_n(reinterpret_cast<float*>(tensor.data), count, 1.0F);
  } else if (spec.dtype == DType::kInt64) {
    std::fill_n(reinterpret_cast<std::int64_t*>(tensor.data), count, std::int64_t{1});
  } else {
    return fail(ErrorCode::kUnsupported, "this example fills float32 and int64 only");
  }
  return tensor;
}

Status run(const std::string& cluster, const std::string& path) {
  CALLBOARD_ASSIGN(const std::unique_ptr<Client> client, Client::connect({.cluster = cluster}));
  CALLBOARD_ASSIGN(SavedProgram saved, load_program_file(path));
  CALLBOARD_ASSIGN(const std::shared_ptr<Program> program,
                   client->load(std::move(saved.graph), saved.constants, saved.placement));
  std::vector<ClientValue> inputs;
  for (const ProgramInput& input : program->graph().inputs) {
    CALLBOARD_ASSIGN(TensorRef tensor, ones(*client, program->graph(), program->graph().values[input.value]));
    inputs.emplace_back(std::move(tensor));
  }
  CALLBOARD_ASSIGN(const std::shared_ptr<Future> future, program->submit(inputs));
  CALLBOARD_ASSIGN(const std::shared_ptr<const RequestResult> outcome, future->get());
  for (const ClientValue& value : outcome->outputs) {
    const auto* tensor = std::get_if<TensorRef>(&value);
    if (tensor == nullptr) continue;
    double sum = 0;
    if (tensor->meta.dtype == DType::kFloat32 && tensor->meta.is_contiguous()) {
      const auto* numbers = reinterpret_cast<const float*>(tensor->data) + tensor->meta.storage_offset;
      for (std::int64_t i = 0; i < tensor->meta.numel(); ++i) sum += numbers[i];
    }
    std::printf("%s sum %.6f\n", tensor->meta.to_string().c_str(), sum);
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: example-saved-program CLUSTER FILE\n");
    return 2;
  }
  const Status status = run(argv[1], argv[2]);
  if (status) return 0;
  std::fprintf(stderr, "example-saved-program: %s\n", status.error().to_string().c_str());
  return 1;
}
