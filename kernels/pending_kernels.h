// Kernels of one run whose Compute goes on elsewhere, in processes of a GIL domain, while the stream's thread runs
// others.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

namespace callboard::kernels {

/// Compute that was begun and is not over. The stream's thread.
class PendingCompute {
 public:
  /// Ends it, without its results, where they were not taken.
  virtual ~PendingCompute() = default;
  /// Waits until it is over and leaves the results on the stack, as Kernel::compute() does; throws as that does.
  virtual void finish(Stack& stack, KernelFrame& frame) = 0;
  /// Does what waits to be done for it, without waiting.
  virtual void look() = 0;
  /// Nobody wants its results any more: finish() comes sooner.
  virtual void abandon(const Error& reason) = 0;
};

/// Of one run. A kernel that begins leaves its outputs' blobs pending; whoever needs one of them lets it finish first.
class PendingKernels {
 public:
  /// `at_once`: more than so many are never under way.
  explicit PendingKernels(std::size_t at_once) : at_once_(at_once) {}

  /// Before `kernel` runs: looks after those under way, finishes what it needs, and, if it may begin too, makes room
  /// for it. Root error of the first kernel that failed; it is not run then.
  std::shared_ptr<const Error> before(const Kernel& kernel, KernelFrame& frame);
  std::shared_ptr<const Error> finish_all(KernelFrame& frame);
  /// At the end of a run that has failed.
  void abandon_all(KernelFrame& frame, const Error& reason);
  void add(Kernel& kernel, std::unique_ptr<PendingCompute> compute) {
    pending_.push_back({&kernel, std::move(compute)});
  }

 private:
  struct Pending {
    Kernel* kernel = nullptr;
    std::unique_ptr<PendingCompute> compute;
  };
  std::shared_ptr<const Error> finish(std::size_t index, KernelFrame& frame);

  const std::size_t at_once_;
  std::vector<Pending> pending_;  // in the order in which they began
};

}  // namespace callboard::kernels
