#include "kernels/loaded_fragment.h"

namespace callboard::kernels {

void LoadedFragment::reset() {
  for (Blob& blob : blobs) blob.drop();
  guard.begin();
}

Status LoadedFragment::check_fits(std::span<const std::int64_t> symbols) const {
  if (!may_not_fit) return {};
  const MemoryForecast::Peak peak = forecast.peak(symbols);
  if (peak.bytes <= memory_limit) return {};
  return fail(does_not_fit(peak));
}

Error LoadedFragment::does_not_fit(const MemoryForecast::Peak& peak) const {
  const KernelInfo& at = kernels[peak.node]->info();
  Error error(ErrorCode::kDoesNotFit,
              "the fragment needs " + std::to_string(peak.bytes) +
                  " bytes for activations at once, the device may use " + std::to_string(memory_limit) +
                  "; it peaks at node " + std::to_string(at.node) + " (" + at.op + ")",
              "split the program over more devices, use smaller inputs, or raise memory_limit");
  error.op = at.op;
  error.node = at.node;
  error.detail = at.source;
  return error;
}

}  // namespace callboard::kernels
