// Tests that need a GPU. A test says so first thing: CALLBOARD_NEEDS_GPU(). Where there is none it is skipped, which it
// prints; where CALLBOARD_REQUIRE_GPU is set (tools/gpu_check, once it has found one) it fails instead.
#pragma once

#include <string>

namespace callboard::testing {

/// Opens the CUDA plug-in. Empty where this process can use a GPU, else why not.
const std::string& why_no_gpu();
/// Opens the plug-in's own test operators, kernels/cuda_plugin's cbgpu::spin and cbgpu::trap. Throws where it cannot.
void load_gpu_operators();
/// Prints that the running test is skipped and why.
void tell_skipped(const std::string& test);

}  // namespace callboard::testing

#define CALLBOARD_NEEDS_GPU()                                                             \
  do {                                                                                    \
    if (!::callboard::testing::why_no_gpu().empty()) {                                    \
      ::callboard::testing::tell_skipped(Catch::getResultCapture().getCurrentTestName()); \
      SUCCEED("skipped");                                                                 \
      return;                                                                             \
    }                                                                                     \
  } while (false)
