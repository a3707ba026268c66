// The table that ships: each method is the call of that name. The one file of this folder that includes CUDA.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>

#include "kernels/cuda/runtime_table.h"

namespace callboard::kernels::cuda {

namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcMemoryHandle));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(IpcEventHandle));
static_assert(sizeof(cudaUUID_t) == sizeof(DeviceUuid));
static_assert(cudaSuccess == kSuccess);

cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t native(Event event) { return reinterpret_cast<cudaEvent_t>(event); }

/// A failed call leaves its code as the thread's last error, where the next caller that asks would take it for its own
/// (LibTorch does, after each kernel). We have the code: forget it there. A sticky one stays whatever we do.
Code done(cudaError_t code) {
  if (code != cudaSuccess) (void)cudaGetLastError();
  return static_cast<Code>(code);
}

using AddressRangeFn = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
using ContextStateFn = CUresult (*)(CUdevice, unsigned int*, int*);
using CaptureModeFn = CUresult (*)(CUstreamCaptureMode*);

/// Of the driver, through the runtime, so that nothing links libcuda, which is absent where there is no driver.
/// `version`: of CUDA, from which on it has the signature that is meant.
template <class Function>
Code driver_function(const char* name, unsigned int version, Function* function) {
  static std::mutex mutex;
  static Function known = nullptr;  // there is one of each type
  std::lock_guard lock(mutex);
  if (known == nullptr) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult outcome = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &outcome);
    if (code != cudaSuccess) return done(code);
    if (outcome != cudaDriverEntryPointSuccess || found == nullptr) return cudaErrorCallRequiresNewerDriver;
    known = reinterpret_cast<Function>(found);
  }
  *function = known;
  return kSuccess;
}

static_assert(static_cast<int>(CaptureMode::kGlobal) == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(static_cast<int>(CaptureMode::kThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(static_cast<int>(CaptureMode::kRelaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);

class CudaRuntime final : public RuntimeTable {
 public:
  Code device_count(int* count) override { return done(cudaGetDeviceCount(count)); }
  Code device_properties(int device, DeviceProperties* properties) override {
    cudaDeviceProp native_properties{};
    if (const Code code = done(cudaGetDeviceProperties(&native_properties, device)); code != kSuccess) return code;
    int ipc_events = 0;
    if (const Code code = done(cudaDeviceGetAttribute(&ipc_events, cudaDevAttrIpcEventSupport, device));
        code != kSuccess) {
      return code;
    }
    properties->name = native_properties.name;
    std::memcpy(properties->uuid.bytes.data(), &native_properties.uuid, sizeof(DeviceUuid));
    properties->major = native_properties.major;
    properties->minor = native_properties.minor;
    properties->total_bytes = native_properties.totalGlobalMem;
    properties->ipc_events = ipc_events != 0;
    return kSuccess;
  }
  Code get_device(int* device) override { return done(cudaGetDevice(device)); }
  Code set_device(int device) override { return done(cudaSetDevice(device)); }
  Code has_context(int device, bool* has) override {
    ContextStateFn function = nullptr;
    if (const Code code = driver_function("cuDevicePrimaryCtxGetState", 7000, &function); code != kSuccess) return code;
    unsigned int flags = 0;
    int active = 0;
    const CUresult outcome = function(device, &flags, &active);  // a CUdevice is the device's ordinal
    // The same numbers as the runtime's for what this call can give: see address_range().
    if (outcome != CUDA_SUCCESS) return static_cast<Code>(outcome);
    *has = active != 0;
    return kSuccess;
  }
  Code can_access_peer(int device, int peer, bool* can) override {
    int answer = 0;
    const Code code = done(cudaDeviceCanAccessPeer(&answer, device, peer));
    if (code == kSuccess) *can = answer != 0;
    return code;
  }

  Code malloc(void** pointer, std::size_t bytes) override { return done(cudaMalloc(pointer, bytes)); }
  Code free(void* pointer) override { return done(cudaFree(pointer)); }
  Code malloc_host(void** pointer, std::size_t bytes) override {
    return done(cudaHostAlloc(pointer, bytes, cudaHostAllocPortable));
  }
  Code free_host(void* pointer) override { return done(cudaFreeHost(pointer)); }
  Code mem_get_info(MemoryInfo* info) override {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    const Code code = done(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (code == kSuccess) *info = {free_bytes, total_bytes};
    return code;
  }
  Code address_range(const void* pointer, AddressRange* range) override {
    AddressRangeFn function = nullptr;
    if (const Code code = driver_function("cuMemGetAddressRange", 3020, &function); code != kSuccess) return code;
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    const CUresult outcome = function(&base, &bytes, reinterpret_cast<CUdeviceptr>(pointer));
    // The runtime's codes are the driver's but for a few historical ones below 100, of which this call can give
    // invalid value (1), not initialized (3) and deinitialized (4): the same.
    if (outcome != CUDA_SUCCESS) return static_cast<Code>(outcome);
    *range = {reinterpret_cast<void*>(base), bytes};
    return kSuccess;
  }
  Code memcpy_async(void* to, const void* from, std::size_t bytes, Stream stream) override {
    return done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)));
  }

  Code stream_create(Stream* stream) override {
    cudaStream_t made = nullptr;
    const Code code = done(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    if (code == kSuccess) *stream = reinterpret_cast<Stream>(made);
    return code;
  }
  Code stream_destroy(Stream stream) override { return done(cudaStreamDestroy(native(stream))); }
  Code stream_synchronize(Stream stream) override { return done(cudaStreamSynchronize(native(stream))); }
  Code stream_wait_event(Stream stream, Event event) override {
    return done(cudaStreamWaitEvent(native(stream), native(event), cudaEventWaitDefault));
  }
  Code stream_is_capturing(Stream stream, bool* capturing) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const Code code = done(cudaStreamIsCapturing(native(stream), &status));
    if (code == kSuccess) *capturing = status != cudaStreamCaptureStatusNone;
    return code;
  }
  Code thread_exchange_capture_mode(CaptureMode* mode) override {
    // The driver's: the runtime's might make a context on device 0 for a thread that uses none yet.
    CaptureModeFn function = nullptr;
    const Code code = driver_function("cuThreadExchangeStreamCaptureMode", 10010, &function);
    if (code != kSuccess) return code;
    auto exchanged = static_cast<CUstreamCaptureMode>(*mode);
    const CUresult outcome = function(&exchanged);
    if (outcome != CUDA_SUCCESS) return static_cast<Code>(outcome);
    *mode = static_cast<CaptureMode>(exchanged);
    return kSuccess;
  }

  Code event_create(Event* event, EventKind kind) override {
    cudaEvent_t made = nullptr;
    unsigned int flags = cudaEventDisableTiming;
    if (kind == EventKind::kInterprocess) flags |= cudaEventInterprocess;
    const Code code = done(cudaEventCreateWithFlags(&made, flags));
    if (code == kSuccess) *event = reinterpret_cast<Event>(made);
    return code;
  }
  Code event_destroy(Event event) override { return done(cudaEventDestroy(native(event))); }
  Code event_record(Event event, Stream stream) override {
    return done(cudaEventRecord(native(event), native(stream)));
  }
  Code event_query(Event event) override { return done(cudaEventQuery(native(event))); }
  Code event_synchronize(Event event) override { return done(cudaEventSynchronize(native(event))); }

  Code ipc_get_memory(IpcMemoryHandle* handle, void* pointer) override {
    return done(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), pointer));
  }
  Code ipc_open_memory(void** pointer, const IpcMemoryHandle& handle) override {
    cudaIpcMemHandle_t native_handle;
    std::memcpy(&native_handle, &handle, sizeof native_handle);
    return done(cudaIpcOpenMemHandle(pointer, native_handle, cudaIpcMemLazyEnablePeerAccess));
  }
  Code ipc_close_memory(void* pointer) override { return done(cudaIpcCloseMemHandle(pointer)); }
  Code ipc_get_event(IpcEventHandle* handle, Event event) override {
    return done(cudaIpcGetEventHandle(reinterpret_cast<cudaIpcEventHandle_t*>(handle), native(event)));
  }
  Code ipc_open_event(Event* event, const IpcEventHandle& handle) override {
    cudaIpcEventHandle_t native_handle;
    std::memcpy(&native_handle, &handle, sizeof native_handle);
    cudaEvent_t made = nullptr;
    const Code code = done(cudaIpcOpenEventHandle(&made, native_handle));
    if (code == kSuccess) *event = reinterpret_cast<Event>(made);
    return code;
  }

  Code get_last_error() override { return static_cast<Code>(cudaGetLastError()); }
  Code peek_at_last_error() override { return static_cast<Code>(cudaPeekAtLastError()); }
};

}  // namespace

RuntimeTable& cuda_runtime() {
  static CudaRuntime* const runtime = new CudaRuntime;  // destructors of others may still call it
  return *runtime;
}

}  // namespace callboard::kernels::cuda
