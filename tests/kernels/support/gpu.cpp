#include "tests/kernels/support/gpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "kernels/plugin.h"
#include "kernels/runtime.h"

namespace callboard::testing {

const std::string& why_no_gpu() {
  static const std::string why = []() -> std::string {
    const auto plugin = kernels::load_plugin("cuda", CALLBOARD_PLUGIN_DIR);
    if (!plugin) return plugin.error().message;
    const auto devices = kernels::probe_devices("cuda");
    return devices ? "" : devices.error().message;
  }();
  return why;
}

void load_gpu_operators() {
  static void* const opened = ::dlopen(CALLBOARD_PLUGIN_DIR "/callboard_cuda_testing.so", RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr) throw std::runtime_error(::dlerror());
}

void tell_skipped(const std::string& test) {
  if (std::getenv("CALLBOARD_REQUIRE_GPU") != nullptr) {
    throw std::runtime_error("a GPU is required (CALLBOARD_REQUIRE_GPU is set): " + why_no_gpu());
  }
  std::printf("skipped: %s: %s\n", test.c_str(), why_no_gpu().c_str());
  std::fflush(stdout);
}

}  // namespace callboard::testing
