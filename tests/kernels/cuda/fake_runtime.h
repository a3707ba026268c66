// A CUDA runtime without a GPU: "device memory" lies in a shared mapping that several processes reach, streams are
// queues that a test can hold back, and every call can be made to fail with any code. What is forgotten shows: a
// missing wait reads old bytes, memory that is freed too early is overwritten, a device pointer that the host touches
// faults.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/runtime_table.h"
#include "tests/kernels/cuda/fake_machine.h"

namespace callboard::kernels::cuda::testing {

enum class Call {
  kDeviceCount,
  kDeviceProperties,
  kGetDevice,
  kSetDevice,
  kHasContext,
  kCanAccessPeer,
  kMalloc,
  kFree,
  kMallocHost,
  kFreeHost,
  kMemGetInfo,
  kAddressRange,
  kMemcpyAsync,
  kStreamCreate,
  kStreamDestroy,
  kStreamSynchronize,
  kStreamWaitEvent,
  kStreamIsCapturing,
  kThreadExchangeCaptureMode,
  kEventCreate,
  kEventDestroy,
  kEventRecord,
  kEventQuery,
  kEventSynchronize,
  kIpcGetMemory,
  kIpcOpenMemory,
  kIpcCloseMemory,
  kIpcGetEvent,
  kIpcOpenEvent,
  kGetLastError,
  kPeekAtLastError,
};
constexpr int kCallCount = static_cast<int>(Call::kPeekAtLastError) + 1;
std::string call_name(Call call);

/// The runtime of one simulated process. Several may live in one real process, each with its own pointers, streams and
/// failures. Thread-safe.
class FakeRuntime final : public RuntimeTable {
 public:
  /// `visible`: the machine's devices in the order of CUDA_VISIBLE_DEVICES; empty: all.
  explicit FakeRuntime(std::shared_ptr<FakeMachine> machine, std::vector<int> visible = {});
  ~FakeRuntime() override;  // as die()

  // -- what tests do to it
  /// The next `times` calls of `call`, after `skip` good ones, do nothing and give `code`. A code of those that poison
  /// a context makes every later call give it too.
  void inject(Call call, Code code, int skip = 0, int times = 1);
  void fail_device(Code code);
  std::size_t calls(Call call) const;
  /// Nothing queued on the stream is done until run(). Null: the default stream of device 0.
  void hold(Stream stream);
  void run(Stream stream);
  /// Does the next `count` things of a held stream.
  void step(Stream stream, std::size_t count);
  std::size_t queued(Stream stream) const;
  /// What is recorded on the stream meanwhile belongs to the capture, which is a global one. False: some call has
  /// broken it.
  void begin_capture(Stream stream);
  bool end_capture(Stream stream);
  /// The process is killed: its memory is gone (and overwritten), its streams stop, its events count as done.
  void die();
  std::size_t process() const { return process_; }                        ///< number on the machine
  void write(void* device_pointer, const std::string& bytes);             ///< at once, around all streams
  std::string read(const void* device_pointer, std::size_t bytes) const;  ///< likewise
  std::size_t open_mappings() const;
  std::size_t live_events() const;  ///< made or opened here and not destroyed

  Code device_count(int* count) override;
  Code device_properties(int device, DeviceProperties* properties) override;
  Code get_device(int* device) override;
  Code set_device(int device) override;
  Code has_context(int device, bool* has) override;
  Code can_access_peer(int device, int peer, bool* can) override;
  Code malloc(void** pointer, std::size_t bytes) override;
  Code free(void* pointer) override;
  Code malloc_host(void** pointer, std::size_t bytes) override;
  Code free_host(void* pointer) override;
  Code mem_get_info(MemoryInfo* info) override;
  Code address_range(const void* pointer, AddressRange* range) override;
  Code memcpy_async(void* to, const void* from, std::size_t bytes, Stream stream) override;
  Code stream_create(Stream* stream) override;
  Code stream_destroy(Stream stream) override;
  Code stream_synchronize(Stream stream) override;
  Code stream_wait_event(Stream stream, Event event) override;
  Code stream_is_capturing(Stream stream, bool* capturing) override;
  Code thread_exchange_capture_mode(CaptureMode* mode) override;
  Code event_create(Event* event, EventKind kind) override;
  Code event_destroy(Event event) override;
  Code event_record(Event event, Stream stream) override;
  Code event_query(Event event) override;
  Code event_synchronize(Event event) override;
  Code ipc_get_memory(IpcMemoryHandle* handle, void* pointer) override;
  Code ipc_open_memory(void** pointer, const IpcMemoryHandle& handle) override;
  Code ipc_close_memory(void* pointer) override;
  Code ipc_get_event(IpcEventHandle* handle, Event event) override;
  Code ipc_open_event(Event* event, const IpcEventHandle& handle) override;
  Code get_last_error() override;
  Code peek_at_last_error() override;

 private:
  struct Range {  ///< device addresses of this process
    std::uint64_t bytes = 0;
    std::size_t allocation = 0;  ///< slot in the machine
    std::uint64_t serial = 0;
    bool imported = false;
    int device = 0;  ///< the machine's number of the one that it was imported for
  };
  struct EventRef {
    std::size_t slot = 0;
    std::uint64_t serial = 0;
    bool imported = false;
    bool interprocess = false;
    int device = 0;  ///< the machine's number; of an imported one: nobody's
    Stream captured_by = nullptr;
  };
  struct Operation {
    std::function<void()> work = {};                                 ///< with the machine's lock
    std::optional<std::pair<std::size_t, std::uint64_t>> wait = {};  ///< event slot and the record to wait for
    std::uint64_t wait_serial = 0;
  };
  struct StreamQueue {
    int device = 0;
    bool held = false;
    bool capturing = false;
    bool broken = false;  ///< the capture
    std::size_t steps = 0;
    std::deque<Operation> operations;
  };
  struct Injection {
    Code code = 0;
    int skip = 0;
    int times = 0;
  };

  Code begin(Call call);
  Code end(Code code);
  int current() const;  ///< the machine's number of the calling thread's device
  StreamQueue* find_stream(Stream stream);
  std::optional<std::pair<const std::byte*, Range>> find_range(const void* pointer) const;
  std::byte* resolve(const void* pointer) const;
  bool pump_locked();
  template <class Done>
  Code wait_until(Done done);
  Event add_event(const EventRef& ref);
  EventRef* find_event(Event event);
  static Code break_capture(StreamQueue& queue, Code code);
  Code ask_captured(const EventRef& ref);

  const std::shared_ptr<FakeMachine> machine_;
  const std::vector<int> visible_;
  std::size_t process_ = 0;

  mutable std::mutex mutex_;
  bool dead_ = false;
  Code sticky_ = kSuccess;
  Code last_error_ = kSuccess;
  std::set<int> contexts_;  // the machine's numbers
  std::array<std::size_t, kCallCount> calls_{};
  std::map<Call, Injection> injections_;
  std::map<const std::byte*, Range> ranges_;
  std::map<void*, std::unique_ptr<std::byte[]>> pinned_;
  std::map<Stream, std::unique_ptr<StreamQueue>> streams_;
  std::map<int, std::unique_ptr<StreamQueue>> default_streams_;
  std::map<Event, std::unique_ptr<EventRef>> events_;
};

}  // namespace callboard::kernels::cuda::testing
