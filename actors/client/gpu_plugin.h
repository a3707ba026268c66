// The plug-in by which a client opens results that lie on GPUs.
#pragma once

#include <string>

#include "kernels/cuda/gpu_results.h"
#include "messages/base/error.h"

namespace callboard::actors {

/// Opens callboard_cuda_client.so in `folder` (empty: beside this program), for good. Opening it twice does nothing.
/// kEnvironment, naming the file and what is missing: not built, a library that it needs, another build. Any thread.
Result<const kernels::cuda::ClientPlugin*> load_gpu_plugin(const std::string& folder);

}  // namespace callboard::actors
