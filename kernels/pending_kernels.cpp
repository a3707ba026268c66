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
  // What writes would write to what the others read.
  if (kernel.stands_alone()) return finish_all(frame);
  for (std::size_t i = 0; i < pending_.size();) {
    if (!kernel.reads_output_of(*pending_[i].kernel)) {
      ++i;
    } else if (auto error = finish(i, frame)) {
      return error;
    }
  }
  if (kernel.may_begin() && pending_.size() >= at_once_) return finish(0, frame);
  return nullptr;
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
