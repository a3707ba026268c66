#include "tests/kernels/cuda/fake_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "messages/base/check.h"
#include "tests/kernels/cuda/fake_calls.h"

namespace callboard::kernels::cuda::testing {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::chrono::seconds kHangs{60};

/// NVIDIA's text says of these that every later call fails too.
constexpr Code kPoisoning[] = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999};

/// All others make the current device's context.
constexpr Call kWithoutContext[] = {Call::kDeviceCount,
                                    Call::kDeviceProperties,
                                    Call::kGetDevice,
                                    Call::kSetDevice,
                                    Call::kHasContext,
                                    Call::kCanAccessPeer,
                                    Call::kThreadExchangeCaptureMode,
                                    Call::kGetLastError,
                                    Call::kPeekAtLastError};

constexpr const char* kCallNames[kCallCount] = {"device_count",
                                                "device_properties",
                                                "get_device",
                                                "set_device",
                                                "has_context",
                                                "can_access_peer",
                                                "malloc",
                                                "free",
                                                "malloc_host",
                                                "free_host",
                                                "mem_get_info",
                                                "address_range",
                                                "memcpy_async",
                                                "stream_create",
                                                "stream_destroy",
                                                "stream_synchronize",
                                                "stream_wait_event",
                                                "stream_is_capturing",
                                                "thread_exchange_capture_mode",
                                                "event_create",
                                                "event_destroy",
                                                "event_record",
                                                "event_query",
                                                "event_synchronize",
                                                "ipc_get_memory",
                                                "ipc_open_memory",
                                                "ipc_close_memory",
                                                "ipc_get_event",
                                                "ipc_open_event",
                                                "get_last_error",
                                                "peek_at_last_error"};

}  // namespace

namespace {

/// The runtime's current device is the thread's; each simulated process has its own.
thread_local std::map<const FakeRuntime*, int> current_devices;

}  // namespace

std::string call_name(Call call) { return kCallNames[static_cast<int>(call)]; }

// -- a process -------------------------------------------------------------------------------------------------------

namespace {

std::vector<int> all_devices(std::vector<int> visible, int count) {
  for (int i = 0; visible.empty() && i < count; ++i) {
    visible.resize(static_cast<std::size_t>(count));
    for (int j = 0; j < count; ++j) visible[static_cast<std::size_t>(j)] = j;
  }
  return visible;
}

}  // namespace

FakeRuntime::FakeRuntime(std::shared_ptr<FakeMachine> machine, std::vector<int> visible)
    : machine_(std::move(machine)), visible_(all_devices(std::move(visible), machine_->shared().devices)) {
  const MachineLock lock(machine_->shared());
  process_ = ++machine_->shared().processes;
  CALLBOARD_CHECK(process_ < kProcessesMax, "a fake machine has room for few processes");
  machine_->shared().alive[process_] = true;
}

FakeRuntime::~FakeRuntime() {
  die();
  current_devices.erase(this);
}

void FakeRuntime::die() {
  std::lock_guard lock(mutex_);
  if (dead_) return;
  dead_ = true;
  for (const auto& [base, range] : ranges_) ::munmap(const_cast<std::byte*>(base), range.bytes);
  {
    SharedMachine& machine = machine_->shared();
    const MachineLock machine_lock(machine);
    for (const auto& [base, range] : ranges_) {
      SharedAllocation& allocation = machine.allocations[range.allocation];
      if (range.imported && allocation.serial == range.serial) --allocation.opens;
    }
  }
  machine_->end_process(process_);
  ranges_.clear();
  streams_.clear();
  default_streams_.clear();
}

// -- failures --------------------------------------------------------------------------------------------------------

void FakeRuntime::inject(Call call, Code code, int skip, int times) {
  std::lock_guard lock(mutex_);
  injections_[call] = {code, skip, times};
}
void FakeRuntime::fail_device(Code code) {
  std::lock_guard lock(mutex_);
  sticky_ = code;
}
std::size_t FakeRuntime::calls(Call call) const {
  std::lock_guard lock(mutex_);
  return calls_[static_cast<std::size_t>(call)];
}

/// What a call gives before it does anything.
Code FakeRuntime::begin(Call call) {
  ++calls_[static_cast<std::size_t>(call)];
  if (dead_) return 709;
  if (sticky_ != kSuccess) return last_error_ = sticky_;
  pump_locked();
  if (std::find(std::begin(kWithoutContext), std::end(kWithoutContext), call) == std::end(kWithoutContext)) {
    contexts_.insert(current());
  }
  const auto found = injections_.find(call);
  if (found == injections_.end()) return kSuccess;
  Injection& injection = found->second;
  if (injection.skip > 0) {
    --injection.skip;
    return kSuccess;
  }
  const Code code = injection.code;
  if (--injection.times <= 0) injections_.erase(found);
  if (std::find(std::begin(kPoisoning), std::end(kPoisoning), code) != std::end(kPoisoning)) sticky_ = code;
  return last_error_ = code;
}
Code FakeRuntime::end(Code code) {
  if (code != kSuccess) last_error_ = code;
  return code;
}

Code FakeRuntime::get_last_error() {
  FAKE_BEGIN(Call::kGetLastError);
  return std::exchange(last_error_, kSuccess);
}
Code FakeRuntime::peek_at_last_error() {
  FAKE_BEGIN(Call::kPeekAtLastError);
  return last_error_;
}

// -- devices ---------------------------------------------------------------------------------------------------------

int FakeRuntime::current() const {
  const auto found = current_devices.find(this);
  return visible_[found == current_devices.end() ? 0 : static_cast<std::size_t>(found->second)];
}
Code FakeRuntime::device_count(int* count) {
  FAKE_BEGIN(Call::kDeviceCount);
  *count = static_cast<int>(visible_.size());
  return kSuccess;
}
Code FakeRuntime::device_properties(int device, DeviceProperties* properties) {
  FAKE_BEGIN(Call::kDeviceProperties);
  if (device < 0 || device >= static_cast<int>(visible_.size())) return end(kInvalidDevice);
  const MachineLock machine(machine_->shared());
  const SharedDevice& found = machine_->shared().device[visible_[static_cast<std::size_t>(device)]];
  *properties = {"Fake GPU", found.uuid, 9, 0, found.bytes, found.ipc_events};
  return kSuccess;
}
Code FakeRuntime::get_device(int* device) {
  FAKE_BEGIN(Call::kGetDevice);
  const auto found = current_devices.find(this);
  *device = found == current_devices.end() ? 0 : found->second;
  return kSuccess;
}
Code FakeRuntime::set_device(int device) {
  FAKE_BEGIN(Call::kSetDevice);
  if (device < 0 || device >= static_cast<int>(visible_.size())) return end(kInvalidDevice);
  current_devices[this] = device;
  contexts_.insert(current());
  return kSuccess;
}
Code FakeRuntime::has_context(int device, bool* has) {
  FAKE_BEGIN(Call::kHasContext);
  if (device < 0 || device >= static_cast<int>(visible_.size())) return end(kInvalidDevice);
  *has = contexts_.contains(visible_[static_cast<std::size_t>(device)]);
  return kSuccess;
}
Code FakeRuntime::can_access_peer(int device, int peer, bool* can) {
  FAKE_BEGIN(Call::kCanAccessPeer);
  const auto count = static_cast<int>(visible_.size());
  if (device < 0 || peer < 0 || device >= count || peer >= count) return end(kInvalidDevice);
  const MachineLock machine(machine_->shared());
  *can = machine_->shared()
             .device[visible_[static_cast<std::size_t>(device)]]
             .peers[visible_[static_cast<std::size_t>(peer)]];
  return kSuccess;
}

// -- memory ----------------------------------------------------------------------------------------------------------

std::optional<std::pair<const std::byte*, FakeRuntime::Range>> FakeRuntime::find_range(const void* pointer) const {
  const auto* at = static_cast<const std::byte*>(pointer);
  auto found = ranges_.upper_bound(at);
  if (found == ranges_.begin()) return std::nullopt;
  --found;
  if (at >= found->first + found->second.bytes) return std::nullopt;
  return std::pair(found->first, found->second);
}

/// Where the bytes are: in the machine for a device address, else where it says. With the machine's lock.
std::byte* FakeRuntime::resolve(const void* pointer) const {
  const auto range = find_range(pointer);
  if (!range) return static_cast<std::byte*>(const_cast<void*>(pointer));
  const SharedAllocation& allocation = machine_->shared().allocations[range->second.allocation];
  return machine_->at(allocation.device, allocation.offset) + (static_cast<const std::byte*>(pointer) - range->first);
}

Code FakeRuntime::malloc(void** pointer, std::size_t bytes) {
  FAKE_BEGIN(Call::kMalloc);
  if (bytes == 0) return end(kInvalidValue);
  const std::uint64_t whole = (bytes + kPage - 1) / kPage * kPage;
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  const int device = current();
  const auto place = find_place(machine, device, whole);
  auto* slot = std::find_if(std::begin(machine.allocations), std::end(machine.allocations),
                            [](const SharedAllocation& one) { return !one.used; });
  if (!place || slot == std::end(machine.allocations)) return end(kMemoryAllocation);
  *slot = {true, ++machine.serial, device, *place, whole, process_, 0};
  std::byte* base = reserve(whole);
  ranges_[base] = {whole, static_cast<std::size_t>(slot - machine.allocations), slot->serial, false, device};
  *pointer = base;
  return kSuccess;
}

Code FakeRuntime::free(void* pointer) {
  FAKE_BEGIN(Call::kFree);
  const auto found = ranges_.find(static_cast<const std::byte*>(pointer));
  if (found == ranges_.end() || found->second.imported) return end(kInvalidValue);
  const Range range = found->second;
  // As cudaFree, it waits for the device; a held stream that never runs would hang here, as there.
  const Code drained = wait_until([&] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& entry) { return entry.second->operations.empty(); });
  });
  if (drained != kSuccess) return end(drained);
  ::munmap(pointer, range.bytes);
  ranges_.erase(found);
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  SharedAllocation& allocation = machine.allocations[range.allocation];
  if (allocation.opens > 0) ++machine.violations;
  overwrite(machine_->at(allocation.device, allocation.offset), allocation.bytes);
  allocation.used = false;
  return kSuccess;
}

Code FakeRuntime::malloc_host(void** pointer, std::size_t bytes) {
  FAKE_BEGIN(Call::kMallocHost);
  auto memory = std::make_unique<std::byte[]>(bytes);
  *pointer = memory.get();
  pinned_[*pointer] = std::move(memory);
  return kSuccess;
}
Code FakeRuntime::free_host(void* pointer) {
  FAKE_BEGIN(Call::kFreeHost);
  return end(pinned_.erase(pointer) == 1 ? kSuccess : kInvalidValue);
}
Code FakeRuntime::mem_get_info(MemoryInfo* info) {
  FAKE_BEGIN(Call::kMemGetInfo);
  const std::uint64_t used = machine_->used_bytes(current());
  const std::uint64_t total = machine_->shared().device[current()].bytes;
  *info = {total - used, total};
  return kSuccess;
}
Code FakeRuntime::address_range(const void* pointer, AddressRange* range) {
  FAKE_BEGIN(Call::kAddressRange);
  const auto found = find_range(pointer);
  if (!found) return end(kInvalidValue);
  *range = {const_cast<std::byte*>(found->first), found->second.bytes};
  return kSuccess;
}

Code FakeRuntime::memcpy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  FAKE_BEGIN(Call::kMemcpyAsync);
  StreamQueue* queue = find_stream(stream);
  if (queue == nullptr) return end(kInvalidHandle);
  queue->operations.push_back({[this, to, from, bytes] { std::memmove(resolve(to), resolve(from), bytes); }, {}, 0});
  pump_locked();
  return kSuccess;
}

void FakeRuntime::write(void* device_pointer, const std::string& bytes) {
  std::lock_guard lock(mutex_);
  const MachineLock machine(machine_->shared());
  std::memcpy(resolve(device_pointer), bytes.data(), bytes.size());
}
std::string FakeRuntime::read(const void* device_pointer, std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  const MachineLock machine(machine_->shared());
  return {reinterpret_cast<const char*>(resolve(device_pointer)), bytes};
}
std::size_t FakeRuntime::open_mappings() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(ranges_.begin(), ranges_.end(), [](const auto& entry) { return entry.second.imported; }));
}
std::size_t FakeRuntime::live_events() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

// -- streams ---------------------------------------------------------------------------------------------------------

FakeRuntime::StreamQueue* FakeRuntime::find_stream(Stream stream) {
  if (stream == nullptr) {
    auto& queue = default_streams_[current()];
    if (!queue) {
      queue = std::make_unique<StreamQueue>();
      queue->device = current();
    }
    return queue.get();
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second.get();
}

/// Does all that can be done now. True if something was.
bool FakeRuntime::pump_locked() {
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  bool any = false;
  const auto pump_one = [&](StreamQueue& queue) {
    bool moved = false;
    while (!queue.operations.empty() && (!queue.held || queue.steps > 0)) {
      Operation& next = queue.operations.front();
      if (next.wait) {
        const SharedEvent& event = machine.events[next.wait->first];
        const bool same = event.used && event.serial == next.wait_serial;
        if (same && event.completed < next.wait->second) break;
      } else {
        next.work();
      }
      queue.operations.pop_front();
      if (queue.steps > 0) --queue.steps;
      moved = true;
    }
    return moved;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [stream, queue] : streams_) moved = pump_one(*queue) || moved;
    for (const auto& [device, queue] : default_streams_) moved = pump_one(*queue) || moved;
    any = any || moved;
  }
  return any;
}

/// Lets go of the lock between looks, so that other threads and processes get on.
template <class Done>
Code FakeRuntime::wait_until(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kHangs;
  for (;;) {
    if (sticky_ != kSuccess) return sticky_;
    pump_locked();
    if (done()) return kSuccess;
    CALLBOARD_CHECK(std::chrono::steady_clock::now() < deadline, "a stream that is waited for must get on");
    mutex_.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // tidy: allow, a mutex is not fair: others need it
    mutex_.lock();
  }
}

void FakeRuntime::hold(Stream stream) {
  std::lock_guard lock(mutex_);
  find_stream(stream)->held = true;
}
void FakeRuntime::run(Stream stream) {
  std::lock_guard lock(mutex_);
  find_stream(stream)->held = false;
  pump_locked();
}
void FakeRuntime::step(Stream stream, std::size_t count) {
  std::lock_guard lock(mutex_);
  find_stream(stream)->steps = count;
  pump_locked();
  find_stream(stream)->steps = 0;
}
std::size_t FakeRuntime::queued(Stream stream) const {
  std::lock_guard lock(mutex_);
  auto* self = const_cast<FakeRuntime*>(this);
  self->pump_locked();
  return self->find_stream(stream)->operations.size();
}

Code FakeRuntime::stream_create(Stream* stream) {
  FAKE_BEGIN(Call::kStreamCreate);
  auto queue = std::make_unique<StreamQueue>();
  queue->device = current();
  *stream = reinterpret_cast<Stream>(queue.get());
  streams_[*stream] = std::move(queue);
  return kSuccess;
}
Code FakeRuntime::stream_destroy(Stream stream) {
  FAKE_BEGIN(Call::kStreamDestroy);
  return end(streams_.erase(stream) == 1 ? kSuccess : kInvalidHandle);
}
Code FakeRuntime::stream_synchronize(Stream stream) {
  FAKE_BEGIN(Call::kStreamSynchronize);
  StreamQueue* queue = find_stream(stream);
  if (queue == nullptr) return end(kInvalidHandle);
  if (queue->capturing) return end(break_capture(*queue, kCaptureUnsupported));
  return end(wait_until([queue] { return queue->operations.empty(); }));
}
Code FakeRuntime::stream_wait_event(Stream stream, Event event) {
  FAKE_BEGIN(Call::kStreamWaitEvent);
  StreamQueue* queue = find_stream(stream);
  const EventRef* ref = find_event(event);
  if (queue == nullptr || ref == nullptr) return end(kInvalidHandle);
  std::uint64_t recorded = 0;
  {
    const MachineLock machine(machine_->shared());
    const SharedEvent& shared = machine_->shared().events[ref->slot];
    if (!shared.used || shared.serial != ref->serial) return end(kInvalidHandle);
    recorded = shared.recorded;
  }
  queue->operations.push_back({{}, std::pair(ref->slot, recorded), ref->serial});
  pump_locked();
  return kSuccess;
}

// -- events ----------------------------------------------------------------------------------------------------------

Event FakeRuntime::add_event(const EventRef& ref) {
  auto made = std::make_unique<EventRef>(ref);
  const auto event = reinterpret_cast<Event>(made.get());
  events_[event] = std::move(made);
  return event;
}
FakeRuntime::EventRef* FakeRuntime::find_event(Event event) {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second.get();
}

Code FakeRuntime::event_create(Event* event, EventKind kind) {
  FAKE_BEGIN(Call::kEventCreate);
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  auto* slot = std::find_if(std::begin(machine.events), std::end(machine.events),
                            [](const SharedEvent& one) { return !one.used; });
  if (slot == std::end(machine.events)) return end(kMemoryAllocation);
  *slot = {true, ++machine.serial, process_, 0, 0};
  *event = add_event({static_cast<std::size_t>(slot - machine.events), slot->serial, false,
                      kind == EventKind::kInterprocess, current()});
  return kSuccess;
}
Code FakeRuntime::event_destroy(Event event) {
  FAKE_BEGIN(Call::kEventDestroy);
  const EventRef* ref = find_event(event);
  if (ref == nullptr) return end(kInvalidHandle);
  if (!ref->imported) {
    const MachineLock machine(machine_->shared());
    machine_->shared().events[ref->slot].used = false;
  }
  events_.erase(event);
  return kSuccess;
}
Code FakeRuntime::event_record(Event event, Stream stream) {
  FAKE_BEGIN(Call::kEventRecord);
  StreamQueue* queue = find_stream(stream);
  EventRef* ref = find_event(event);
  if (queue == nullptr || ref == nullptr || ref->imported || ref->device != queue->device) return end(kInvalidHandle);
  ref->captured_by = queue->capturing ? stream : nullptr;
  if (queue->capturing) return kSuccess;
  SharedMachine& machine = machine_->shared();
  const std::size_t slot = ref->slot;
  std::uint64_t number = 0;
  {
    const MachineLock machine_lock(machine);
    number = ++machine.events[slot].recorded;
  }
  queue->operations.push_back({[&machine, slot, number, serial = ref->serial] {
                                 SharedEvent& shared = machine.events[slot];
                                 if (shared.serial == serial) shared.completed = std::max(shared.completed, number);
                               },
                               {},
                               0});
  pump_locked();
  return kSuccess;
}
Code FakeRuntime::event_query(Event event) {
  FAKE_BEGIN(Call::kEventQuery);
  const EventRef* ref = find_event(event);
  if (ref == nullptr) return end(kInvalidHandle);
  if (const Code forbidden = ask_captured(*ref); forbidden != kSuccess) return end(forbidden);
  const MachineLock machine(machine_->shared());
  const SharedEvent& shared = machine_->shared().events[ref->slot];
  return shared.completed >= shared.recorded ? kSuccess : kNotReady;
}
Code FakeRuntime::event_synchronize(Event event) {
  FAKE_BEGIN(Call::kEventSynchronize);
  const EventRef* ref = find_event(event);
  if (ref == nullptr) return end(kInvalidHandle);
  if (const Code forbidden = ask_captured(*ref); forbidden != kSuccess) return end(forbidden);
  const std::size_t slot = ref->slot;
  return end(wait_until([this, slot] {
    const MachineLock machine(machine_->shared());
    const SharedEvent& shared = machine_->shared().events[slot];
    return shared.completed >= shared.recorded;
  }));
}

}  // namespace callboard::kernels::cuda::testing
