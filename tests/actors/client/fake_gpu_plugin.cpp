// A client's plug-in without CUDA: "GPU memory" is the heap, filled with a letter. One GPU, or none where
// CALLBOARD_TEST_NO_GPU is set.
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_results.h"

namespace {

using namespace callboard;
using namespace callboard::kernels::cuda;

class FakeGpuMemory final : public DeviceMemory {
 public:
  FakeGpuMemory(const CudaIpcBlock& block, GpuResults::ReleaseFn release)
      : bytes_(block.bytes, std::byte{'g'}), owner_(block.owner), lease_(block.lease), release_(std::move(release)) {}
  ~FakeGpuMemory() override { release_(owner_, lease_); }
  FakeGpuMemory(const FakeGpuMemory&) = delete;
  FakeGpuMemory& operator=(const FakeGpuMemory&) = delete;
  int ordinal() const override { return 3; }
  Status use_on(void*) override { return {}; }
  Status check() const override { return {}; }
  std::byte* data() { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
  const ActorId owner_;
  const LeaseId lease_;
  const GpuResults::ReleaseFn release_;
};

class FakeGpuResults final : public GpuResults {
 public:
  explicit FakeGpuResults(ReleaseFn release) : release_(std::move(release)) {}
  Result<Opened> open(const CudaIpcBlock& block) override {
    auto memory = std::make_shared<FakeGpuMemory>(block, release_);
    std::byte* data = memory->data();
    return Opened{data, std::move(memory)};
  }
  void owner_gone(const ActorId&) override {}

 private:
  const ReleaseFn release_;
};

Result<std::vector<std::string>> gpus() {
  if (std::getenv("CALLBOARD_TEST_NO_GPU") != nullptr) return fail(ErrorCode::kEnvironment, "the driver is on holiday");
  return std::vector<std::string>{"GPU-fake"};
}
Result<std::unique_ptr<GpuResults>> create(const ActorId&, GpuResults::ReleaseFn release) {
  return std::make_unique<FakeGpuResults>(std::move(release));
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) extern const ClientPlugin callboard_client_plugin;
const ClientPlugin callboard_client_plugin{kClientPluginBuild.data(), gpus, create};
}
