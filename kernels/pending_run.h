// What the device runtime keeps of a loaded fragment and of a run on its way. Internal to it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "kernels/device_backend.h"
#include "kernels/executor.h"
#include "kernels/fragment_capture.h"
#include "kernels/loaded_fragment.h"
#include "kernels/runtime.h"
#include "kernels/tensor_export.h"

namespace callboard::kernels {

/// A loaded fragment's place; queued runs hold it, so that unload() takes effect behind them.
struct FragmentSlot {
  std::unique_ptr<LoadedFragment> fragment;  // compute stream
  std::shared_ptr<const Fragment> source;    // compute stream; only where weights lie in files, to load it again
  CaptureState capture;
  std::atomic<std::uint64_t> state_version{0};  // for describe()
  std::atomic<bool> has_state{false};
};

/// A run on its way. One thread at a time has it: loop → compute → (communicate) → gone.
struct PendingRun {
  RunOrder order;
  std::function<void(RunResult)> done;
  std::shared_ptr<FragmentSlot> slot;
  std::shared_ptr<RunControl> control;
  RunResult result;
  std::vector<ExportItem> items;                   // see collect_outputs()
  std::vector<bool> to_client;                     // by item
  std::size_t imported = 0;                        // inputs whose leases are taken care of
  std::shared_ptr<DeviceEvent> computed;           // the last kernel's end, for the communicate stream
  std::vector<std::shared_ptr<MappedFile>> files;  // that constants were read from
};
using PendingPtr = std::shared_ptr<PendingRun>;

/// Where an input lies that was lent in a device's memory; else nullptr.
inline const CudaIpcBlock* lent_block(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  return handle == nullptr ? nullptr : std::get_if<CudaIpcBlock>(&handle->data);
}
inline bool reads_memory_of_others(const RunOrder& order, const ActorId& self) {
  return std::ranges::any_of(order.inputs, [&](const WireValue& input) {
    const CudaIpcBlock* lent = lent_block(input);
    return lent != nullptr && lent->owner != self;
  });
}

/// Inputs go back at the end of a run, however it ends.
class ResetAtEnd {
 public:
  explicit ResetAtEnd(LoadedFragment& fragment) : fragment_(fragment) {}
  ~ResetAtEnd() { fragment_.reset(); }
  ResetAtEnd(const ResetAtEnd&) = delete;
  ResetAtEnd& operator=(const ResetAtEnd&) = delete;

 private:
  LoadedFragment& fragment_;
};

}  // namespace callboard::kernels
