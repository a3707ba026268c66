// callboard_python.so: what a device with an inline GIL domain opens, and no other.
#include <torch/version.h>

#include "kernels/plugin.h"
#include "kernels/python/inline_domain.h"

namespace {

using namespace callboard;
using namespace callboard::kernels;

Status start(const PluginHost& host) {
  host.register_gil_domain(make_inline_domain);
  return {};
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const PluginEntry callboard_plugin_python;
const PluginEntry callboard_plugin_python{kPluginBuild.data(), TORCH_VERSION, start, nullptr};
}
