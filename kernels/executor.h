// Runs a loaded fragment, kernel after kernel, on the compute stream's thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "kernels/loaded_fragment.h"
#include "kernels/stop_signal.h"
#include "messages/base/clock.h"

namespace callboard::kernels {

/// How a run is told to stop. cancel() from any thread, the rest on the stream's.
class RunControl final : public StopSignal {
 public:
  explicit RunControl(TimePoint deadline) : deadline_(deadline) {}

  /// The first reason stays.
  void cancel(const Error& reason);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  TimePoint deadline() const override { return deadline_; }
  std::optional<Error> stop_reason() const override;

 private:
  const TimePoint deadline_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  Error reason_;  // guarded by mutex_
};

class Executor {
 public:
  /// Both must outlive it.
  Executor(StreamContext& stream, c10::Device device, bool check_outputs)
      : stream_(stream), device_(device), check_outputs_(check_outputs) {}

  struct Order {
    RunId run = 0;
    std::vector<c10::IValue> inputs;  ///< one per input of the fragment
    std::span<const std::int64_t> symbols;
    const RunControl* control = nullptr;
    std::span<KernelHook* const> hooks;
  };

  /// nullptr: every blob that outputs and states need is filled. Else the root error, which every blob that was not
  /// filled by then carries. Either way the caller ends the run with fragment.reset().
  /// Per kernel nothing is locked, queued or allocated beyond what ATen does; cancelling costs a load per kernel, the
  /// deadline a clock reading per kClockEvery kernels.
  std::shared_ptr<const Error> run(LoadedFragment& fragment, Order order);

  static constexpr std::size_t kClockEvery = 16;

 private:
  Status begin(LoadedFragment& fragment, Order& order);
  std::shared_ptr<const Error> run_kernels(LoadedFragment& fragment, const Order& order);
  std::shared_ptr<const Error> run_each(LoadedFragment& fragment, const Order& order, KernelFrame& frame);

  StreamContext& stream_;
  const c10::Device device_;
  const bool check_outputs_;
  Stack stack_;  // reused by every kernel of the stream
};

}  // namespace callboard::kernels
