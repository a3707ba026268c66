// What a run leaves when its kernels are queued: the next states, and what is handed to whom.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/device_exchange.h"
#include "kernels/loaded_fragment.h"
#include "kernels/pending_run.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// What the next run would read. Memory that is not the state's to keep (an input's, or a large storage that it only
/// sees a corner of) is copied. kOutputMismatch, kOutOfMemory.
Status take_states(const LoadedFragment& fragment, std::vector<at::Tensor>& states);

/// Who reads this device's memory where it lies. As made: nobody.
struct OutputReaders {
  std::function<bool(const ActorId& device)> device_reads_device = {};
  bool client_reads_device = false;  ///< all results for the client are left there, small ones too
};

/// Fills the items of the run, in the order of the fragment's outputs: for each the client's, if it has one, comes
/// first.
void collect_outputs(PendingRun& run, const LoadedFragment& fragment, const std::vector<at::Tensor>& states,
                     const OutputReaders& readers);

/// What was read of an owner that has ended by the time of reading may have been anything. So a run that reads memory
/// lent by others is told only once the device has done it: parks until `stream` has. At once for all other runs.
/// kTensorLost if one of the owners has ended, kDeadlineExceeded, kDeviceFailed.
Status await_reads_of_others(const RunOrder& order, const ActorId& self, const DeviceExchange& exchange,
                             StreamContext& stream);

}  // namespace callboard::kernels
