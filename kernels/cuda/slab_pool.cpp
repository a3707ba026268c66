#include "kernels/cuda/slab_pool.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/slab_book.h"
#include "kernels/cuda/stream_marks.h"
#include "kernels/memory/memory_budget.h"
#include "messages/base/check.h"

namespace callboard::kernels::cuda {

namespace {

constexpr std::uint64_t kUnitsMax = std::uint64_t{1} << 32;

/// Locks, in this order: `growth_` (one thread makes or frees slabs; held over cudaMalloc and cudaFree), `reclaiming_`
/// (one thread asks the events of retired blocks; without it, another one would not see the blocks that are being asked
/// for and would take the memory for used up), `mutex_` (bookkeeping only, over no call of the runtime).
class SlabPoolImpl final : public SlabPool {
 public:
  SlabPoolImpl(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health, SlabPoolOptions options,
               DeviceProperties properties)
      : runtime_(runtime),
        health_(std::move(health)),
        options_(std::move(options)),
        properties_(std::move(properties)),
        marks_(runtime_, health_) {}
  ~SlabPoolImpl() override;

  Result<void*> allocate(std::size_t bytes, Stream stream) override;
  void deallocate(void* pointer, Stream stream) noexcept override;
  std::optional<Location> find(const void* pointer) const override;
  Result<CudaIpcBlock> lease(const void* pointer, std::uint64_t bytes, const ActorId& holder, Stream producer,
                             std::shared_ptr<void> keep) override;
  bool release(LeaseId lease) noexcept override;
  std::size_t holder_gone(const ActorId& holder) noexcept override;
  Result<OwnBlock> own_block(const CudaIpcBlock& block) const override;
  Status trim() override { return give_back(options_.spare_bytes); }
  Status release_cached() override { return give_back(0); }
  SlabPoolStats stats() const override;
  std::vector<LeaseInfo> leases() const override;
  const DeviceUuid& device_uuid() const override { return properties_.uuid; }
  int device() const override { return options_.device; }

 private:
  void* take(std::uint64_t units, Stream stream);
  void settle(Loose loose) noexcept;
  void retire(Retired block) noexcept;
  Status reclaim(bool wait);
  Status give_back(std::uint64_t spare_bytes);
  Error refusal(std::uint64_t bytes, const std::string& limit) const;

  Status begin_lease(const std::byte* at, LeaseRecord& record);
  Result<ExportEvent> export_event();
  Status record_export(ExportEvent& event, Stream producer);

  // with growth_
  Result<void*> grow_growing(std::uint64_t units, Stream stream);
  Status free_empty_growing(std::uint64_t spare_bytes);
  Result<bool> make_room_growing(std::uint64_t units, std::string* limit);
  Result<bool> make_slab_growing(std::uint64_t units, bool dedicated, std::string* limit);
  Result<bool> limits_allow_growing(std::uint64_t bytes, std::string* limit);

  RuntimeTable& runtime_;
  const std::shared_ptr<DeviceHealth> health_;
  const SlabPoolOptions options_;
  const DeviceProperties properties_;
  StreamMarks marks_;

  std::mutex growth_;
  SegmentId last_slab_ = 0;  // guarded by growth_

  std::mutex reclaiming_;

  mutable std::mutex mutex_;
  SlabBook book_;
  std::vector<ExportEvent> export_events_;  // unused ones; as many as there were leases at once. Never destroyed before
                                            // the pool: a reader keeps what it opened, and numbers could come again
  std::uint64_t events_made_ = 0;
};

// -- retired blocks --------------------------------------------------------------------------------------------------

void SlabPoolImpl::settle(Loose loose) noexcept {
  for (Retired& block : loose.retiring) retire(std::move(block));
  loose.keeps.clear();  // their destructors come back here through deallocate()
}

void SlabPoolImpl::retire(Retired block) noexcept {
  const CurrentDeviceGuard device(runtime_, *health_, options_.device);
  if (!device.status()) return;  // SP-6: the units stay taken
  if (Result<StreamMark> done = marks_.set(options_.device, block.stream)) {
    block.done = *done;
    std::lock_guard lock(mutex_);
    book_.retired.push_back(block);
    return;
  }
  if (health_->failed()) return;
  // No event to be had: wait here instead. If that cannot be done either, the units stay taken.
  if (!health_->note(runtime_.stream_synchronize(block.stream), "cudaStreamSynchronize")) return;
  std::lock_guard lock(mutex_);
  book_.free(block);
}

/// Gives back the retired blocks whose streams are done; `wait`: after waiting for all of them. The first error: what
/// it says of one block keeps no other one, unless the device has failed.
Status SlabPoolImpl::reclaim(bool wait) {
  std::lock_guard reclaiming(reclaiming_);
  std::vector<Retired> asked;
  {
    std::lock_guard lock(mutex_);
    asked.swap(book_.retired);
  }
  Status status = health_->status();
  std::vector<Retired> waiting;
  std::vector<Retired> done;
  for (Retired& block : asked) {
    if (health_->failed()) {
      waiting.push_back(block);
      continue;
    }
    const Result<bool> passed = marks_.passed(block.done, wait);
    if (!passed && status) status = fail(passed.error());
    (passed && *passed ? done : waiting).push_back(block);
  }
  std::lock_guard lock(mutex_);
  book_.retired.insert(book_.retired.end(), waiting.begin(), waiting.end());
  for (const Retired& block : done) book_.free(block);
  return status;
}

// -- allocate and deallocate -----------------------------------------------------------------------------------------

Error SlabPoolImpl::refusal(std::uint64_t bytes, const std::string& limit) const {
  const SlabPoolStats now = stats();
  const bool held = now.leased_bytes > 0 && now.leased_bytes >= bytes;
  return Error(ErrorCode::kOutOfMemory,
               "cannot allocate " + format_bytes(bytes) + " of device memory for " + options_.owner.to_string() +
                   " on " + properties_.uuid.to_string() + ": " + format_bytes(now.in_use_bytes) + " in use (" +
                   format_bytes(now.leased_bytes) + " leased to readers), " + format_bytes(now.reserved_bytes) +
                   " reserved in " + std::to_string(now.slabs) + " slabs, " + std::to_string(now.mappings) +
                   " times open in readers; limit: " + limit,
               held ? "let go of results that are not needed any more"
                    : "raise memory_limit, use smaller batches, or end what else uses the device");
}

void* SlabPoolImpl::take(std::uint64_t units, Stream stream) {
  std::lock_guard lock(mutex_);
  if (void* taken = book_.take_free(units)) return taken;
  std::vector<StreamMark> unused;
  void* const taken = book_.take_retired(units, stream, unused);
  for (const StreamMark& mark : unused) marks_.give_back(mark);
  return taken;
}

Result<void*> SlabPoolImpl::allocate(std::size_t bytes, Stream stream) {
  CALLBOARD_TRY(health_->status());
  if (bytes == 0) return nullptr;
  const std::uint64_t units = bytes / kSlabUnit + (bytes % kSlabUnit != 0);
  if (units > kUnitsMax) return fail(refusal(bytes, "the address space"));
  if (void* taken = take(units, stream)) return taken;
  static_cast<void>(reclaim(false));  // a block that cannot be asked for is told by trim(), and refuses no request
  CALLBOARD_TRY(health_->status());
  if (void* taken = take(units, stream)) return taken;
  std::lock_guard growth(growth_);
  return grow_growing(units, stream);
}

Result<void*> SlabPoolImpl::grow_growing(std::uint64_t units, Stream stream) {
  std::string limit;
  for (const bool cleared : {false, true}) {
    if (void* taken = take(units, stream)) return taken;  // another thread may have grown
    CALLBOARD_ASSIGN(const bool made, make_room_growing(units, &limit));
    if (made) {
      if (void* taken = take(units, stream)) return taken;
      limit = "other threads took what was made";
    }
    if (cleared) break;
    static_cast<void>(reclaim(true));
    CALLBOARD_TRY(health_->status());
    if (void* taken = take(units, stream)) return taken;
    CALLBOARD_TRY(free_empty_growing(0));
  }
  return fail(refusal(units * kSlabUnit, limit));
}

/// False where a limit or the device refuses; `limit` says which.
Result<bool> SlabPoolImpl::make_room_growing(std::uint64_t units, std::string* limit) {
  const std::uint64_t ordinary = std::max<std::uint64_t>(options_.slab_bytes / kSlabUnit, 1);
  if (units < ordinary) {
    CALLBOARD_ASSIGN(const bool made, make_slab_growing(ordinary, false, limit));
    if (made) return true;
  }
  return make_slab_growing(units, units > ordinary, limit);
}

Result<bool> SlabPoolImpl::limits_allow_growing(std::uint64_t bytes, std::string* limit) {
  {
    std::lock_guard lock(mutex_);
    const std::uint64_t taken = std::min(options_.memory_limit, book_.stats.reserved_bytes);
    if (options_.memory_limit != 0 && bytes > options_.memory_limit - taken) {
      *limit = "memory_limit " + format_bytes(options_.memory_limit);
      return false;
    }
  }
  if (options_.device_reserve == 0) return true;
  MemoryInfo info;
  CALLBOARD_TRY(health_->note(runtime_.mem_get_info(&info), "cudaMemGetInfo"));
  if (info.free_bytes >= options_.device_reserve && info.free_bytes - options_.device_reserve >= bytes) return true;
  *limit = "the device (" + format_bytes(info.free_bytes) + " of " + format_bytes(info.total_bytes) + " free, " +
           format_bytes(options_.device_reserve) + " kept in reserve)";
  return false;
}

Result<bool> SlabPoolImpl::make_slab_growing(std::uint64_t units, bool dedicated, std::string* limit) {
  const std::uint64_t bytes = units * kSlabUnit;
  const CurrentDeviceGuard device(runtime_, *health_, options_.device);
  CALLBOARD_TRY(device.status());
  CALLBOARD_ASSIGN(const bool allowed, limits_allow_growing(bytes, limit));
  if (!allowed) return false;
  void* base = nullptr;
  const Code code = runtime_.malloc(&base, bytes);
  if (!health_->failed() && code_info(code).failure == Failure::kOutOfMemory) {
    *limit = "the device (cudaMalloc of " + format_bytes(bytes) + " refused)";
    return false;
  }
  CALLBOARD_TRY(health_->note(code, "cudaMalloc", format_bytes(bytes)));
  auto slab = std::make_unique<Slab>(++last_slab_, static_cast<std::byte*>(base), units, dedicated);
  // Memory that cannot be handed out is memory all the same: its results go through host copies.
  if (const Status made = health_->note(runtime_.ipc_get_memory(&slab->handle, base), "cudaIpcGetMemHandle"); !made) {
    CALLBOARD_TRY(health_->status());
    slab->not_exportable = made.error();
  }
  std::lock_guard lock(mutex_);
  book_.add(std::move(slab));
  return true;
}

void SlabPoolImpl::deallocate(void* pointer, Stream stream) noexcept {
  if (pointer == nullptr) return;
  std::optional<Retired> retiring;
  {
    std::lock_guard lock(mutex_);
    const auto found = book_.find(pointer);
    CALLBOARD_CHECK(found && found->slab->at(found->block->first) == pointer,
                    "deallocate() takes what allocate() gave, once");
    retiring = book_.end_block(*found, stream);
  }
  if (retiring) retire(*retiring);
}

std::optional<SlabPool::Location> SlabPoolImpl::find(const void* pointer) const {
  std::lock_guard lock(mutex_);
  const auto found = book_.find(pointer);
  if (!found) return std::nullopt;
  const Slab& slab = *found->slab;
  return Location{slab.id, static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - slab.base),
                  found->start(), found->bytes(), slab.at(found->block->first)};
}

// -- leases ----------------------------------------------------------------------------------------------------------

Result<ExportEvent> SlabPoolImpl::export_event() {
  {
    std::lock_guard lock(mutex_);
    if (!export_events_.empty()) {
      const ExportEvent event = export_events_.back();
      export_events_.pop_back();
      return event;
    }
  }
  ExportEvent made;
  CALLBOARD_TRY(health_->note(runtime_.event_create(&made.event, EventKind::kInterprocess), "cudaEventCreateWithFlags",
                              "interprocess"));
  if (const Status got = health_->note(runtime_.ipc_get_event(&made.handle, made.event), "cudaIpcGetEventHandle");
      !got) {
    if (!health_->failed()) runtime_.event_destroy(made.event);
    return fail(got.error());
  }
  std::lock_guard lock(mutex_);
  ++events_made_;
  return made;
}

Status SlabPoolImpl::record_export(ExportEvent& event, Stream producer) {
  const CurrentDeviceGuard device(runtime_, *health_, options_.device);
  CALLBOARD_TRY(device.status());
  CALLBOARD_ASSIGN(event, export_event());
  return health_->note(runtime_.event_record(event.event, producer), "cudaEventRecord", "behind a result");
}

Status SlabPoolImpl::begin_lease(const std::byte* at, LeaseRecord& record) {
  std::lock_guard lock(mutex_);
  const auto found = book_.find(at);
  if (!found || record.bytes > static_cast<std::uint64_t>(found->slab->base + found->start() + found->bytes() - at)) {
    return fail(ErrorCode::kBadArgument, std::to_string(record.bytes) + " bytes to lease to " +
                                             record.holder.to_string() + " are not in one block of " +
                                             options_.owner.to_string());
  }
  if (found->slab->not_exportable) {
    return fail(ErrorCode::kUnsupported, found->slab->not_exportable->message, "take copies through host memory");
  }
  if (!properties_.ipc_events) {
    return fail(ErrorCode::kUnsupported,
                properties_.name + " (" + properties_.uuid.to_string() + ") hands out no events to other processes",
                "take copies through host memory");
  }
  if (book_.stats.leases >= options_.leases_max) {
    return fail(ErrorCode::kOverloaded,
                "readers hold " + std::to_string(book_.stats.leases) + " results of " + options_.owner.to_string(),
                "let go of results that are not needed any more");
  }
  record.slab = found->slab;
  record.block = found->block->first;
  book_.begin_lease(*found);
  return {};
}

Result<CudaIpcBlock> SlabPoolImpl::lease(const void* pointer, std::uint64_t bytes, const ActorId& holder,
                                         Stream producer, std::shared_ptr<void> keep) {
  CALLBOARD_TRY(health_->status());
  const auto* at = static_cast<const std::byte*>(pointer);
  auto record = std::make_unique<LeaseRecord>();
  record->bytes = bytes;
  record->holder = holder;
  record->keep = std::move(keep);
  CALLBOARD_TRY(begin_lease(at, *record));
  const Status recorded = record_export(record->event, producer);

  CudaIpcBlock block{options_.owner, 0, 0, bytes, 0, 0, {}};
  Loose loose;
  {
    std::lock_guard lock(mutex_);
    Slab& slab = *record->slab;
    if (recorded) {
      const DeviceUuid& uuid = properties_.uuid;
      const IpcEventHandle& event = record->event.handle;
      block.slab = slab.id;
      block.offset = static_cast<std::uint64_t>(at - slab.base);
      block.handles = CudaIpcBlock::join_handles({uuid.bytes.data(), uuid.bytes.size()},
                                                 {slab.handle.bytes.data(), slab.handle.bytes.size()},
                                                 {event.bytes.data(), event.bytes.size()});
      const SlabBook::Granted granted = book_.grant(record);
      block.lease = granted.lease;
      block.mapping = granted.mapping;
    }
    if (record != nullptr) {  // no lease came of it
      if (record->event.event != nullptr) export_events_.push_back(record->event);
      loose.keeps.push_back(std::move(record->keep));
      book_.end_lease(slab, *record->block, loose);
    }
  }
  settle(std::move(loose));
  if (!recorded) return fail(recorded.error());
  return block;
}

bool SlabPoolImpl::release(LeaseId lease) noexcept {
  Loose loose;
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    ended = book_.release(lease, loose, export_events_);
  }
  settle(std::move(loose));
  return ended;
}

std::size_t SlabPoolImpl::holder_gone(const ActorId& holder) noexcept {
  Loose loose;
  std::size_t ended = 0;
  {
    std::lock_guard lock(mutex_);
    ended = book_.holder_gone(holder, loose, export_events_);
  }
  settle(std::move(loose));
  return ended;
}

Result<OwnBlock> SlabPoolImpl::own_block(const CudaIpcBlock& block) const {
  CALLBOARD_TRY(health_->status());
  std::lock_guard lock(mutex_);
  const LeaseRecord* record = book_.block_lease(block.lease);
  if (record == nullptr || record->slab->id != block.slab) {
    return fail(ErrorCode::kTensorLost, "lease " + std::to_string(block.lease) + " on a tensor of " +
                                            options_.owner.to_string() + " has ended");
  }
  const Slab& slab = *record->slab;
  if (block.offset > slab.bytes() || block.bytes > slab.bytes() - block.offset) {
    return fail(ErrorCode::kMalformed, "a block of " + std::to_string(block.bytes) + " bytes at " +
                                           std::to_string(block.offset) + " lies outside a slab of " +
                                           std::to_string(slab.bytes()));
  }
  return OwnBlock{slab.base + block.offset, record->event.event};
}

// -- giving back -----------------------------------------------------------------------------------------------------

Status SlabPoolImpl::free_empty_growing(std::uint64_t spare_bytes) {
  const CurrentDeviceGuard device(runtime_, *health_, options_.device);
  CALLBOARD_TRY(device.status());
  std::vector<std::unique_ptr<Slab>> taken;
  {
    std::lock_guard lock(mutex_);
    taken = book_.take_empty(spare_bytes);
  }
  Status status;
  for (const auto& slab : taken) {
    if (Status freed = health_->note(runtime_.free(slab->base), "cudaFree", format_bytes(slab->bytes())); !freed) {
      status = std::move(freed);
    }
  }
  return status;
}

Status SlabPoolImpl::give_back(std::uint64_t spare_bytes) {
  const Status reclaimed = reclaim(false);
  CALLBOARD_TRY(health_->status());
  std::lock_guard growth(growth_);
  CALLBOARD_TRY(free_empty_growing(spare_bytes));
  return reclaimed;
}

SlabPoolStats SlabPoolImpl::stats() const {
  std::lock_guard lock(mutex_);
  SlabPoolStats stats = book_.stats;
  stats.slabs = book_.slabs.size();
  stats.events = events_made_;
  return stats;
}

std::vector<LeaseInfo> SlabPoolImpl::leases() const {
  std::lock_guard lock(mutex_);
  return book_.block_leases();
}

SlabPoolImpl::~SlabPoolImpl() {
  // Keeps come back through deallocate(): they go while everything is still there.
  std::vector<std::shared_ptr<void>> keeps;
  for (auto& [lease, record] : book_.records) keeps.push_back(std::move(record->keep));
  keeps.clear();
  const CurrentDeviceGuard device(runtime_, *health_, options_.device);
  if (!device.status()) return;
  // cudaFree waits for the device's work on the memory.
  for (const auto& slab : book_.slabs) (void)health_->note(runtime_.free(slab->base), "cudaFree");
  for (const Retired& block : book_.retired) marks_.give_back(block.done);
  for (const auto& [lease, record] : book_.records) {
    if (record->block) export_events_.push_back(record->event);
  }
  for (const ExportEvent& event : export_events_) {
    (void)health_->note(runtime_.event_destroy(event.event), "cudaEventDestroy");
  }
}

}  // namespace

Result<std::shared_ptr<SlabPool>> SlabPool::create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                   SlabPoolOptions options) {
  const CurrentDeviceGuard device(runtime, *health, options.device);
  CALLBOARD_TRY(device.status());
  DeviceProperties properties;
  CALLBOARD_TRY(health->note(runtime.device_properties(options.device, &properties), "cudaGetDeviceProperties",
                             "device " + std::to_string(options.device)));
  return std::make_shared<SlabPoolImpl>(runtime, std::move(health), std::move(options), std::move(properties));
}

}  // namespace callboard::kernels::cuda
