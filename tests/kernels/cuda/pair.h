// An exporter and a reader, two simulated processes on one fake machine, with what the memory lane does between them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/slab_pool.h"
#include "kernels/cuda/slab_reader.h"
#include "tests/kernels/cuda/fake_runtime.h"
#include "tests/support/test.h"

namespace callboard::kernels::cuda::testing {

constexpr std::uint64_t kMiB = 1u << 20;
inline const ActorId kExporter{"cuda0", 1};
inline const ActorId kReader{"cuda1", 1};

/// What one process has.
struct Side {
  explicit Side(std::shared_ptr<FakeMachine> machine, std::vector<int> visible = {})
      : runtime(std::make_unique<FakeRuntime>(std::move(machine), std::move(visible))) {
    REQUIRE(runtime->stream_create(&stream) == kSuccess);
  }
  std::unique_ptr<FakeRuntime> runtime;
  std::shared_ptr<DeviceHealth> health = std::make_shared<DeviceHealth>("fake");
  Stream stream = nullptr;
};

inline SlabPoolOptions small_slabs() {
  SlabPoolOptions options;
  options.owner = kExporter;
  options.slab_bytes = 8 * kMiB;
  options.spare_bytes = 0;
  return options;
}

struct Exporter : Side {
  explicit Exporter(std::shared_ptr<FakeMachine> machine, SlabPoolOptions options = small_slabs(),
                    std::vector<int> visible = {})
      : Side(std::move(machine), std::move(visible)) {
    auto made = SlabPool::create(*runtime, health, std::move(options));
    REQUIRE(made);
    pool = *made;
  }
  std::byte* allocate(std::uint64_t bytes) { return static_cast<std::byte*>(pool->allocate(bytes, stream).value()); }
  /// Queues on the stream that the block gets these bytes.
  void fill(void* pointer, const std::string& bytes) {
    kept.push_back(std::make_unique<std::string>(bytes));
    REQUIRE(runtime->memcpy_async(pointer, kept.back()->data(), bytes.size(), stream) == kSuccess);
  }
  CudaIpcBlock lease(const void* pointer, std::uint64_t bytes, std::shared_ptr<void> keep = {},
                     const ActorId& holder = kReader) {
    return pool->lease(pointer, bytes, holder, stream, std::move(keep)).value();
  }
  std::vector<std::unique_ptr<std::string>> kept;  ///< copies read it when they run
  std::shared_ptr<SlabPool> pool;
};

struct Reader : Side {
  Reader(std::shared_ptr<FakeMachine> machine, Exporter& from, SlabReaderOptions options = {},
         std::vector<int> visible = {})
      : Side(std::move(machine), std::move(visible)) {
    if (options.self.name.empty()) options.self = kReader;
    auto made =
        SlabReader::create(*runtime, health, std::move(options), [this, &from](const ActorId& owner, LeaseId lease) {
          CHECK(owner == kExporter);
          released.push_back(lease & ~kKeepsSlabOpen);
          if (deliver) from.pool->release(lease);
        });
    REQUIRE(made);
    reader = std::move(*made);
  }
  /// Copies on the stream, waits for it.
  std::string read(const ReadableBlock& block) {
    std::string bytes(block.bytes(), '?');
    REQUIRE(runtime->memcpy_async(bytes.data(), block.data(), bytes.size(), stream) == kSuccess);
    REQUIRE(runtime->stream_synchronize(stream) == kSuccess);
    return bytes;
  }
  std::vector<LeaseId> released;
  bool deliver = true;                 ///< releases reach the exporter at once
  std::unique_ptr<SlabReader> reader;  ///< releases until its end
};

inline ErrorCode code_of(const Status& status) { return status ? ErrorCode::kOk : status.error().code; }
template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

}  // namespace callboard::kernels::cuda::testing
