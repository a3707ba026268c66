#include "actors/client/client_memory.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/memory/segment_map.h"

namespace callboard::actors {
namespace {

constexpr std::size_t kAlignment = 64;

std::shared_ptr<void> aligned_block(std::size_t bytes) {
  void* block = ::operator new(bytes, std::align_val_t(kAlignment));
  return std::shared_ptr<void>(block, [](void* pointer) { ::operator delete(pointer, std::align_val_t(kAlignment)); });
}

}  // namespace

/// Shared by the client and by every result that is mapped, so that leases last as long as somebody reads. The lane's
/// callbacks hold a plain pointer: the lane goes first and joins its thread. (A counted one could make the lane's own
/// thread the last owner, and that thread would then join itself.)
struct ClientMemory::Mappings {
  UniqueFd node_gone;
  std::unique_ptr<kernels::SegmentMap> segments;
  std::atomic<MemoryLane*> lane{nullptr};  // for the lane's thread, which may run before `owned_lane` is set
  std::unique_ptr<MemoryLane> owned_lane;
  std::unique_ptr<kernels::cuda::GpuResults> gpus;  // set while connecting, or never
  std::mutex lane_reads_gpus;
  kernels::cuda::GpuResults* gpus_for_lane = nullptr;  // guarded by lane_reads_gpus; for the lane's thread

  ~Mappings() {
    show_gpus_to_lane(nullptr);
    gpus.reset();  // gives its leases back over the lane, whose thread still runs
    owned_lane.reset();
  }

  void show_gpus_to_lane(kernels::cuda::GpuResults* results) {
    std::lock_guard lock(lane_reads_gpus);
    gpus_for_lane = results;
  }

  void on_owner_gone(const ActorId& owner) {
    MemoryLane* to = lane.load(std::memory_order_acquire);
    if (to != nullptr) to->report_held(owner, segments->held_segments(owner));
    segments->drop_owner(owner);
    std::lock_guard lock(lane_reads_gpus);
    if (gpus_for_lane != nullptr) gpus_for_lane->owner_gone(owner);
  }
  void on_node_gone() {
    const std::uint64_t one = 1;
    // A full counter is readable too: nothing to do if this fails.
    [[maybe_unused]] const ssize_t written = ::write(node_gone.get(), &one, sizeof one);
  }
};

namespace {

/// What a mapped result's `keep` points at; the block goes before the map that it belongs to.
template <class Mappings>
struct MappedResult {
  std::shared_ptr<Mappings> mappings;
  std::shared_ptr<kernels::MappedBlock> block;
};
/// The same for one on a GPU.
template <class Mappings>
struct GpuResult {
  std::shared_ptr<Mappings> mappings;
  std::shared_ptr<DeviceMemory> memory;
};

}  // namespace

Result<std::unique_ptr<ClientMemory>> ClientMemory::connect(Options options) {
  auto mappings = std::make_shared<Mappings>();
  Mappings* raw = mappings.get();
  mappings->node_gone.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!mappings->node_gone) {
    return fail(ErrorCode::kResourceExhausted,
                std::string("the client cannot make an eventfd: ") + std::strerror(errno),
                "raise the limit of open files (ulimit -n)");
  }
  mappings->segments = kernels::SegmentMap::create(
      [raw](const ActorId& owner, SegmentId segment) { return raw->owned_lane->open_segment(owner, segment); },
      [raw](const ActorId& owner, LeaseId lease) { raw->owned_lane->release(owner, lease); });
  MemoryLane::Events events;
  events.holder_gone = [](const ActorId&) {};  // no leases on a client's arena: its requests keep the inputs
  events.lease_released = [](LeaseId) {};
  events.owner_gone = [raw](const ActorId& owner) { raw->on_owner_gone(owner); };
  events.node_gone = [raw] { raw->on_node_gone(); };
  CALLBOARD_ASSIGN(mappings->owned_lane,
                   MemoryLane::connect(options.socket, Role::kClient, options.self, std::move(events)));
  if (options.gpus != nullptr) {
    CALLBOARD_ASSIGN(mappings->gpus, options.gpus->create(options.self, [raw](const ActorId& owner, LeaseId lease) {
      raw->owned_lane->release(owner, lease);
    }));
    mappings->show_gpus_to_lane(mappings->gpus.get());
  }
  mappings->lane.store(mappings->owned_lane.get(), std::memory_order_release);
  return std::unique_ptr<ClientMemory>(new ClientMemory(std::move(options), std::move(mappings)));
}

ClientMemory::ClientMemory(Options options, std::shared_ptr<Mappings> mappings)
    : options_(std::move(options)), mappings_(std::move(mappings)) {}

ClientMemory::~ClientMemory() { trim(); }

void ClientMemory::trim() {
  if (kernels::Arena* arena = arena_.load(std::memory_order_acquire)) arena->trim();
}

Result<std::shared_ptr<void>> ClientMemory::allocate(std::size_t bytes) {
  CALLBOARD_ASSIGN(std::shared_ptr<kernels::Arena> from, arena());
  CALLBOARD_ASSIGN(void* const block, from->allocate(bytes == 0 ? 1 : bytes));
  return std::shared_ptr<void>(block, [from = std::move(from), line = options_.line](void* pointer) {
    from->deallocate(pointer);
    if (line) line->room_made();
  });
}

std::optional<ArenaBlock> ClientMemory::find(const void* data) const {
  const kernels::Arena* arena = arena_.load(std::memory_order_acquire);
  if (arena == nullptr || data == nullptr) return std::nullopt;
  const auto location = arena->find(data);
  if (!location) return std::nullopt;
  const auto into =
      static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - static_cast<const std::byte*>(location->block));
  ArenaBlock block;
  block.owner = options_.self;
  block.segment = location->segment;
  block.offset = location->block_offset + into;
  block.bytes = location->block_bytes - into;
  return block;
}

Result<std::shared_ptr<kernels::Arena>> ClientMemory::arena() {
  std::lock_guard lock(creation_);
  if (owned_) return owned_;
  kernels::ArenaOptions options;
  options.owner = options_.self;
  options.memory_limit = options_.memory_limit;
  // The arena may outlive this client (a block that is out), the lane need not.
  const std::weak_ptr<Mappings> weak = mappings_;
  kernels::SegmentObserver observer;
  observer.added = [weak](SegmentId segment, UniqueFd read_only, std::uint64_t bytes) -> Status {
    const auto mappings = weak.lock();
    if (!mappings) return fail(ErrorCode::kActorUnavailable, "the client is closed: nobody could read a new segment");
    return mappings->owned_lane->add_segment(segment, std::move(read_only), bytes);
  };
  observer.dropped = [weak](SegmentId segment) {
    if (const auto mappings = weak.lock()) mappings->owned_lane->drop_segment(segment);
  };
  CALLBOARD_ASSIGN(owned_, kernels::Arena::create_shared(std::move(options), std::move(observer)));
  arena_.store(owned_.get(), std::memory_order_release);
  return owned_;
}

Result<TensorRef> ClientMemory::open(TensorHandle handle) {
  if (const auto* bytes = std::get_if<InlineBytes>(&handle.data)) return own_copy(std::move(handle.meta), bytes->bytes);
  if (const auto* lent = std::get_if<CudaIpcBlock>(&handle.data)) return open_on_gpu(handle, *lent);
  const auto* block = std::get_if<ArenaBlock>(&handle.data);
  auto mapped = mappings_->segments->open(*block);
  if (!mapped) return fail(std::move(mapped).error());
  auto keep = std::make_shared<MappedResult<Mappings>>();
  keep->mappings = mappings_;
  keep->block = std::move(*mapped);
  TensorRef result;
  result.meta = std::move(handle.meta);
  result.data = keep->block->data();
  result.bytes = keep->block->bytes();
  result.keep = std::move(keep);
  return result;
}

Result<TensorRef> ClientMemory::open_on_gpu(const TensorHandle& handle, const CudaIpcBlock& block) {
  if (!mappings_->gpus) {
    release(WireValue(handle));
    return fail(ErrorCode::kUnsupported,
                "the result " + handle.meta.to_string() + " lies on a GPU, which this client cannot open",
                "leave output_device of the device at 'cpu' in the cluster file");
  }
  CALLBOARD_ASSIGN(kernels::cuda::GpuResults::Opened opened, mappings_->gpus->open(block));
  auto keep = std::make_shared<GpuResult<Mappings>>();
  keep->mappings = mappings_;
  keep->memory = std::move(opened.memory);
  TensorRef result;
  result.meta = handle.meta;
  result.data = opened.data;
  result.bytes = block.bytes;
  result.device = std::shared_ptr<DeviceMemory>(keep, keep->memory.get());
  result.keep = std::move(keep);
  return result;
}

void ClientMemory::release(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return;
  if (const auto* block = std::get_if<ArenaBlock>(&handle->data); block != nullptr && block->lease != 0) {
    mappings_->owned_lane->release(block->owner, block->lease);
  } else if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data); lent != nullptr && lent->lease != 0) {
    mappings_->owned_lane->release(lent->owner, lent->lease);
  }
}

MemoryLane& ClientMemory::lane() { return *mappings_->owned_lane; }

int ClientMemory::node_gone_fd() const { return mappings_->node_gone.get(); }

TensorRef own_copy(TensorMeta meta, std::string_view bytes) {
  TensorRef result;
  result.meta = std::move(meta);
  result.bytes = bytes.size();
  if (bytes.empty()) return result;
  result.keep = aligned_block(bytes.size());
  result.data = static_cast<std::byte*>(result.keep.get());
  std::memcpy(result.data, bytes.data(), bytes.size());
  return result;
}

}  // namespace callboard::actors
