#include "kernels/cuda_plugin/cuda_backend.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <nlohmann/json.hpp>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda_plugin/cuda_capture.h"
#include "kernels/cuda_plugin/cuda_exchange.h"
#include "kernels/cuda_plugin/cuda_lending.h"
#include "kernels/cuda_plugin/cuda_stream.h"

namespace callboard::kernels {

namespace {

/// The oldest that this build has machine code for.
constexpr int kCapabilityMajorMin = 8;

std::string capability_of(const cuda::DeviceProperties& gpu) {
  return std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
}

Error no_gpu(cudaError_t code) {
  const std::string said = std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ")";
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  if (driver == 0) {
    return Error(ErrorCode::kEnvironment, "no NVIDIA driver is here: " + said,
                 "install the driver, or give the container the GPU (libcuda.so.1 is not found)");
  }
  if (code == cudaErrorInsufficientDriver) {
    return Error(
        ErrorCode::kEnvironment,
        "the NVIDIA driver is for CUDA " + version(driver) + ", this program needs " + version(runtime) + ": " + said,
        "update the driver");
  }
  return Error(ErrorCode::kEnvironment, "no GPU can be used: " + said,
               code == cudaErrorNoDevice ? "look at CUDA_VISIBLE_DEVICES, and at /dev/nvidia* in a container" : "");
}

Result<std::vector<cuda::DeviceProperties>> find_gpus() {
  int count = 0;
  cudaError_t done = cudaGetDeviceCount(&count);
  if (done == cudaSuccess && count == 0) done = cudaErrorNoDevice;
  if (done != cudaSuccess) {
    cudaGetLastError();
    return fail(no_gpu(done));
  }
  std::vector<cuda::DeviceProperties> found(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const cuda::Code code = cuda::cuda_runtime().device_properties(i, &found[static_cast<std::size_t>(i)]);
    if (code != cuda::kSuccess) return fail(no_gpu(static_cast<cudaError_t>(code)));
  }
  return found;
}

/// "GPU-" or "MIG-" and the digits, which may be written in either case.
bool same_uuid(std::string_view given, std::string_view found) {
  if (given.size() != found.size() || given.size() < 4) return false;
  const auto lower = [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; };
  for (std::size_t i = 4; i < given.size(); ++i) {
    if (lower(given[i]) != lower(found[i])) return false;
  }
  return true;
}

Result<int> choose(const BackendOptions& options, const std::vector<cuda::DeviceProperties>& gpus) {
  std::string list;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    list += (i == 0 ? "" : "; ") + std::to_string(i) + ": " + gpus[i].name + " (" + gpus[i].uuid.to_string() + ")";
    if (options.uuid.empty() ? i == options.index : same_uuid(options.uuid, gpus[i].uuid.to_string()))
      return static_cast<int>(i);
  }
  const std::string wanted = options.uuid.empty() ? std::to_string(options.index) : options.uuid;
  return fail(ErrorCode::kEnvironment,
              "there is no GPU " + wanted + "; " + std::to_string(gpus.size()) +
                  (gpus.size() == 1 ? " GPU is here" : " GPUs are here"),
              list);
}

class CudaBackend final : public DeviceBackend {
 public:
  /// Throws c10::Error.
  CudaBackend(int index, cuda::DeviceProperties facts, std::unique_ptr<CudaExchange> exchange)
      : index_(static_cast<c10::DeviceIndex>(index)),
        facts_(std::move(facts)),
        exchange_(std::move(exchange)),
        graph_pool_(at::cuda::MemPool::graph_pool_handle()),
        graph_pool_use_(index_, graph_pool_),
        events_(std::make_shared<CudaEventPool>(
            CudaShared{index_, cuda::cuda_runtime(), exchange_->health_record(), exchange_->lending(), graph_pool_})) {
    graph_pool_use_.begin([](cudaStream_t) { return false; });
    graph_pool_use_.end();  // no more allocations; the use stays, or captured work could not come and go
  }

  std::string_view kind() const override { return "cuda"; }
  c10::Device device() const override { return {c10::DeviceType::CUDA, index_}; }

  Result<std::unique_ptr<StreamContext>> make_stream(StreamKind kind) override {
    return CudaStream::create(kind, events_);
  }

  Result<DeviceMemory> memory() const override {
    cuda::DeviceHealth& health = *exchange_->health_record();
    const cuda::CurrentDeviceGuard guard(cuda::cuda_runtime(), health, index_);
    CALLBOARD_TRY(guard.status());
    cuda::MemoryInfo info;
    CALLBOARD_TRY(health.note(cuda::cuda_runtime().mem_get_info(&info), "cudaMemGetInfo"));
    return DeviceMemory{info.total_bytes, info.free_bytes};
  }

  /// What the CPU side of an operator uses, for instance sorting indices.
  void set_intra_op_threads(int threads) override { at::set_num_threads(threads); }

  bool can_run(const std::string& name, const std::string& overload) const override {
    using c10::DispatchKey;
    static constexpr std::array kKeys = {DispatchKey::CUDA, DispatchKey::SparseCUDA, DispatchKey::SparseCsrCUDA,
                                         DispatchKey::QuantizedCUDA, DispatchKey::NestedTensorCUDA};
    const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!handle) return false;
    for (const DispatchKey key : kKeys) {
      if (handle->hasComputedKernelForDispatchKey(key)) return true;
    }
    return handle->hasKernelForDispatchKey(DispatchKey::BackendSelect);
  }

  DeviceExchange* exchange() override { return exchange_.get(); }
  bool release_cached_memory() override { return exchange_->lending().release_cached(); }

  Status health() const override { return exchange_->look_after_device(); }

  std::string describe() const override {
    const auto memory_now = memory();
    return nlohmann::json({{"index", index_},
                           {"uuid", facts_.uuid.to_string()},
                           {"name", facts_.name},
                           {"compute_capability", capability_of(facts_)},
                           {"memory_bytes", facts_.total_bytes},
                           {"memory_available_bytes", memory_now ? memory_now->available_bytes : 0},
                           {"exchange", nlohmann::json::parse(exchange_->stats_json(), nullptr, false)}})
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  const c10::DeviceIndex index_;
  const cuda::DeviceProperties facts_;
  const std::unique_ptr<CudaExchange> exchange_;
  const c10::MempoolId_t graph_pool_;
  GraphPoolUse graph_pool_use_;
  const std::shared_ptr<CudaEventPool> events_;
};

}  // namespace

Result<std::string> list_gpus() {
  CALLBOARD_ASSIGN(const std::vector<cuda::DeviceProperties> gpus, find_gpus());
  auto list = nlohmann::json::array();
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    list.push_back({{"index", i},
                    {"uuid", gpus[i].uuid.to_string()},
                    {"name", gpus[i].name},
                    {"compute_capability", capability_of(gpus[i])},
                    {"memory_bytes", gpus[i].total_bytes}});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

struct OpenedGpu {
  int index = 0;
  cuda::DeviceProperties facts;
};

Error cannot_use(const OpenedGpu& gpu, const std::string& why) {
  return Error(ErrorCode::kEnvironment,
               "LibTorch cannot use GPU " + std::to_string(gpu.index) + " (" + gpu.facts.name + "): " + why);
}

Result<OpenedGpu> open_chosen(const BackendOptions& options) {
  CALLBOARD_ASSIGN(const std::vector<cuda::DeviceProperties> gpus, find_gpus());
  CALLBOARD_ASSIGN(const int index, choose(options, gpus));
  const cuda::DeviceProperties& facts = gpus[static_cast<std::size_t>(index)];
  if (facts.major < kCapabilityMajorMin) {
    return fail(ErrorCode::kEnvironment,
                "GPU " + std::to_string(index) + " (" + facts.name + ") has compute capability " +
                    capability_of(facts) + "; this build has code for " + std::to_string(kCapabilityMajorMin) +
                    ".0 and above",
                "use a GPU of the Ampere generation or a later one");
  }
  cudaError_t done = cudaSetDevice(index);
  // Whoever waits inside the driver parks there. Refused where something has made the context already; ours park
  // anyway.
  if (done == cudaSuccess && cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) cudaGetLastError();
  if (done == cudaSuccess) done = cudaFree(nullptr);  // makes the context: what is wrong with the device shows here
  if (done != cudaSuccess) {
    forgotten(done);
    return fail(ErrorCode::kEnvironment, "GPU " + std::to_string(index) + " (" + facts.name + ") cannot be used: " +
                                             cudaGetErrorString(done) + " (" + cudaGetErrorName(done) + ")");
  }
  const OpenedGpu gpu{index, facts};
  try {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  } catch (const c10::Error& thrown) {
    return fail(cannot_use(gpu, thrown.what_without_backtrace()));
  }
  return gpu;
}

}  // namespace

Result<int> open_gpu(const BackendOptions& options) {
  CALLBOARD_ASSIGN(const OpenedGpu gpu, open_chosen(options));
  return gpu.index;
}

Result<std::unique_ptr<DeviceBackend>> make_cuda_backend(const BackendOptions& options) {
  CALLBOARD_ASSIGN(const OpenedGpu gpu, open_chosen(options));
  try {
    CALLBOARD_ASSIGN(auto exchange, CudaExchange::create(static_cast<c10::DeviceIndex>(gpu.index), options));
    return std::make_unique<CudaBackend>(gpu.index, gpu.facts, std::move(exchange));
  } catch (const c10::Error& thrown) {
    return fail(cannot_use(gpu, thrown.what_without_backtrace()));
  }
}

}  // namespace callboard::kernels
