// callboard_cuda_client.so: what a client opens that wants its results where GPU devices left them, and no other.
#include "kernels/cuda/gpu_results.h"
#include "kernels/cuda/runtime_table.h"

namespace {

using namespace callboard;
using namespace callboard::kernels::cuda;

Result<std::vector<std::string>> gpus() { return visible_gpus(cuda_runtime()); }

Result<std::unique_ptr<GpuResults>> create(const ActorId& self, GpuResults::ReleaseFn release) {
  return GpuResults::create(cuda_runtime(), self, std::move(release));
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const ClientPlugin callboard_client_plugin;
const ClientPlugin callboard_client_plugin{kClientPluginBuild.data(), gpus, create};
}
