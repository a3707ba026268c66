#include "kernels/cuda_plugin/cuda_helper.h"

#include <atomic>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/cuda/helper_guest.h"
#include "kernels/cuda/helper_room.h"
#include "kernels/cuda/runtime_table.h"
#include "kernels/cuda_plugin/cuda_backend.h"

namespace callboard::kernels {

namespace {

/// What a child's allocator keeps for its next call beyond what is in use.
constexpr std::int64_t kIdleBytesMax = 256 << 20;

/// Not resizable: what it lies in is another process's to cut up.
c10::Storage device_storage(std::shared_ptr<std::byte> memory, std::uint64_t bytes, c10::Device device) {
  std::byte* const data = memory.get();
  auto* const held = new std::shared_ptr<std::byte>(std::move(memory));
  c10::DataPtr pointer(
      data, held, [](void* context) { delete static_cast<std::shared_ptr<std::byte>*>(context); }, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer), nullptr, /*resizable=*/false);
}

Result<cuda::IpcEventHandle> event_of(const std::string& raw) {
  cuda::IpcEventHandle handle;
  if (raw.size() != handle.bytes.size()) {
    return fail(ErrorCode::kMalformed, "an event of " + std::to_string(raw.size()) + " bytes came with a call");
  }
  std::memcpy(handle.bytes.data(), raw.data(), raw.size());
  return handle;
}
std::string raw_of(const cuda::IpcEventHandle& handle) { return {handle.bytes.data(), handle.bytes.size()}; }

class CudaRoom final : public DeviceRoom {
 public:
  CudaRoom(std::unique_ptr<cuda::HelperRoom> room, int device)
      : room_(std::move(room)), device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)) {}

  Result<CudaIpcBlock> lend(const c10::Storage& storage) override {
    return room_->lend(storage.data(), storage.nbytes(), std::make_shared<c10::Storage>(storage));
  }
  Result<CudaIpcBlock> grant(std::uint64_t bytes) override { return room_->grant(bytes); }
  Result<std::string> begin_call() override {
    CALLBOARD_ASSIGN(const cuda::IpcEventHandle order, room_->begin_call());
    return raw_of(order);
  }
  std::vector<DomainPlace> take_let_go() override {
    std::vector<DomainPlace> places;
    for (const cuda::SlabPlace& gone : room_->take_let_go()) {
      places.push_back({{}, gone.slab, gone.offset, gone.bytes, false, true});
    }
    return places;
  }
  Status end_call(const DeviceAnswer& answer) override {
    CALLBOARD_ASSIGN(const cuda::IpcEventHandle done, event_of(answer.done));
    return room_->end_call(done, answer.released);
  }
  Result<c10::Storage> take(const DomainPlace& place) override {
    CALLBOARD_ASSIGN(std::shared_ptr<std::byte> memory, room_->take({place.segment, place.offset, place.bytes}));
    return device_storage(std::move(memory), place.bytes, device_);
  }

 private:
  const std::unique_ptr<cuda::HelperRoom> room_;
  const c10::Device device_;
};

class CudaGuest final : public DeviceGuest {
 public:
  CudaGuest(std::shared_ptr<cuda::DeviceHealth> health, std::shared_ptr<cuda::HelperGuest> guest, int device,
            cuda::Stream stream)
      : device_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)),
        health_(std::move(health)),
        guest_(std::move(guest)),
        // LibTorch frees storages until the process ends.
        lending_(*new CudaLending(device_.index(), guest_)),
        stream_(stream) {
    lending_.add_stream(reinterpret_cast<cudaStream_t>(stream));
  }

  c10::Device device() const override { return device_; }

  void enter() override {
    c10::cuda::set_device(device_.index());
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream_), device_.index()));
  }

  Status check() override {
    CALLBOARD_ASSIGN(void* const segment, guest_->allocate(1, stream_));
    guest_->deallocate(segment, stream_);
    return {};
  }

  Status begin_call(const std::string& order, const std::vector<DomainPlace>& let_go) override {
    guest_->let_go(places_of(let_go));
    CALLBOARD_ASSIGN(const cuda::IpcEventHandle event, event_of(order));
    CALLBOARD_TRY(guest_->begin_call(event));
    lending_.begin();
    in_call_ = true;
    return {};
  }

  Result<c10::Storage> open(const CudaIpcBlock& block) override {
    CALLBOARD_ASSIGN(std::shared_ptr<std::byte> memory, guest_->open(block));
    return device_storage(std::move(memory), block.bytes, device_);
  }

  c10::Storage empty() override { return bytes(0); }

  Result<DomainPlace> give(const c10::Storage& storage) override {
    c10::Storage given = storage;
    auto place = guest_->place_of(storage.data(), storage.nbytes());
    if (!place) {
      given = bytes(storage.nbytes());
      place = guest_->place_of(given.data(), given.nbytes());
      if (!place) {
        return fail(ErrorCode::kOutOfMemory,
                    "the device grants no memory for a result of " + std::to_string(storage.nbytes()) + " bytes");
      }
      CALLBOARD_TRY(health_->note(
          cuda::cuda_runtime().memcpy_async(given.mutable_data(), storage.data(), storage.nbytes(), stream_),
          "cudaMemcpyAsync", "of a result"));
    }
    guest_->give(*place, std::make_shared<c10::Storage>(std::move(given)));
    return DomainPlace{{}, place->slab, place->offset, place->bytes, false, true};
  }

  void take_back(const std::vector<DomainPlace>& places) override { guest_->let_go(places_of(places)); }

  Result<DeviceAnswer> end_call() override {
    if (std::exchange(in_call_, false)) lending_.end();
    trim();
    CALLBOARD_ASSIGN(cuda::HelperGuest::Answer answer, guest_->end_call());
    return DeviceAnswer{raw_of(answer.done), std::move(answer.released)};
  }

 private:
  static std::vector<cuda::SlabPlace> places_of(const std::vector<DomainPlace>& places) {
    std::vector<cuda::SlabPlace> out;
    for (const DomainPlace& place : places) out.push_back({place.segment, place.offset, place.bytes});
    return out;
  }

  /// Throws c10::OutOfMemoryError.
  c10::Storage bytes(std::uint64_t count) const {
    return at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions().dtype(at::kByte).device(device_))
        .storage();
  }

  void trim() {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    if (stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current > kIdleBytesMax) {
      lending_.release_cached();
    }
  }

  const c10::Device device_;
  const std::shared_ptr<cuda::DeviceHealth> health_;
  const std::shared_ptr<cuda::HelperGuest> guest_;
  CudaLending& lending_;
  const cuda::Stream stream_;
  bool in_call_ = false;
};

}  // namespace

Result<std::unique_ptr<DeviceRoom>> make_cuda_room(const std::shared_ptr<cuda::DeviceHealth>& health,
                                                   const std::shared_ptr<cuda::SlabPool>& pool, CudaLending& lending,
                                                   cuda::Stream stream) {
  static std::atomic<std::uint32_t> rooms{0};  // a holder that has gone is never heard of again
  cuda::HelperRoomOptions options;
  options.helper = {"gil-domain", rooms.fetch_add(1) + 1};
  options.stream_lives = [&lending, stream] { return lending.is_alive(reinterpret_cast<cudaStream_t>(stream)); };
  CALLBOARD_ASSIGN(auto room, cuda::HelperRoom::create(cuda::cuda_runtime(), health, pool, stream, std::move(options)));
  return std::make_unique<CudaRoom>(std::move(room), pool->device());
}

Result<std::unique_ptr<DeviceGuest>> make_cuda_guest(const GuestOptions& options) {
  BackendOptions wanted;
  wanted.uuid = options.uuid;
  CALLBOARD_ASSIGN(const int device, open_gpu(wanted));
  const auto health =
      std::make_shared<cuda::DeviceHealth>(options.self.to_string() + " (GPU " + std::to_string(device) + ")");
  cuda::RuntimeTable& runtime = cuda::cuda_runtime();
  cuda::Stream stream = nullptr;
  CALLBOARD_TRY(health->note(runtime.stream_create(&stream), "cudaStreamCreateWithFlags"));
  cuda::HelperGuestOptions here;
  here.device = device;
  CALLBOARD_ASSIGN(auto guest, cuda::HelperGuest::create(runtime, health, stream, options.ask, here));
  return std::make_unique<CudaGuest>(health, std::move(guest), device, stream);
}

}  // namespace callboard::kernels
