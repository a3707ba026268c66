// The calls of the CUDA runtime that our memory code makes, and no more. Behind an interface, so that slabs, leases,
// the order of events and every failure are tested without a GPU (tests/kernels/cuda/fake_runtime.h), and so that no
// header of CUDA is needed here. An abstract class and not a struct of pointers: the test double carries the state of
// one simulated process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace callboard::kernels::cuda {

/// A cudaError_t by its number. Which numbers mean what: device_error.h.
using Code = int;
constexpr Code kSuccess = 0;

/// A cudaStream_t and a cudaEvent_t, cast. A null stream is the legacy default stream.
struct StreamTag;
struct EventTag;
using Stream = StreamTag*;
using Event = EventTag*;

struct DeviceUuid {
  std::array<char, 16> bytes{};
  auto operator<=>(const DeviceUuid&) const = default;
  /// "GPU-5b6a7c8d-…", as nvidia-smi and CUDA_VISIBLE_DEVICES write it.
  std::string to_string() const;
};
struct IpcMemoryHandle {
  std::array<char, 64> bytes{};
  auto operator<=>(const IpcMemoryHandle&) const = default;
};
struct IpcEventHandle {
  std::array<char, 64> bytes{};
  auto operator<=>(const IpcEventHandle&) const = default;
};

struct DeviceProperties {
  std::string name;
  DeviceUuid uuid;
  int major = 0;  ///< compute capability
  int minor = 0;
  std::uint64_t total_bytes = 0;
  bool ipc_events = false;  ///< can hand events to other processes
};

struct MemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

struct AddressRange {
  void* base = nullptr;
  std::uint64_t bytes = 0;
};

enum class EventKind : std::uint8_t { kLocal, kInterprocess };  ///< neither takes times

/// Which captures forbid a thread the calls that CUDA calls unsafe while one is under way: all of the process's threads
/// that are global themselves, its own, none.
enum class CaptureMode : std::uint8_t { kGlobal, kThreadLocal, kRelaxed };

/// Each method is one call of the runtime with that name and gives its code. Outputs are written only on kSuccess.
/// Thread-safe as the runtime is; device, stream and event arguments follow its rules: a stream or event is made for
/// the calling thread's current device, and an event may be waited for on any device.
class RuntimeTable {
 public:
  virtual ~RuntimeTable() = default;

  virtual Code device_count(int* count) = 0;
  virtual Code device_properties(int device, DeviceProperties* properties) = 0;
  virtual Code get_device(int* device) = 0;
  virtual Code set_device(int device) = 0;
  /// Whether this process uses the device already: set_device() would begin to (cuDevicePrimaryCtxGetState).
  virtual Code has_context(int device, bool* has) = 0;
  virtual Code can_access_peer(int device, int peer, bool* can) = 0;

  virtual Code malloc(void** pointer, std::size_t bytes) = 0;  // cudaMalloc on the current device
  virtual Code free(void* pointer) = 0;
  /// Pinned host memory.
  virtual Code malloc_host(void** pointer, std::size_t bytes) = 0;
  virtual Code free_host(void* pointer) = 0;
  virtual Code mem_get_info(MemoryInfo* info) = 0;  // of the current device
  /// The whole allocation that a device pointer lies in, imported ones too (cuMemGetAddressRange).
  virtual Code address_range(const void* pointer, AddressRange* range) = 0;
  /// cudaMemcpyAsync with cudaMemcpyDefault: the direction follows from the addresses, devices may differ.
  virtual Code memcpy_async(void* to, const void* from, std::size_t bytes, Stream stream) = 0;

  virtual Code stream_create(Stream* stream) = 0;  // non-blocking
  virtual Code stream_destroy(Stream stream) = 0;
  virtual Code stream_synchronize(Stream stream) = 0;
  virtual Code stream_wait_event(Stream stream, Event event) = 0;
  virtual Code stream_is_capturing(Stream stream, bool* capturing) = 0;
  /// Of the calling thread; `mode` becomes what it was before. Makes no context.
  virtual Code thread_exchange_capture_mode(CaptureMode* mode) = 0;

  virtual Code event_create(Event* event, EventKind kind) = 0;
  virtual Code event_destroy(Event event) = 0;
  virtual Code event_record(Event event, Stream stream) = 0;
  /// 600 (not ready) is an answer, not a failure.
  virtual Code event_query(Event event) = 0;
  virtual Code event_synchronize(Event event) = 0;

  virtual Code ipc_get_memory(IpcMemoryHandle* handle, void* pointer) = 0;
  /// With lazy peer access, so that the current device may read another one's memory. Never in the exporting process.
  virtual Code ipc_open_memory(void** pointer, const IpcMemoryHandle& handle) = 0;
  virtual Code ipc_close_memory(void* pointer) = 0;
  virtual Code ipc_get_event(IpcEventHandle* handle, Event event) = 0;
  virtual Code ipc_open_event(Event* event, const IpcEventHandle& handle) = 0;

  /// The last error of the calling thread; get_ forgets it (a sticky one stays).
  virtual Code get_last_error() = 0;
  virtual Code peek_at_last_error() = 0;
};

/// The one that ships. Defined in runtime_table_cuda.cpp, which only the CUDA plug-in links. Lives for ever.
RuntimeTable& cuda_runtime();

}  // namespace callboard::kernels::cuda
