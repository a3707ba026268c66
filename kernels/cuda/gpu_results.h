// Results that were left on a GPU, as a client reads them. No LibTorch: a client gets an address, and whoever it is for
// makes a tensor of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/runtime_table.h"
#include "messages/base/ids.h"
#include "messages/tensor_handle.h"
#include "messages/tensor_ref.h"

namespace callboard::kernels::cuda {

/// Thread-safe. What it opened may outlive it.
class GpuResults {
 public:
  using ReleaseFn = std::function<void(const ActorId& owner, LeaseId lease)>;
  /// Waits for the reads that are under way and gives all leases back.
  virtual ~GpuResults() = default;
  /// `release` takes a lease to its owner; any thread, must not block, and must live as long as anything opened here.
  /// kEnvironment, kDeviceFailed.
  static Result<std::unique_ptr<GpuResults>> create(RuntimeTable& runtime, const ActorId& self, ReleaseFn release);

  struct Opened {
    std::byte* data = nullptr;  ///< of the block, in the GPU's memory
    std::shared_ptr<DeviceMemory> memory;
  };
  /// The lease ends with the last owner of `memory` and what its streams had been given by then, or at once if this
  /// fails: kTensorLost, kMalformed, kUnsupported (the GPU is not visible, or this process cannot open its memory),
  /// kOutOfMemory, kDeviceFailed. Makes the GPU's context in this process the first time, which takes some 100 ms.
  virtual Result<Opened> open(const CudaIpcBlock& block) = 0;
  /// Its process has ended: what it lent is lost.
  virtual void owner_gone(const ActorId& owner) = 0;
};

/// "GPU-…" of those that this process sees, by ordinal; at least one. Makes no context. kEnvironment: why there is
/// none.
Result<std::vector<std::string>> visible_gpus(RuntimeTable& runtime);

/// What `callboard_client_plugin`, the one symbol that callboard_cuda_client.so exports, points to.
struct ClientPlugin {
  const char* build = nullptr;                           ///< kClientPluginBuild of its sources
  Result<std::vector<std::string>> (*gpus)() = nullptr;  ///< visible_gpus()
  Result<std::unique_ptr<GpuResults>> (*create)(const ActorId& self, GpuResults::ReleaseFn release) = nullptr;
};
/// Changes with every change of what crosses between a client and the plug-in.
constexpr std::string_view kClientPluginBuild = "callboard-cuda-client-1";

}  // namespace callboard::kernels::cuda
