#include "kernels/pending_kernels.h"

#include <utility>

namespace callboard::kernels {

std::shared_ptr<const Error> PendingKernels::finish(std::size_t index, KernelFrame& frame) {
  Pending ending = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  return ending.kernel->finish(*ending.compute, frame);
}

std::shared_ptr<const Error> PendingKernels::before(const Kernel& kernel, KernelFrame& frame) {
  if (pending_.empty()) return nullptr;
  pending_.front().compute->look();  // at all of its domain
  // What writes would write to what the others read.
  if (kernel.stands_alone()) return finish_all(frame);
  for (std::size_t i = 0; i < pending_.size();) {
    if (!kernel.reads_output_of(*pending_[i].kernel)) {
      ++i;
    } else if (auto error = finish(i, frame)) {
      return error;
    }
  }
  // Where no place is free (one is being replaced, say), those under way have theirs back when they are finished.
  while (kernel.may_begin() && !pending_.empty() && (pending_.size() >= at_once_ || !kernel.has_room())) {
    if (auto error = finish(0, frame)) return error;
  }
  return nullptr;
}

void PendingKernels::abandon_all(KernelFrame& frame, const Error& reason) {
  for (const Pending& pending : pending_) pending.compute->abandon(reason);
  static_cast<void>(finish_all(frame));
}

std::shared_ptr<const Error> PendingKernels::finish_all(KernelFrame& frame) {
  std::shared_ptr<const Error> first;
  while (!pending_.empty()) {
    auto error = finish(0, frame);
    if (!first) first = std::move(error);
  }
  return first;
}

}  // namespace callboard::kernels
