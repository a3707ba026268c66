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

namespace callboard::kernels {

enum class StreamKind : std::uint8_t { kCompute, kCommunicate };
std::string_view stream_kind_name(StreamKind kind);

/// A point in one stream's work. May be waited for from any stream of the same backend, and dropped at any time.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool ready() const = 0;
};

/// One device stream. enter(), leave(), is_current(), copy() and record() belong to the thread of the KernelStream that
/// owns it.
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
  /// Queues a copy within the device. Both ranges stay valid until an event recorded after it is ready.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
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
};

using BackendFactory = std::function<Result<std::unique_ptr<DeviceBackend>>()>;

/// Adds a kind ("cuda", by its plug-in, before any runtime is made). False if the kind is there already.
bool register_backend(std::string kind, BackendFactory factory);
/// "cpu" is always there. kUnsupported names the kinds that are.
Result<std::unique_ptr<DeviceBackend>> make_backend(std::string_view kind);

}  // namespace callboard::kernels
