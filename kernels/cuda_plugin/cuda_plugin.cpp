// callboard_cuda.so: what a `kind: cuda` device opens, and no other.
#include <torch/version.h>

#include "kernels/cuda_plugin/cuda_backend.h"
#include "kernels/cuda_plugin/cuda_helper.h"
#include "kernels/plugin.h"

namespace {

using namespace callboard;
using namespace callboard::kernels;

Status start(const PluginHost& host) {
  host.register_backend("cuda", make_cuda_backend);
  host.register_guest("cuda", make_cuda_guest);
  return {};
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const PluginEntry callboard_plugin_cuda;
const PluginEntry callboard_plugin_cuda{kPluginBuild.data(), TORCH_VERSION, start, list_gpus};
}
