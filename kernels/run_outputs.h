// What a run leaves when its kernels are queued: the next states, and what is handed to whom.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

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

}  // namespace callboard::kernels
