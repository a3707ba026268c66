// From what a message names to a tensor.
#pragma once

#include <ATen/core/ivalue.h>

#include "kernels/memory/segment_map.h"
#include "kernels/own_blocks.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// Inline bytes are copied into aligned memory; blocks are used where they lie (those that this process holds on its
/// own arena by their address, all others through a private mapping) and their leases end with the last tensor over
/// them. May block where a segment is mapped for the first time. Strides, offset, empty and 0-dim shapes arrive as they
/// were sent. Everything is checked against the real length before a view exists.
class TensorImporter {
 public:
  /// Both outlive it.
  TensorImporter(OwnBlocks& own, SegmentMap* segments) : own_(own), segments_(segments) {}
  Result<c10::IValue> import(const WireValue& value) const;
  /// Ends the lease of a value that will not be imported.
  void discard(const WireValue& value) const;

 private:
  Result<at::Tensor> import_tensor(const TensorHandle& handle) const;
  OwnBlocks& own_;
  SegmentMap* const segments_;
};

}  // namespace callboard::kernels
