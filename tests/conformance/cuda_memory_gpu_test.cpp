// The suite over the runtime that ships. Without a GPU each case says that it was skipped, and why.
#include <iostream>

#include "kernels/cuda/device_error.h"
#include "tests/conformance/cuda_memory_suite.h"

namespace callboard::kernels::cuda::conformance {

static std::optional<World> make_world() {
  int count = 0;
  const Code code = cuda_runtime().device_count(&count);
  if (code != kSuccess || count == 0) {
    std::cout << "SKIPPED: no GPU here: cudaGetDeviceCount gives " << code_info(code).name << " (" << code << "), "
              << count << " devices" << std::endl;
    return std::nullopt;
  }
  return World{&cuda_runtime(), {CALLBOARD_CUDA_PEER}, {}, {}};
}

}  // namespace callboard::kernels::cuda::conformance

CALLBOARD_CUDA_MEMORY_SUITE()
