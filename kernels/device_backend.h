// What a kind of device must offer to KernelStreams. One implementation per kind; tests/conformance says what each must
// hold to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include "messages/base/clock.h"
#include "messages/base/error.h"
#include "messages/base/ids.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

enum class StreamKind : std::uint8_t { kCompute, kCommunicate };
std::string_view stream_kind_name(StreamKind kind);

/// A point in one stream's work. May be waited for from any stream of the same backend, and dropped at any time.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool ready() const = 0;
};

/// What a stream was given once, to be given to it again as a whole (a CUDA graph). Belongs to its stream's thread.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Queues it all, on the memory that it was captured with.
  virtual Status replay() = 0;
};

/// One device stream. Everything but wait() belongs to the thread of the KernelStream that owns it.
class StreamContext {
 public:
  virtual ~StreamContext() = default;

  /// Makes this the calling thread's current stream; leave() puts back what was current before.
  virtual void enter() = 0;
  virtual void leave() = 0;
  /// Is this the calling thread's current stream? Asked twice for each kernel: must cost nanoseconds.
  virtual bool is_current() const = 0;

  virtual std::shared_ptr<DeviceEvent> record() = 0;
  /// Orders what this stream does next after `event`. kDeadlineExceeded where the wait is the calling thread's own.
  virtual Status wait(const DeviceEvent& event, TimePoint deadline) = 0;
  /// Queues a copy within the device, or to it from ordinary (not page-locked) host memory. The latter has been read
  /// when this returns (which may wait for earlier copies of that kind); memory of the device stays valid until an
  /// event recorded after it is ready.
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  /// Copies to ordinary host memory, after all that this stream was given; it is there when this returns. Parks.
  virtual Status read_back(void* to, const void* from, std::size_t bytes, TimePoint deadline) = 0;
  /// The calling thread parks until all that this stream was given is done. kDeadlineExceeded, or kDeviceFailed where
  /// the device cannot go on.
  virtual Status synchronize(TimePoint deadline) = 0;

  /// Can work be captured on this stream at all?
  virtual bool can_capture() const { return false; }
  /// Calls `work` once; what it queues here is not run but captured. What it allocates belongs to the captured work and
  /// stays as long as that. The error of `work`, or kUnsupported where the device refused something it did.
  virtual Result<std::unique_ptr<CapturedWork>> capture(const std::function<Status()>& /*work*/) {
    return fail(ErrorCode::kUnsupported, "streams of this kind of device capture nothing");
  }
};

/// Holds enter()/leave() for a scope.
class CurrentStreamGuard {
 public:
  explicit CurrentStreamGuard(StreamContext& stream) : stream_(stream) { stream_.enter(); }
  ~CurrentStreamGuard() { stream_.leave(); }
  CurrentStreamGuard(const CurrentStreamGuard&) = delete;
  CurrentStreamGuard& operator=(const CurrentStreamGuard&) = delete;

 private:
  StreamContext& stream_;
};

struct DeviceMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;
};

class DeviceExchange;

/// Which device, and for whom.
struct BackendOptions {
  ActorId self;                    ///< owner of what it lends to others
  std::uint32_t index = 0;         ///< cuda: which GPU, as CUDA numbers them
  std::string uuid;                ///< cuda: "GPU-…", instead of the number; empty: by number
  std::uint64_t memory_limit = 0;  ///< bytes of the device's own memory for results and activations; 0: no limit
  /// Gives back a lease on memory that another process lent; any thread, must only post.
  std::function<void(const ActorId& owner, LeaseId lease)> release = {};
};

/// Thread-safe.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;
  virtual std::string_view kind() const = 0;
  /// What a program's device slot 0 means here.
  virtual c10::Device device() const = 0;
  virtual Result<std::unique_ptr<StreamContext>> make_stream(StreamKind kind) = 0;
  virtual Result<DeviceMemory> memory() const = 0;
  /// For the calling thread, which is a compute stream's.
  virtual void set_intra_op_threads(int threads) = 0;
  /// Can any kernel of this device run the operator? A yes may still fail for the layout it is given.
  virtual bool can_run(const std::string& name, const std::string& overload) const = 0;

  /// nullptr where device memory is host memory: then it is the arena that others read.
  virtual DeviceExchange* exchange() { return nullptr; }
  /// Gives free memory back to the system that a fresh allocation could not use. False if there was none: trying again
  /// makes no sense. Not while one of its streams runs kernels.
  virtual bool release_cached_memory() { return false; }
  /// kDeviceFailed once the device can run nothing more and its process must end. Asked after each fragment.
  virtual Status health() const { return {}; }
  /// JSON object with what this kind has to say of itself, for describe(); empty: nothing.
  virtual std::string describe() const { return {}; }
};

using BackendFactory = std::function<Result<std::unique_ptr<DeviceBackend>>(const BackendOptions&)>;

/// Adds a kind ("cuda", by its plug-in, before any runtime is made). False if the kind is there already.
bool register_backend(std::string kind, BackendFactory factory);
/// "cpu" is always there. kUnsupported names the kinds that are.
Result<std::unique_ptr<DeviceBackend>> make_backend(std::string_view kind, const BackendOptions& options = {});

}  // namespace callboard::kernels
