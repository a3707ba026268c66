#include "kernels/cuda/gpu_results.h"

#include <utility>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/reader_thread.h"
#include "kernels/cuda/slab_reader.h"

namespace callboard::kernels::cuda {

namespace {

class LentResult final : public DeviceMemory {
 public:
  LentResult(std::shared_ptr<ReadableBlock> block, std::function<void()> let_go)
      : block_(std::move(block)), let_go_(std::move(let_go)) {}
  ~LentResult() override {
    block_.reset();
    let_go_();
  }
  LentResult(const LentResult&) = delete;
  LentResult& operator=(const LentResult&) = delete;

  int ordinal() const override { return block_->device(); }
  Status use_on(void* stream) override { return block_->used_on(static_cast<Stream>(stream)); }
  Status check() const override { return block_->check(); }

 private:
  std::shared_ptr<ReadableBlock> block_;
  const std::function<void()> let_go_;
};

class GpuResultsImpl final : public GpuResults {
 public:
  GpuResultsImpl(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health, std::unique_ptr<SlabReader> reader)
      : health_(std::move(health)),
        reader_(std::move(reader)),
        leases_(std::make_unique<ReaderThread>(runtime, *reader_)) {}

  Result<Opened> open(const CudaIpcBlock& block) override {
    auto found = reader_->open(block);
    if (!found) {
      leases_->wake()();  // the slab may be open all the same, with nobody to use it
      return fail(std::move(found).error());
    }
    std::shared_ptr<ReadableBlock> opened = std::move(*found);
    // Nobody may write to it; DeviceMemory says so.
    auto* data = static_cast<std::byte*>(const_cast<void*>(opened->data()));
    return Opened{data, std::make_shared<LentResult>(std::move(opened), leases_->wake())};
  }

  void owner_gone(const ActorId& owner) override {
    reader_->owner_gone(owner);
    leases_->wake()();
  }

 private:
  const std::shared_ptr<DeviceHealth> health_;
  const std::unique_ptr<SlabReader> reader_;
  const std::unique_ptr<ReaderThread> leases_;  // before the reader
};

}  // namespace

Result<std::vector<std::string>> visible_gpus(RuntimeTable& runtime) {
  DeviceHealth health("the GPUs of this process");
  int count = 0;
  CALLBOARD_TRY(health.note(runtime.device_count(&count), "cudaGetDeviceCount"));
  if (count == 0) {
    return fail(ErrorCode::kEnvironment, "no GPU is visible to this process", "look at CUDA_VISIBLE_DEVICES");
  }
  std::vector<std::string> gpus;
  for (int i = 0; i < count; ++i) {
    DeviceProperties properties;
    CALLBOARD_TRY(health.note(runtime.device_properties(i, &properties), "cudaGetDeviceProperties",
                              "device " + std::to_string(i)));
    gpus.push_back(properties.uuid.to_string());
  }
  return gpus;
}

Result<std::unique_ptr<GpuResults>> GpuResults::create(RuntimeTable& runtime, const ActorId& self, ReleaseFn release) {
  auto health = std::make_shared<DeviceHealth>("the GPUs of client " + self.to_string());
  SlabReaderOptions options;
  options.self = self;
  CALLBOARD_ASSIGN(auto reader, SlabReader::create(runtime, health, std::move(options), std::move(release)));
  return std::make_unique<GpuResultsImpl>(runtime, std::move(health), std::move(reader));
}

}  // namespace callboard::kernels::cuda
