// The fake runtime's calls between processes, and those of captures.
#include <utility>

#include "tests/kernels/cuda/fake_calls.h"
#include "tests/kernels/cuda/fake_runtime.h"

namespace callboard::kernels::cuda::testing {

// -- captures --------------------------------------------------------------------------------------------------------

namespace {

thread_local CaptureMode thread_mode = CaptureMode::kGlobal;

}  // namespace

void FakeRuntime::begin_capture(Stream stream) {
  std::lock_guard lock(mutex_);
  find_stream(stream)->capturing = true;
}
bool FakeRuntime::end_capture(Stream stream) {
  std::lock_guard lock(mutex_);
  StreamQueue& queue = *find_stream(stream);
  queue.capturing = false;
  return !std::exchange(queue.broken, false);
}

Code FakeRuntime::break_capture(StreamQueue& queue, Code code) {
  queue.broken = true;
  return code;
}

/// What a query of the event or a wait for it gives at once: captured events are never done, and the captures of
/// others, which are global ones, allow neither to a thread that is not relaxed.
Code FakeRuntime::ask_captured(const EventRef& ref) {
  if (ref.captured_by != nullptr) {
    StreamQueue* queue = find_stream(ref.captured_by);
    return queue == nullptr ? kCapturedEvent : break_capture(*queue, kCapturedEvent);
  }
  if (thread_mode == CaptureMode::kRelaxed) return kSuccess;
  for (const auto& [stream, queue] : streams_) {
    if (queue->capturing) return break_capture(*queue, kCaptureUnsupported);
  }
  return kSuccess;
}

Code FakeRuntime::stream_is_capturing(Stream stream, bool* capturing) {
  FAKE_BEGIN(Call::kStreamIsCapturing);
  const StreamQueue* queue = find_stream(stream);
  if (queue == nullptr) return end(kInvalidHandle);
  *capturing = queue->capturing;
  return kSuccess;
}
Code FakeRuntime::thread_exchange_capture_mode(CaptureMode* mode) {
  FAKE_BEGIN(Call::kThreadExchangeCaptureMode);
  std::swap(thread_mode, *mode);
  return kSuccess;
}

// -- between processes -----------------------------------------------------------------------------------------------

Code FakeRuntime::ipc_get_memory(IpcMemoryHandle* handle, void* pointer) {
  FAKE_BEGIN(Call::kIpcGetMemory);
  const auto found = find_range(pointer);
  if (!found || found->second.imported) return end(kInvalidValue);
  put(*handle, {kMemoryMagic, found->second.allocation, found->second.serial, process_});
  return kSuccess;
}

Code FakeRuntime::ipc_open_memory(void** pointer, const IpcMemoryHandle& handle) {
  FAKE_BEGIN(Call::kIpcOpenMemory);
  const HandleBytes bytes = get(handle);
  if (bytes.magic != kMemoryMagic || bytes.slot >= kAllocationsMax || bytes.process == process_) {
    return end(kInvalidValue);
  }
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  SharedAllocation& allocation = machine.allocations[bytes.slot];
  if (!allocation.used || allocation.serial != bytes.serial || !machine.alive[bytes.process]) return end(kMapFailed);
  const int device = current();
  if (device != allocation.device && !machine.device[device].peers[allocation.device]) return end(kPeerUnsupported);
  ++allocation.opens;
  std::byte* base = reserve(allocation.bytes);
  ranges_[base] = {allocation.bytes, bytes.slot, bytes.serial, true, device};
  *pointer = base;
  return kSuccess;
}

Code FakeRuntime::ipc_close_memory(void* pointer) {
  FAKE_BEGIN(Call::kIpcCloseMemory);
  const auto found = ranges_.find(static_cast<const std::byte*>(pointer));
  if (found == ranges_.end() || !found->second.imported) return end(kInvalidValue);
  if (found->second.device != current()) return end(kInvalidValue);
  SharedMachine& machine = machine_->shared();
  const MachineLock machine_lock(machine);
  SharedAllocation& allocation = machine.allocations[found->second.allocation];
  if (allocation.serial == found->second.serial && allocation.used) --allocation.opens;
  ::munmap(pointer, found->second.bytes);
  ranges_.erase(found);
  return kSuccess;
}

Code FakeRuntime::ipc_get_event(IpcEventHandle* handle, Event event) {
  FAKE_BEGIN(Call::kIpcGetEvent);
  const EventRef* ref = find_event(event);
  if (ref == nullptr || ref->imported || !ref->interprocess) return end(kInvalidHandle);
  put(*handle, {kEventMagic, ref->slot, ref->serial, process_});
  return kSuccess;
}

Code FakeRuntime::ipc_open_event(Event* event, const IpcEventHandle& handle) {
  FAKE_BEGIN(Call::kIpcOpenEvent);
  const HandleBytes bytes = get(handle);
  if (bytes.magic != kEventMagic || bytes.slot >= kEventsMax || bytes.process == process_) return end(kInvalidValue);
  const MachineLock machine_lock(machine_->shared());
  const SharedEvent& shared = machine_->shared().events[bytes.slot];
  if (!shared.used || shared.serial != bytes.serial || !machine_->shared().alive[bytes.process]) {
    return end(kMapFailed);
  }
  *event = add_event({bytes.slot, bytes.serial, true, true, current()});
  return kSuccess;
}

}  // namespace callboard::kernels::cuda::testing
