#include "kernels/cuda/helper_guest.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/exported_slab.h"
#include "kernels/cuda/opened_events.h"

namespace callboard::kernels::cuda {

namespace {

constexpr std::size_t kDeviceEventsKept = 512;

/// A slab of the device's, open here.
struct GuestSlab {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  LeaseId mapping = 0;
  std::size_t uses = 0;    ///< leases on parts of it that have not been given back
  std::uint64_t call = 0;  ///< the last one that used it
};

struct GuestLease {
  LeaseId lease = 0;
  SegmentId slab = 0;
  bool counted = true;  ///< among the slab's uses; false: the slab could not be opened for it
};

/// A segment that LibTorch's allocator has, or has given back.
struct GuestSegment {
  GuestLease lease;
  SlabPlace place;
  Stream stream = nullptr;  ///< whose work may be on it
};

struct GuestState : std::enable_shared_from_this<GuestState> {
  GuestState(RuntimeTable& table, std::shared_ptr<DeviceHealth> of_device, Stream on, HelperGuest::Ask question,
             HelperGuestOptions with)
      : runtime(table),
        health(std::move(of_device)),
        stream(on),
        ask(std::move(question)),
        options(with),
        events(table, *health, kDeviceEventsKept) {}
  ~GuestState();

  Status make_done();
  Status wait_for(const ActorId& owner, std::string_view handle, Stream waiting);
  Result<std::byte*> open(const CudaIpcBlock& block, Stream reader);
  Result<std::byte*> slab_at(const CudaIpcBlock& block, bool& counted);
  void give_back(const GuestLease& lease) noexcept {
    std::lock_guard lock(mutex);
    ending.push_back(lease);
  }
  Result<void*> allocate(std::uint64_t bytes, Stream for_stream);
  Result<void*> granted(std::uint64_t bytes, Stream for_stream);
  Result<void*> ordinary_segment(std::uint64_t bytes);
  void close_idle(std::vector<LeaseId>& released);

  RuntimeTable& runtime;
  const std::shared_ptr<DeviceHealth> health;
  const Stream stream;
  const HelperGuest::Ask ask;
  const HelperGuestOptions options;
  OpenedEvents events;
  Event done = nullptr;  // constant once made, like the next
  IpcEventHandle done_handle;

  mutable std::mutex mutex;
  std::map<SegmentId, GuestSlab> slabs;
  std::map<const std::byte*, GuestSegment> segments;  // that the allocator has
  std::map<std::byte*, GuestSegment> kept;            // that it has given back in this call
  std::map<void*, std::uint64_t> ordinary;
  std::map<std::pair<SegmentId, std::uint64_t>, std::shared_ptr<void>> results;
  std::vector<GuestLease> ending;  // whose last use has ended
  std::uint64_t call = 0;
  std::size_t asking = 0;  // threads that may be about to open a slab
  bool answering = false;  // from the end of a call to the begin of the next one nothing is asked for
};

GuestState::~GuestState() {
  const CurrentDeviceGuard device(runtime, *health, options.device);
  if (!device.status()) return;
  for (const auto& [id, slab] : slabs) (void)health->note(runtime.ipc_close_memory(slab.base), "cudaIpcCloseMemHandle");
  for (const auto& [pointer, bytes] : ordinary) (void)health->note(runtime.free(pointer), "cudaFree");
  if (done != nullptr) (void)health->note(runtime.event_destroy(done), "cudaEventDestroy");
}

Status GuestState::make_done() {
  const CurrentDeviceGuard device(runtime, *health, options.device);
  CALLBOARD_TRY(device.status());
  CALLBOARD_TRY(
      health->note(runtime.event_create(&done, EventKind::kInterprocess), "cudaEventCreateWithFlags", "interprocess"));
  return health->note(runtime.ipc_get_event(&done_handle, done), "cudaIpcGetEventHandle");
}

/// The current device is set.
Status GuestState::wait_for(const ActorId& owner, std::string_view handle, Stream waiting) {
  OpenedEvents::Key key{owner, {}};
  std::memcpy(key.second.bytes.data(), handle.data(), std::min(handle.size(), key.second.bytes.size()));
  CALLBOARD_ASSIGN(const Event event, events.take(key));
  Status waits =
      health->note(runtime.stream_wait_event(waiting, event), "cudaStreamWaitEvent", "for the device's work");
  events.give_back(key);
  return waits;
}

Result<std::byte*> GuestState::slab_at(const CudaIpcBlock& block, bool& counted) {
  const auto part = [&](GuestSlab& slab) -> Result<std::byte*> {
    ++slab.uses;
    counted = true;
    slab.call = call;
    if (block.offset <= slab.bytes && block.bytes <= slab.bytes - block.offset) return slab.base + block.offset;
    return fail(ErrorCode::kMalformed, "a block of " + std::to_string(block.bytes) + " bytes at " +
                                           std::to_string(block.offset) + " lies outside a slab of " +
                                           std::to_string(slab.bytes) + " of " + block.owner.to_string());
  };
  {
    std::lock_guard lock(mutex);
    if (const auto known = slabs.find(block.slab); known != slabs.end()) return part(known->second);
  }
  CALLBOARD_ASSIGN(const AddressRange opened, open_exported_slab(runtime, *health, block));
  void* twice = nullptr;
  std::optional<Result<std::byte*>> found;
  {
    std::lock_guard lock(mutex);
    const auto [place, first] = slabs.try_emplace(block.slab);
    if (first) {
      place->second = {static_cast<std::byte*>(opened.base), opened.bytes, block.mapping, 0, call};
    } else {
      twice = opened.base;  // another thread was quicker; the driver counts openings
    }
    found = part(place->second);
  }
  if (twice != nullptr) (void)health->note(runtime.ipc_close_memory(twice), "cudaIpcCloseMemHandle");
  return std::move(*found);
}

/// Where it fails, the lease is given back here, else by whoever gets the address.
Result<std::byte*> GuestState::open(const CudaIpcBlock& block, Stream reader) {
  const CurrentDeviceGuard device(runtime, *health, options.device);
  CALLBOARD_TRY(device.status());
  bool counted = false;
  Result<std::byte*> data = fail(Error());
  if (Status whole = check_handles(block); !whole) {
    data = fail(std::move(whole).error());
  } else if (data = slab_at(block, counted); data) {
    if (Status waits = wait_for(block.owner, block.event_handle(), reader); !waits)
      data = fail(std::move(waits).error());
  }
  if (!data) give_back({block.lease, block.slab, counted});
  return data;
}

// -- segments --------------------------------------------------------------------------------------------------------

Result<void*> GuestState::ordinary_segment(std::uint64_t bytes) {
  const CurrentDeviceGuard device(runtime, *health, options.device);
  CALLBOARD_TRY(device.status());
  void* made = nullptr;
  CALLBOARD_TRY(health->note(runtime.malloc(&made, bytes), "cudaMalloc", std::to_string(bytes) + " bytes"));
  std::lock_guard lock(mutex);
  ordinary.emplace(made, bytes);
  return made;
}

Result<void*> GuestState::granted(std::uint64_t bytes, Stream for_stream) {
  CALLBOARD_ASSIGN(const CudaIpcBlock block, ask(bytes));
  CALLBOARD_ASSIGN(std::byte* const data, open(block, for_stream));
  if (block.bytes < bytes) {
    give_back({block.lease, block.slab});
    return fail(ErrorCode::kMalformed, "a granted segment is smaller than what was asked for");
  }
  std::lock_guard lock(mutex);
  segments.emplace(data, GuestSegment{{block.lease, block.slab}, {block.slab, block.offset, block.bytes}, for_stream});
  return data;
}

Result<void*> GuestState::allocate(std::uint64_t bytes, Stream for_stream) {
  bool may_ask = false;
  {
    std::lock_guard lock(mutex);
    // What was not given back yet: the order of its own stream protects it.
    const auto old = std::ranges::find_if(
        kept, [&](const auto& one) { return one.second.place.bytes >= bytes && one.second.stream == for_stream; });
    if (old != kept.end()) {
      std::byte* const data = old->first;
      segments.emplace(data, std::move(old->second));
      kept.erase(old);
      return data;
    }
    may_ask = !answering;
    if (may_ask) ++asking;
  }
  if (!may_ask) return ordinary_segment(bytes);
  auto segment = granted(bytes, for_stream);
  {
    std::lock_guard lock(mutex);
    --asking;
  }
  if (segment || segment.error().code != ErrorCode::kNotReady) return segment;
  return ordinary_segment(bytes);
}

/// Not while a thread may be about to open one.
void GuestState::close_idle(std::vector<LeaseId>& released) {
  std::vector<std::pair<SegmentId, GuestSlab>> closing;
  {
    std::lock_guard lock(mutex);
    if (asking > 0) return;
    std::vector<SegmentId> idle;
    for (const auto& [id, slab] : slabs) {
      if (slab.uses == 0) idle.push_back(id);
    }
    std::ranges::sort(idle, {}, [&](SegmentId id) { return slabs.at(id).call; });
    for (std::size_t i = 0; i < idle.size(); ++i) {
      const bool too_many = idle.size() - i > options.idle_slabs_max;
      if (!too_many && call - slabs.at(idle[i]).call < options.idle_calls) continue;
      closing.emplace_back(idle[i], slabs.at(idle[i]));
      slabs.erase(idle[i]);
    }
  }
  if (closing.empty()) return;
  const CurrentDeviceGuard device(runtime, *health, options.device);
  for (auto& [id, slab] : closing) {
    if (device.status() && health->note(runtime.ipc_close_memory(slab.base), "cudaIpcCloseMemHandle")) {
      released.push_back(slab.mapping);
      continue;
    }
    std::lock_guard lock(mutex);
    slabs.emplace(id, slab);  // open still, so its lease stands
  }
}

class HelperGuestImpl final : public HelperGuest {
 public:
  explicit HelperGuestImpl(std::shared_ptr<GuestState> state) : state_(std::move(state)) {}

  Status begin_call(const IpcEventHandle& order) override;
  Result<std::shared_ptr<std::byte>> open(const CudaIpcBlock& block) override;
  Result<void*> allocate(std::size_t bytes, Stream stream) override;
  void deallocate(void* pointer, Stream stream) noexcept override;
  Status release_cached() override { return state_->health->status(); }  // the next answer does it
  std::optional<SlabPlace> place_of(const void* pointer, std::uint64_t bytes) const override;
  void give(const SlabPlace& place, std::shared_ptr<void> keep) override;
  void let_go(const std::vector<SlabPlace>& places) override;
  Result<Answer> end_call() override;
  HelperGuestStats stats() const override;

 private:
  const std::shared_ptr<GuestState> state_;
};

Status HelperGuestImpl::begin_call(const IpcEventHandle& order) {
  GuestState& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    ++state.call;
    state.answering = false;
  }
  const CurrentDeviceGuard device(state.runtime, *state.health, state.options.device);
  CALLBOARD_TRY(device.status());
  return state.wait_for(ActorId{}, {order.bytes.data(), order.bytes.size()}, state.stream);
}

Result<std::shared_ptr<std::byte>> HelperGuestImpl::open(const CudaIpcBlock& block) {
  CALLBOARD_ASSIGN(std::byte* const data, state_->open(block, state_->stream));
  return std::shared_ptr<std::byte>(
      data, [state = state_, lease = GuestLease{block.lease, block.slab}](std::byte*) { state->give_back(lease); });
}

Result<void*> HelperGuestImpl::allocate(std::size_t bytes, Stream stream) {
  CALLBOARD_TRY(state_->health->status());
  if (bytes == 0) return nullptr;
  return state_->allocate(bytes, stream);
}

void HelperGuestImpl::deallocate(void* pointer, Stream stream) noexcept {
  if (pointer == nullptr) return;
  GuestState& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    const auto found = state.segments.find(static_cast<std::byte*>(pointer));
    if (found != state.segments.end()) {
      found->second.stream = stream;
      state.kept.emplace(static_cast<std::byte*>(pointer), std::move(found->second));
      state.segments.erase(found);
      return;
    }
    state.ordinary.erase(pointer);
  }
  const CurrentDeviceGuard device(state.runtime, *state.health, state.options.device);
  // cudaFree waits for the device's work on the memory.
  if (device.status()) (void)state.health->note(state.runtime.free(pointer), "cudaFree");
}

std::optional<SlabPlace> HelperGuestImpl::place_of(const void* pointer, std::uint64_t bytes) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  std::lock_guard lock(state_->mutex);
  auto segment = state_->segments.upper_bound(at);
  if (bytes == 0 || segment == state_->segments.begin()) return std::nullopt;
  --segment;
  const SlabPlace& whole = segment->second.place;
  const auto inside = static_cast<std::uint64_t>(at - segment->first);
  if (inside >= whole.bytes || bytes > whole.bytes - inside) return std::nullopt;
  return SlabPlace{whole.slab, whole.offset + inside, bytes};
}

void HelperGuestImpl::give(const SlabPlace& place, std::shared_ptr<void> keep) {
  std::lock_guard lock(state_->mutex);
  // What was there was never let go, and goes without the lock.
  std::swap(state_->results[{place.slab, place.offset}], keep);
}

void HelperGuestImpl::let_go(const std::vector<SlabPlace>& places) {
  std::vector<std::shared_ptr<void>> keeps;  // they come back through deallocate()
  std::lock_guard lock(state_->mutex);
  for (const SlabPlace& place : places) {
    auto result = state_->results.extract({place.slab, place.offset});
    if (result) keeps.push_back(std::move(result.mapped()));
  }
}

Result<HelperGuest::Answer> HelperGuestImpl::end_call() {
  GuestState& state = *state_;
  std::vector<GuestLease> ended;
  {
    std::lock_guard lock(state.mutex);
    state.answering = true;
    ended.swap(state.ending);
    for (const auto& [data, segment] : state.kept) ended.push_back(segment.lease);
    state.kept.clear();
  }
  {
    const CurrentDeviceGuard device(state.runtime, *state.health, state.options.device);
    CALLBOARD_TRY(device.status());
    CALLBOARD_TRY(state.health->note(state.runtime.event_record(state.done, state.stream), "cudaEventRecord",
                                     "behind a call's work"));
    CALLBOARD_TRY(state.health->note(state.runtime.event_synchronize(state.done), "cudaEventSynchronize",
                                     "behind a call's work"));
  }
  Answer answer{state.done_handle, {}};
  {
    std::lock_guard lock(state.mutex);
    for (const GuestLease& lease : ended) {
      const auto slab = state.slabs.find(lease.slab);
      const bool open = slab != state.slabs.end();
      if (lease.counted) --slab->second.uses;
      answer.released.push_back(open ? lease.lease | kKeepsSlabOpen : lease.lease);
    }
  }
  state.close_idle(answer.released);
  CALLBOARD_TRY(state.health->status());
  return answer;
}

HelperGuestStats HelperGuestImpl::stats() const {
  std::lock_guard lock(state_->mutex);
  HelperGuestStats stats;
  stats.open_slabs = state_->slabs.size();
  for (const auto& [id, slab] : state_->slabs) stats.leases += slab.uses;
  stats.results = state_->results.size();
  stats.ordinary = state_->ordinary.size();
  return stats;
}

}  // namespace

Result<std::shared_ptr<HelperGuest>> HelperGuest::create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                         Stream stream, Ask ask, HelperGuestOptions options) {
  auto state = std::make_shared<GuestState>(runtime, std::move(health), stream, std::move(ask), options);
  CALLBOARD_TRY(state->make_done());
  return std::make_shared<HelperGuestImpl>(std::move(state));
}

}  // namespace callboard::kernels::cuda
