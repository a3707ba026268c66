// Static fragments are captured once and replayed: a CUDA graph costs one launch, whatever the number of kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "kernels/executor.h"

namespace callboard::kernels {

/// What is known about one loaded fragment. Everything but text() belongs to the compute stream's thread.
class CaptureState {
 public:
  /// "captured, 12 replays" or why not: "not captured: node 3 (aten::nonzero): …". Any thread.
  std::string text() const;

 private:
  friend class FragmentCapture;
  enum class Stage : std::uint8_t { kNew, kWarm, kCaptured, kRefused };

  void refuse(std::string why);

  std::atomic<Stage> stage_{Stage::kNew};
  std::atomic<std::uint64_t> replays_{0};
  std::vector<at::Tensor> inputs_;    // that the captured work reads; ours alone
  std::vector<c10::IValue> outputs_;  // that it writes, by LoadedFragment::outputs
  std::unique_ptr<CapturedWork> work_;
  mutable std::mutex mutex_;
  std::string why_not_;  // guarded by mutex_
};

/// Decides for each run: kernel by kernel, or by replay.
///
/// A fragment qualifies if every run of it queues the same work: fixed sizes, no state, no effects, no random numbers,
/// tensors as inputs. Its first run warms libraries up, the second one is captured; where an operator cannot be (it
/// waits for the device, say), the fragment runs kernel by kernel for good, and text() names the operator. A replay
/// copies the inputs into memory of its own and the outputs out of it, so a fragment whose tensors are large against
/// the number of its kernels does not qualify either. Runs with hooks are never replayed: there is nothing to hook.
class FragmentCapture {
 public:
  static constexpr std::size_t kKernelsMin = 4;
  /// Copying 1 MiB takes about as long as the launch that it saves.
  static constexpr std::uint64_t kBytesPerKernel = 1u << 20;

  /// All outlive it. `stream` is the compute stream. `enabled`: false refuses everything.
  FragmentCapture(StreamContext& stream, Executor& executor, bool enabled)
      : stream_(stream), executor_(executor), enabled_(enabled && stream.can_capture()) {}

  /// As Executor::run(); after a replay only the blobs of the outputs are filled.
  std::shared_ptr<const Error> run(LoadedFragment& fragment, CaptureState& state, Executor::Order order);

 private:
  std::string why_not(const LoadedFragment& fragment, const Executor::Order& order) const;
  /// kCancelled and kDeadlineExceeded end the run; all else has been noted in `state`.
  std::shared_ptr<const Error> capture(LoadedFragment& fragment, CaptureState& state, const Executor::Order& order);
  static bool fits(const CaptureState& state, const Executor::Order& order);
  Status replay(LoadedFragment& fragment, CaptureState& state, const Executor::Order& order);

  StreamContext& stream_;
  Executor& executor_;
  const bool enabled_;
};

}  // namespace callboard::kernels
