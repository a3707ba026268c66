#include "kernels/cuda/slab_reader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/exported_slab.h"
#include "kernels/cuda/opened_events.h"
#include "kernels/cuda/stream_marks.h"

namespace callboard::kernels::cuda {

namespace {

constexpr std::size_t kGoneOwnersRemembered = 256;
// Only for a second open of a slab whose first one is under way, which is one call of the driver.
constexpr std::chrono::seconds kOpenWait{30};

using SlabKey = std::pair<ActorId, SegmentId>;

/// A slab of another process. Changes under the lock; `base` and `bytes` are constant once it is open.
struct OpenSlab {
  enum class Phase { kOpening, kOpen, kFailed, kClosing };
  Phase phase = Phase::kOpening;
  Error error;
  SlabKey key;
  int device = 0;  ///< that it is opened for; constant
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  std::size_t blocks = 0;  ///< held, or let go with reads under way
  LeaseId mapping = 0;
  bool trusted = false;  ///< the lease `mapping` stands; else close with the last block
  TimePoint idle_since;
};

/// A block that was let go while reads of it may be under way.
struct Releasing {
  std::shared_ptr<OpenSlab> slab;  ///< none: our own memory
  ActorId owner;
  LeaseId lease = 0;
  std::vector<StreamMark> reads;  ///< behind the last read of each stream
};

/// What must be done without the lock, in this order.
struct Ending {
  struct Release {
    ActorId owner;
    LeaseId lease = 0;
    std::shared_ptr<OpenSlab> slab;  ///< not before it is closed, if it is among those; none: at once
    bool mapping = false;            ///< the lease on the slab's mapping, else one on a block
  };
  std::vector<std::shared_ptr<OpenSlab>> closing;
  std::vector<Release> releasing;
};

struct ReaderState : std::enable_shared_from_this<ReaderState> {
  ReaderState(RuntimeTable& table, std::shared_ptr<DeviceHealth> of_device, SlabReaderOptions with,
              SlabReader::ReleaseFn on_release)
      : runtime(table),
        health(std::move(of_device)),
        options(std::move(with)),
        release(std::move(on_release)),
        events(table, *health, options.events_max),
        marks(table, health) {}
  ~ReaderState();

  Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& block);
  Result<std::shared_ptr<ReadableBlock>> own_block(const CudaIpcBlock& block);
  Result<std::shared_ptr<ReadableBlock>> others_block(const CudaIpcBlock& block);
  Result<std::shared_ptr<OpenSlab>> take_slab(const CudaIpcBlock& block, int device);
  void let_go(Releasing block, const std::vector<Stream>& streams, int device, const OpenedEvents::Key* event) noexcept;
  Status finish(Ending ending);
  Status poll(TimePoint now, bool wait);
  bool pending() const;
  void owner_gone(const ActorId& owner);
  bool is_gone(const ActorId& owner) const {
    std::lock_guard lock(mutex);
    return gone.contains(owner);
  }

  // with the lock
  void drop_block_locked(const std::shared_ptr<OpenSlab>& slab, TimePoint now, Ending& ending);
  void close_locked(std::shared_ptr<OpenSlab> slab, Ending& ending);
  void close_idle_locked(TimePoint now, Ending& ending);
  LeaseId keeping_locked(LeaseId lease, const SlabKey& slab) const;

  RuntimeTable& runtime;
  const std::shared_ptr<DeviceHealth> health;
  const SlabReaderOptions options;
  const SlabReader::ReleaseFn release;
  std::map<DeviceUuid, int> devices;  // constant once created
  OpenedEvents events;
  StreamMarks marks;

  mutable std::mutex mutex;
  std::condition_variable opened;
  std::map<SlabKey, std::shared_ptr<OpenSlab>> slabs;
  std::vector<Releasing> releasing;
  std::map<ActorId, LeaseId> released_through;  // highest lease on a mapping that was released, by live owner
  std::set<ActorId> gone;
  std::deque<ActorId> gone_order;
  std::size_t blocks_held = 0;
};

class ReadableBlockImpl final : public ReadableBlock {
 public:
  ReadableBlockImpl(std::shared_ptr<ReaderState> state, std::shared_ptr<OpenSlab> slab, const CudaIpcBlock& block,
                    const void* data, int device, bool same_device, Event written, std::optional<OpenedEvents::Key> key)
      : state_(std::move(state)),
        slab_(std::move(slab)),
        owner_(block.owner),
        lease_(block.lease),
        data_(data),
        bytes_(block.bytes),
        device_(device),
        same_device_(same_device),
        written_(written),
        key_(std::move(key)) {
    std::lock_guard lock(state_->mutex);
    ++state_->blocks_held;
  }
  ~ReadableBlockImpl() override {
    {
      std::lock_guard lock(state_->mutex);
      --state_->blocks_held;
    }
    state_->let_go({std::move(slab_), owner_, lease_, {}}, streams_, device_, key_ ? &*key_ : nullptr);
  }

  const void* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }
  int device() const override { return device_; }
  bool own() const override { return !key_; }
  bool same_device() const override { return same_device_; }
  Status used_on(Stream stream) override {
    CALLBOARD_TRY(check());
    const CurrentDeviceGuard device(state_->runtime, *state_->health, device_);
    CALLBOARD_TRY(device.status());
    {
      // Before the wait is queued: a stream that may have been told to read must be waited for.
      std::lock_guard lock(mutex_);
      if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
    }
    return state_->health->note(state_->runtime.stream_wait_event(stream, written_), "cudaStreamWaitEvent");
  }
  Status check() const override {
    CALLBOARD_TRY(state_->health->status());
    if (state_->is_gone(owner_)) return fail(lost_block(owner_, "its process has ended"));
    return {};
  }

 private:
  const std::shared_ptr<ReaderState> state_;
  std::shared_ptr<OpenSlab> slab_;
  const ActorId owner_;
  const LeaseId lease_;
  const void* const data_;
  const std::uint64_t bytes_;
  const int device_;
  const bool same_device_;
  const Event written_;
  const std::optional<OpenedEvents::Key> key_;  ///< none: our own memory

  std::mutex mutex_;
  std::vector<Stream> streams_;
};

// -- opening ---------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<ReadableBlock>> ReaderState::open(const CudaIpcBlock& block) {
  CALLBOARD_TRY(health->status());
  auto made = block.owner == options.self ? own_block(block) : others_block(block);
  if (!made) {
    if (health->failed() || is_gone(block.owner)) return made;
    LeaseId lease = block.lease;
    if (block.owner != options.self) {
      std::lock_guard lock(mutex);
      lease = keeping_locked(lease, {block.owner, block.slab});
    }
    release(block.owner, lease);
  }
  return made;
}

Result<std::shared_ptr<ReadableBlock>> ReaderState::own_block(const CudaIpcBlock& block) {
  if (!options.own_block) {
    return fail(ErrorCode::kInternal, "this reader of " + options.self.to_string() + " was not given its own pool");
  }
  CALLBOARD_ASSIGN(const OwnBlock own, options.own_block(block));
  DeviceUuid uuid;
  std::memcpy(uuid.bytes.data(), block.handles.data(), std::min(block.handles.size(), uuid.bytes.size()));
  const auto known = devices.find(uuid);
  const int device = options.device ? *options.device : known == devices.end() ? 0 : known->second;
  return std::make_shared<ReadableBlockImpl>(shared_from_this(), nullptr, block, own.address, device, true, own.written,
                                             std::nullopt);
}

Result<std::shared_ptr<ReadableBlock>> ReaderState::others_block(const CudaIpcBlock& block) {
  CALLBOARD_TRY(check_handles(block));
  if (block.owner.name.empty()) return fail(ErrorCode::kMalformed, "a CUDA block names no owner");
  DeviceUuid uuid;
  std::memcpy(uuid.bytes.data(), block.device_uuid().data(), uuid.bytes.size());
  const auto known = devices.find(uuid);
  if (!options.device && known == devices.end()) {
    return fail(ErrorCode::kUnsupported, uuid.to_string() + " of " + block.owner.to_string() + " is not visible here",
                "set CUDA_VISIBLE_DEVICES to include it, or take copies through host memory");
  }
  const int device = options.device ? *options.device : known->second;
  const bool same_device = known != devices.end() && known->second == device;
  if (known != devices.end() && !same_device) {
    bool can = false;
    CALLBOARD_TRY(health->note(runtime.can_access_peer(device, known->second, &can), "cudaDeviceCanAccessPeer"));
    if (!can) {
      return fail(ErrorCode::kUnsupported,
                  "device " + std::to_string(device) + " cannot reach memory of " + uuid.to_string() + " of " +
                      block.owner.to_string(),
                  "take copies through host memory");
    }
  }
  const CurrentDeviceGuard current(runtime, *health, device);
  CALLBOARD_TRY(current.status());
  CALLBOARD_ASSIGN(std::shared_ptr<OpenSlab> slab, take_slab(block, device));

  OpenedEvents::Key key{block.owner, {}};
  std::memcpy(key.second.bytes.data(), block.event_handle().data(), key.second.bytes.size());
  Result<Event> written = fail(Error());
  if (block.offset > slab->bytes || block.bytes > slab->bytes - block.offset) {
    written = fail(ErrorCode::kMalformed, "a block of " + std::to_string(block.bytes) + " bytes at " +
                                              std::to_string(block.offset) + " lies outside a slab of " +
                                              std::to_string(slab->bytes) + " of " + block.owner.to_string());
  } else {
    written = events.take(key);
  }
  if (!written) {
    Ending ending;
    {
      std::lock_guard lock(mutex);
      drop_block_locked(slab, Clock::now(), ending);
    }
    (void)finish(std::move(ending));
    return fail(std::move(written).error());
  }
  const void* data = slab->base + block.offset;
  return std::make_shared<ReadableBlockImpl>(shared_from_this(), std::move(slab), block, data, device, same_device,
                                             *written, std::move(key));
}

/// The slab with one more block counted; opened if this is its first one.
Result<std::shared_ptr<OpenSlab>> ReaderState::take_slab(const CudaIpcBlock& block, int device) {
  const SlabKey key{block.owner, block.slab};
  std::unique_lock lock(mutex);
  if (gone.contains(block.owner)) return fail(lost_block(block.owner, "its process has ended"));
  // The two openings of a slab that is closed and opened anew must not overlap: who closes the second one would release
  // the lease while the first one is open.
  const auto closed = [&] {
    const auto found = slabs.find(key);
    return found == slabs.end() || found->second->phase != OpenSlab::Phase::kClosing || health->failed();
  };
  const auto too_long = [&] {
    return fail(ErrorCode::kDeadlineExceeded,
                "slab " + std::to_string(block.slab) + " of " + block.owner.to_string() +
                    " is being opened or closed by another thread for 30 s",
                "the driver hangs; `callboard stacks` shows where");
  };
  if (!opened.wait_for(lock, kOpenWait, closed)) return too_long();
  CALLBOARD_TRY(health->status());
  const auto [place, first] = slabs.try_emplace(key);
  if (first) {
    place->second = std::make_shared<OpenSlab>();
    place->second->key = key;
    place->second->device = device;
  }
  const std::shared_ptr<OpenSlab> slab = place->second;
  ++slab->blocks;
  const auto through = released_through.find(block.owner);
  if (block.mapping > slab->mapping && !slab->trusted) {
    slab->mapping = block.mapping;
    slab->trusted = through == released_through.end() || block.mapping > through->second;
  }
  if (!first) {
    const bool settled = opened.wait_for(lock, kOpenWait, [&] { return slab->phase != OpenSlab::Phase::kOpening; });
    if (settled && slab->phase == OpenSlab::Phase::kOpen) return slab;
    --slab->blocks;
    if (settled) return fail(slab->error);
    return too_long();
  }
  lock.unlock();
  const Result<AddressRange> done = open_exported_slab(runtime, *health, block);
  lock.lock();
  slab->phase = done ? OpenSlab::Phase::kOpen : OpenSlab::Phase::kFailed;
  if (done) {
    slab->base = static_cast<std::byte*>(done->base);
    slab->bytes = done->bytes;
  } else {
    slab->error = done.error();
    --slab->blocks;
    if (const auto still = slabs.find(key); still != slabs.end() && still->second == slab) slabs.erase(still);
  }
  lock.unlock();
  opened.notify_all();
  if (!done) return fail(done.error());
  return slab;
}

// -- letting go ------------------------------------------------------------------------------------------------------

void ReaderState::let_go(Releasing block, const std::vector<Stream>& streams, int device,
                         const OpenedEvents::Key* event) noexcept {
  const UnwatchedCalls unwatched(runtime, *health);  // the thread is whose the block was, which may be capturing
  {
    const CurrentDeviceGuard current(runtime, *health, device);
    if (!current.status()) return;  // SR-4: the device has failed, the end of this process ends the lease
    for (const Stream stream : streams) {
      if (Result<StreamMark> read = marks.set(device, stream)) {
        block.reads.push_back(*read);
        continue;
      }
      // No event to be had: wait here. If that fails too, nobody knows when the reads are done, and the lease stays.
      if (!health->note(runtime.stream_synchronize(stream), "cudaStreamSynchronize")) return;
    }
  }
  if (event != nullptr) events.give_back(*event);
  {
    std::lock_guard lock(mutex);
    releasing.push_back(std::move(block));
  }
  (void)poll(Clock::now(), false);
}

void ReaderState::drop_block_locked(const std::shared_ptr<OpenSlab>& slab, TimePoint now, Ending& ending) {
  if (--slab->blocks > 0) return;
  slab->idle_since = now;
  if (!slab->trusted || gone.contains(slab->key.first)) close_locked(slab, ending);
}

/// SR-3. From here on a handle that names this mapping's lease is not trusted: the lease is about to be released.
void ReaderState::close_locked(std::shared_ptr<OpenSlab> slab, Ending& ending) {
  slab->phase = OpenSlab::Phase::kClosing;  // in the map until it is closed
  ending.closing.push_back(slab);
  const ActorId& owner = slab->key.first;
  if (slab->mapping == 0 || gone.contains(owner)) return;
  LeaseId& through = released_through[owner];
  through = std::max(through, slab->mapping);
  ending.releasing.push_back({owner, slab->mapping, slab, true});
}

/// The number by which a block's lease is given back: says whether the slab is left open. One that is being opened has
/// a lease of its own until it is.
LeaseId ReaderState::keeping_locked(LeaseId lease, const SlabKey& slab) const {
  const auto found = slabs.find(slab);
  const bool open = found != slabs.end() && (found->second->phase == OpenSlab::Phase::kOpen ||
                                             found->second->phase == OpenSlab::Phase::kClosing);
  return open ? lease | kKeepsSlabOpen : lease;
}

void ReaderState::close_idle_locked(TimePoint now, Ending& ending) {
  std::vector<std::shared_ptr<OpenSlab>> idle;
  for (const auto& [key, slab] : slabs) {
    if (slab->blocks == 0 && slab->phase == OpenSlab::Phase::kOpen) idle.push_back(slab);
  }
  std::sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) { return a->idle_since < b->idle_since; });
  for (std::size_t i = 0; i < idle.size(); ++i) {
    const bool too_many = idle.size() - i > options.idle_slabs_max;
    if (too_many || after(idle[i]->idle_since, options.idle_slab_time) <= now) close_locked(idle[i], ending);
  }
}

Status ReaderState::finish(Ending ending) {
  Status status = health->status();
  std::vector<std::shared_ptr<OpenSlab>> unclosed;
  for (const auto& slab : ending.closing) {
    if (health->failed()) break;
    const CurrentDeviceGuard current(runtime, *health, slab->device);
    Status closed = current.status();
    if (closed) closed = health->note(runtime.ipc_close_memory(slab->base), "cudaIpcCloseMemHandle");
    if (!closed && !is_gone(slab->key.first)) {  // of a dead owner there is nothing left to protect
      unclosed.push_back(slab);
      status = closed;
    }
  }
  if (!ending.closing.empty()) {
    {
      std::lock_guard lock(mutex);
      for (const auto& slab : ending.closing) {
        if (std::find(unclosed.begin(), unclosed.end(), slab) == unclosed.end()) {
          slabs.erase(slab->key);
        } else {
          slab->phase = OpenSlab::Phase::kOpen;  // tried again when idle slabs are closed
        }
      }
      // SR-3: the exporter must not free what is open still. A mapping's lease is given back when its slab is closed, a
      // block's by the next poll(), which closes the slab or keeps it.
      std::erase_if(ending.releasing, [&](const Ending::Release& entry) {
        if (std::find(unclosed.begin(), unclosed.end(), entry.slab) == unclosed.end()) return false;
        if (!entry.mapping) {
          ++entry.slab->blocks;
          releasing.push_back({entry.slab, entry.owner, entry.lease, {}});
        }
        return true;
      });
    }
    opened.notify_all();
  }
  if (health->failed()) return health->status();
  {
    std::lock_guard lock(mutex);
    // Mappings first: else the exporter might end one by itself, with the last block's lease.
    std::stable_partition(ending.releasing.begin(), ending.releasing.end(),
                          [](const Ending::Release& entry) { return entry.mapping; });
    for (Ending::Release& entry : ending.releasing) {
      if (entry.slab && !entry.mapping) entry.lease = keeping_locked(entry.lease, entry.slab->key);
    }
  }
  for (const Ending::Release& entry : ending.releasing) release(entry.owner, entry.lease);
  return status;
}

Status ReaderState::poll(TimePoint now, bool wait) {
  std::vector<Releasing> asked;
  {
    std::lock_guard lock(mutex);
    asked.swap(releasing);
  }
  Status status = health->status();
  std::vector<Releasing> waiting;
  std::vector<Releasing> done;
  for (Releasing& block : asked) {
    while (!health->failed() && !block.reads.empty()) {
      const Result<bool> passed = marks.passed(block.reads.back(), wait);
      if (!passed && status) status = fail(passed.error());  // of this block only, unless the device has failed
      if (!passed || !*passed) break;
      block.reads.pop_back();
    }
    (!health->failed() && block.reads.empty() ? done : waiting).push_back(std::move(block));
  }
  Ending ending;
  {
    std::lock_guard lock(mutex);
    releasing.insert(releasing.end(), std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end()));
    for (const Releasing& block : done) {
      if (block.slab) drop_block_locked(block.slab, now, ending);
      if (!gone.contains(block.owner)) ending.releasing.push_back({block.owner, block.lease, block.slab, false});
    }
    close_idle_locked(now, ending);
  }
  if (Status finished = finish(std::move(ending)); !finished) return finished;
  return status;
}

bool ReaderState::pending() const {
  std::lock_guard lock(mutex);
  if (!releasing.empty()) return true;
  return std::any_of(slabs.begin(), slabs.end(), [](const auto& entry) { return entry.second->blocks == 0; });
}

void ReaderState::owner_gone(const ActorId& owner) {
  Ending ending;
  {
    std::lock_guard lock(mutex);
    if (gone.insert(owner).second) {
      gone_order.push_back(owner);
      if (gone_order.size() > kGoneOwnersRemembered) {
        gone.erase(gone_order.front());
        gone_order.pop_front();
      }
    }
    released_through.erase(owner);
    std::vector<std::shared_ptr<OpenSlab>> unused;
    for (const auto& [key, slab] : slabs) {
      if (key.first == owner && slab->blocks == 0 && slab->phase == OpenSlab::Phase::kOpen) unused.push_back(slab);
    }
    for (const auto& slab : unused) close_locked(slab, ending);
  }
  events.owner_gone(owner);
  (void)finish(std::move(ending));
}

ReaderState::~ReaderState() {
  (void)poll(Clock::now(), true);
  Ending ending;
  {
    std::lock_guard lock(mutex);
    for (const auto& [key, slab] : slabs) {
      if (slab->phase == OpenSlab::Phase::kOpen) close_locked(slab, ending);
    }
  }
  (void)finish(std::move(ending));
  for (const Releasing& block : releasing) {
    for (const StreamMark& read : block.reads) marks.give_back(read);
  }
}

class SlabReaderImpl final : public SlabReader {
 public:
  explicit SlabReaderImpl(std::shared_ptr<ReaderState> state) : state_(std::move(state)) {}

  Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& block, Stream stream) override {
    CALLBOARD_ASSIGN(std::shared_ptr<ReadableBlock> opened, state_->open(block));
    CALLBOARD_TRY(opened->used_on(stream));  // the lease is the block's now, and ends with it
    return opened;
  }
  Result<std::shared_ptr<ReadableBlock>> open(const CudaIpcBlock& block) override { return state_->open(block); }
  std::optional<int> visible(const DeviceUuid& uuid) const override {
    const auto found = state_->devices.find(uuid);
    if (found == state_->devices.end()) return std::nullopt;
    return found->second;
  }
  Status poll(TimePoint now) override { return state_->poll(now, false); }
  bool pending() const override { return state_->pending(); }
  void owner_gone(const ActorId& owner) override { state_->owner_gone(owner); }
  SlabReaderStats stats() const override {
    std::lock_guard lock(state_->mutex);
    SlabReaderStats stats;
    stats.open_slabs = state_->slabs.size();
    for (const auto& [key, slab] : state_->slabs) stats.open_bytes += slab->bytes;
    stats.blocks = state_->blocks_held;
    stats.releasing = state_->releasing.size();
    stats.opened_events = state_->events.size();
    return stats;
  }

 private:
  const std::shared_ptr<ReaderState> state_;
};

}  // namespace

Result<std::unique_ptr<SlabReader>> SlabReader::create(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health,
                                                       SlabReaderOptions options, ReleaseFn release) {
  auto state = std::make_shared<ReaderState>(runtime, health, std::move(options), std::move(release));
  int count = 0;
  CALLBOARD_TRY(health->note(runtime.device_count(&count), "cudaGetDeviceCount"));
  for (int device = 0; device < count; ++device) {
    DeviceProperties properties;
    CALLBOARD_TRY(health->note(runtime.device_properties(device, &properties), "cudaGetDeviceProperties",
                               "device " + std::to_string(device)));
    state->devices.emplace(properties.uuid, device);
  }
  if (const std::optional<int> device = state->options.device; device && (*device < 0 || *device >= count)) {
    return fail(
        ErrorCode::kEnvironment,
        "device " + std::to_string(*device) + " is not among the " + std::to_string(count) + " that are visible here",
        "check CUDA_VISIBLE_DEVICES");
  }
  return std::make_unique<SlabReaderImpl>(std::move(state));
}

}  // namespace callboard::kernels::cuda
