#include "kernels/cuda/helper_room.h"

#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/cuda/opened_events.h"

namespace callboard::kernels::cuda {

namespace {

// A helper has one event; more of them come from one that does not keep to that.
constexpr std::size_t kHelperEventsMax = 4;

/// A block of the pool that a helper allocates in.
struct GrantedSegment {
  void* block = nullptr;
  SlabPlace place;
  bool given_up = false;
  std::map<std::uint64_t, std::uint64_t> results;  ///< bytes by offset in the slab; those that somebody holds
};

/// Shared with the results, which outlive the room. No lock is held across a call of the pool or the runtime.
struct RoomState : std::enable_shared_from_this<RoomState> {
  RoomState(RuntimeTable& table, std::shared_ptr<DeviceHealth> of_device, std::shared_ptr<SlabPool> from, Stream on,
            HelperRoomOptions with)
      : runtime(table),
        health(std::move(of_device)),
        pool(std::move(from)),
        stream(on),
        options(std::move(with)),
        events(table, *health, kHelperEventsMax) {}
  ~RoomState() {
    if (order == nullptr || health->failed()) return;
    (void)health->note(runtime.event_destroy(order), "cudaEventDestroy");
  }

  Status make_order();
  Status wait_for(const IpcEventHandle& done);
  Status release(const std::vector<LeaseId>& released);
  void let_go(LeaseId grant, std::uint64_t offset) noexcept;
  void gone() noexcept;
  void give_back(void* block) noexcept {
    pool->deallocate(block, !options.stream_lives || options.stream_lives() ? stream : nullptr);
  }
  std::map<LeaseId, GrantedSegment>::iterator around_locked(const SlabPlace& place);
  Error ended() const {
    return Error(ErrorCode::kActorUnavailable, "the process " + options.helper.to_string() + " has ended");
  }

  RuntimeTable& runtime;
  const std::shared_ptr<DeviceHealth> health;
  const std::shared_ptr<SlabPool> pool;
  const Stream stream;
  const HelperRoomOptions options;
  OpenedEvents events;
  Event order = nullptr;  // constant once made, like the next
  IpcEventHandle order_handle;

  mutable std::mutex mutex;
  std::set<LeaseId> arguments;
  std::set<LeaseId> mappings;
  std::map<LeaseId, GrantedSegment> grants;
  std::size_t granting = 0;
  std::vector<SlabPlace> went;  // for take_let_go()
  bool over = false;
};

Status RoomState::make_order() {
  const CurrentDeviceGuard device(runtime, *health, pool->device());
  CALLBOARD_TRY(device.status());
  CALLBOARD_TRY(
      health->note(runtime.event_create(&order, EventKind::kInterprocess), "cudaEventCreateWithFlags", "interprocess"));
  return health->note(runtime.ipc_get_event(&order_handle, order), "cudaIpcGetEventHandle");
}

Status RoomState::wait_for(const IpcEventHandle& done) {
  const CurrentDeviceGuard device(runtime, *health, pool->device());
  CALLBOARD_TRY(device.status());
  const OpenedEvents::Key key{options.helper, done};
  auto event = events.take(key);
  if (!event && event.error().code == ErrorCode::kTensorLost) {
    Error error(ErrorCode::kPythonFailed,
                "the process " + options.helper.to_string() + " ended with its answer: " + event.error().message);
    return fail(std::move(error));
  }
  if (!event) return fail(std::move(event).error());
  Status waits = health->note(runtime.stream_wait_event(stream, *event), "cudaStreamWaitEvent", "for a helper's work");
  events.give_back(key);
  return waits;
}

/// Checked as a whole before the first one ends.
Status RoomState::release(const std::vector<LeaseId>& released) {
  std::vector<void*> unused;
  {
    std::lock_guard lock(mutex);
    std::set<LeaseId> seen;
    for (const LeaseId said : released) {
      const LeaseId lease = said & ~kKeepsSlabOpen;
      const auto grant = grants.find(lease);
      const bool held = grant != grants.end() && !grant->second.given_up;
      if ((held || arguments.contains(lease) || mappings.contains(lease)) && seen.insert(lease).second) continue;
      return fail(ErrorCode::kMalformed, "the process " + options.helper.to_string() + " gives back the lease " +
                                             std::to_string(lease) + ", which it does not have");
    }
    for (const LeaseId said : released) {
      const LeaseId lease = said & ~kKeepsSlabOpen;
      if (arguments.erase(lease) + mappings.erase(lease) > 0) continue;
      const auto grant = grants.find(lease);
      grant->second.given_up = true;
      if (!grant->second.results.empty()) continue;
      unused.push_back(grant->second.block);
      grants.erase(grant);
    }
  }
  for (const LeaseId said : released) pool->release(said);
  for (void* const block : unused) give_back(block);
  return {};
}

std::map<LeaseId, GrantedSegment>::iterator RoomState::around_locked(const SlabPlace& place) {
  for (auto grant = grants.begin(); grant != grants.end(); ++grant) {
    const SlabPlace& whole = grant->second.place;
    if (whole.slab != place.slab || place.offset < whole.offset) continue;
    const std::uint64_t inside = place.offset - whole.offset;
    if (inside < whole.bytes && place.bytes <= whole.bytes - inside) return grant;
  }
  return grants.end();
}

void RoomState::let_go(LeaseId grant, std::uint64_t offset) noexcept {
  void* unused = nullptr;
  {
    std::lock_guard lock(mutex);
    const auto found = grants.find(grant);
    const auto result = found->second.results.find(offset);
    if (!over && !found->second.given_up) went.push_back({found->second.place.slab, offset, result->second});
    found->second.results.erase(result);
    if (found->second.given_up && found->second.results.empty()) {
      unused = found->second.block;
      grants.erase(found);
    }
  }
  if (unused != nullptr) give_back(unused);
}

void RoomState::gone() noexcept {
  std::vector<void*> unused;
  {
    std::lock_guard lock(mutex);
    if (std::exchange(over, true)) return;
    arguments.clear();
    mappings.clear();
    went.clear();
    for (auto grant = grants.begin(); grant != grants.end();) {
      grant->second.given_up = true;
      if (!grant->second.results.empty()) {
        ++grant;
        continue;
      }
      unused.push_back(grant->second.block);
      grant = grants.erase(grant);
    }
  }
  pool->holder_gone(options.helper);
  for (void* const block : unused) give_back(block);
  events.owner_gone(options.helper);
}

class HelperRoomImpl final : public HelperRoom {
 public:
  explicit HelperRoomImpl(std::shared_ptr<RoomState> state) : state_(std::move(state)) {}
  ~HelperRoomImpl() override { state_->gone(); }

  Result<CudaIpcBlock> lend(const void* pointer, std::uint64_t bytes, std::shared_ptr<void> keep) override;
  Result<CudaIpcBlock> grant(std::uint64_t bytes) override;
  Result<IpcEventHandle> begin_call() override;
  std::vector<SlabPlace> take_let_go() override {
    std::lock_guard lock(state_->mutex);
    return std::exchange(state_->went, {});
  }
  Status end_call(const IpcEventHandle& done, const std::vector<LeaseId>& released) override {
    CALLBOARD_TRY(state_->health->status());
    CALLBOARD_TRY(state_->wait_for(done));
    return state_->release(released);
  }
  Result<std::shared_ptr<std::byte>> take(const SlabPlace& place) override;
  void gone() noexcept override { state_->gone(); }
  HelperRoomStats stats() const override;

 private:
  Result<CudaIpcBlock> lend_granted(void* block, std::uint64_t bytes);

  const std::shared_ptr<RoomState> state_;
};

Result<CudaIpcBlock> HelperRoomImpl::lend(const void* pointer, std::uint64_t bytes, std::shared_ptr<void> keep) {
  CALLBOARD_ASSIGN(CudaIpcBlock block,
                   state_->pool->lease(pointer, bytes, state_->options.helper, state_->stream, std::move(keep)));
  std::lock_guard lock(state_->mutex);
  if (state_->over) return fail(state_->ended());  // gone() has ended it, or it never was one
  state_->arguments.insert(block.lease);
  state_->mappings.insert(block.mapping);
  return block;
}

/// The event of its lease orders the helper behind whoever had the block before.
Result<CudaIpcBlock> HelperRoomImpl::lend_granted(void* block, std::uint64_t bytes) {
  RoomState& state = *state_;
  CALLBOARD_ASSIGN(CudaIpcBlock handle, state.pool->lease(block, bytes, state.options.helper, state.stream, {}));
  std::lock_guard lock(state.mutex);
  if (state.over) return fail(state.ended());
  state.mappings.insert(handle.mapping);
  state.grants[handle.lease] = {block, {handle.slab, handle.offset, bytes}, false, {}};
  return handle;
}

Result<CudaIpcBlock> HelperRoomImpl::grant(std::uint64_t bytes) {
  RoomState& state = *state_;
  if (bytes == 0) return fail(ErrorCode::kMalformed, "a helper asks for a segment of no bytes");
  {
    std::lock_guard lock(state.mutex);
    if (state.over) return fail(state.ended());
    if (state.grants.size() + state.granting >= state.options.grants_max) {
      return fail(ErrorCode::kOverloaded, "the process " + state.options.helper.to_string() + " has " +
                                              std::to_string(state.grants.size()) + " segments of device memory");
    }
    ++state.granting;
  }
  auto block = state.pool->allocate(bytes, state.stream);
  auto handle = block ? lend_granted(*block, bytes) : Result<CudaIpcBlock>(fail(block.error()));
  if (block && !handle) state.give_back(*block);
  std::lock_guard lock(state.mutex);
  --state.granting;
  return handle;
}

Result<IpcEventHandle> HelperRoomImpl::begin_call() {
  RoomState& state = *state_;
  const CurrentDeviceGuard device(state.runtime, *state.health, state.pool->device());
  CALLBOARD_TRY(device.status());
  // The helper has queued its wait for the last record before it answered, or it is not called again.
  CALLBOARD_TRY(state.health->note(state.runtime.event_record(state.order, state.stream), "cudaEventRecord",
                                   "before a helper's call"));
  return state.order_handle;
}

Result<std::shared_ptr<std::byte>> HelperRoomImpl::take(const SlabPlace& place) {
  RoomState& state = *state_;
  const auto refuse = [&](const char* why) {
    return fail(ErrorCode::kMalformed, "a result of " + std::to_string(place.bytes) + " bytes of the process " +
                                           state.options.helper.to_string() + " " + why);
  };
  std::byte* data = nullptr;
  LeaseId lease = 0;
  {
    std::lock_guard lock(state.mutex);
    const auto grant = place.bytes == 0 ? state.grants.end() : state.around_locked(place);
    if (grant == state.grants.end() || grant->second.given_up) return refuse("lies where it was granted nothing");
    auto& results = grant->second.results;
    const auto next = results.lower_bound(place.offset);
    const bool next_inside = next != results.end() && next->first - place.offset < place.bytes;
    const bool in_last = next != results.begin() && place.offset - std::prev(next)->first < std::prev(next)->second;
    if (next_inside || in_last) return refuse("lies in another one that is still in use");
    results.emplace(place.offset, place.bytes);
    data = static_cast<std::byte*>(grant->second.block) + (place.offset - grant->second.place.offset);
    lease = grant->first;
  }
  return std::shared_ptr<std::byte>(
      data, [kept = state_, lease, offset = place.offset](std::byte*) { kept->let_go(lease, offset); });
}

HelperRoomStats HelperRoomImpl::stats() const {
  std::lock_guard lock(state_->mutex);
  HelperRoomStats stats;
  stats.arguments = state_->arguments.size();
  stats.grants = state_->grants.size();
  for (const auto& [lease, grant] : state_->grants) {
    stats.results += grant.results.size();
    stats.granted_bytes += grant.place.bytes;
  }
  return stats;
}

}  // namespace

Result<std::unique_ptr<HelperRoom>> HelperRoom::create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                       std::shared_ptr<SlabPool> pool, Stream stream,
                                                       HelperRoomOptions options) {
  auto state = std::make_shared<RoomState>(runtime, std::move(health), std::move(pool), stream, std::move(options));
  CALLBOARD_TRY(state->make_order());
  return std::make_unique<HelperRoomImpl>(std::move(state));
}

}  // namespace callboard::kernels::cuda
