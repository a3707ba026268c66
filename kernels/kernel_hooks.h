// What looks on while kernels run: tracing, timing, the NaN check. Hooks of a run are fixed when it starts; with none,
// a kernel pays one comparison.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "kernels/blob.h"
#include "kernels/runtime.h"
#include "messages/base/clock.h"
#include "messages/base/error.h"
#include "messages/base/ids.h"

namespace callboard::kernels {

/// Who a kernel is. Shared, so that a trace can outlive its fragment.
struct KernelInfo {
  std::string op;
  std::int64_t node = -1;  ///< index in the program
  std::string name;
  std::string module_path;
  std::string source;
};

struct KernelCall {
  const std::shared_ptr<const KernelInfo>& info;
  RunId run = 0;
};

/// All methods on the stream's thread.
class KernelHook {
 public:
  virtual ~KernelHook() = default;
  virtual void before(const KernelCall&) {}
  /// After the outputs were filled; `outputs` are those that somebody reads. An error fails the kernel.
  virtual std::optional<Error> after(const KernelCall&, std::span<const Blob* const> /*outputs*/) {
    return std::nullopt;
  }
  virtual void failed(const KernelCall&, const Error&) {}
};

/// Spans in a bounded ring: the newest stay, what fell out is counted. begin/end on stream threads, take() on any.
class TraceRing {
 public:
  static constexpr std::size_t kSpansMax = 100'000;

  struct Span {
    std::shared_ptr<const KernelInfo> info;  ///< or null for `what`
    const char* what = "";                   ///< "export"; a literal
    RunId run = 0;
    std::uint32_t thread = 0;
    TimePoint start;
    Duration length{};
    bool failed = false;
  };

  void add(Span span);
  /// The oldest spans as a JSON array of Chrome trace events, of about `bytes_max` at most (one event at least); they
  /// leave the ring.
  TraceBatch take(std::size_t bytes_max);

 private:
  std::mutex mutex_;
  std::deque<Span> spans_;     // guarded by mutex_
  std::uint64_t dropped_ = 0;  // guarded by mutex_
};

/// Number of the calling thread for traces.
std::uint32_t trace_thread();

/// A span for each kernel.
class TraceHook final : public KernelHook {
 public:
  explicit TraceHook(TraceRing& ring) : ring_(ring) {}
  void before(const KernelCall& call) override;
  std::optional<Error> after(const KernelCall& call, std::span<const Blob* const> outputs) override;
  void failed(const KernelCall& call, const Error& error) override;

 private:
  void add(const KernelCall& call, bool failed);
  TraceRing& ring_;
  TimePoint start_;
};

/// Totals per operator. totals() from any thread.
class TimingHook final : public KernelHook {
 public:
  struct Total {
    std::uint64_t calls = 0;
    std::uint64_t failed = 0;
    std::int64_t total_ns = 0;
    std::int64_t max_ns = 0;
  };
  void before(const KernelCall& call) override;
  std::optional<Error> after(const KernelCall& call, std::span<const Blob* const> outputs) override;
  void failed(const KernelCall& call, const Error& error) override;
  std::map<std::string, Total> totals() const;

 private:
  void add(const KernelCall& call, bool failed);
  TimePoint start_;
  mutable std::mutex mutex_;
  std::map<std::string, Total> totals_;  // guarded by mutex_
};

/// How long each node of one program took, run by run: what its placement is balanced by when it was profiled.
class ProfileHook final : public KernelHook {
 public:
  static constexpr std::size_t kRunsMax = 32;  ///< kept of each node; later ones are not

  // -- any thread
  /// From now on `program` is timed, afresh. kOverloaded while another program is.
  Status begin(const ContentHash& program);
  /// Nothing if it is another program that is timed.
  void end(const ContentHash& program);
  bool wants(const ContentHash& program) const;
  /// Of the nodes from `first` on, `count` at most. kProgramUnknown if it is not timed.
  Result<ProfileTimes> take(const ContentHash& program, std::size_t first, std::size_t count) const;

  // -- the stream's thread
  void before(const KernelCall& call) override;
  std::optional<Error> after(const KernelCall& call, std::span<const Blob* const> outputs) override;

 private:
  TimePoint start_;
  std::atomic<bool> on_{false};  // written under mutex_: a look without the lock
  mutable std::mutex mutex_;
  ContentHash program_;                           // guarded by mutex_
  std::vector<std::vector<std::int64_t>> times_;  // guarded by mutex_; by node; bounded by kNodesMax and kRunsMax
};

/// kNanFound for the first floating-point or complex output that holds a NaN or an infinity.
class NanCheckHook final : public KernelHook {
 public:
  std::optional<Error> after(const KernelCall& call, std::span<const Blob* const> outputs) override;
};

}  // namespace callboard::kernels
