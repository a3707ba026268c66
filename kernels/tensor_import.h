// From what a message names to a tensor.
#pragma once

#include <ATen/core/ivalue.h>

#include "kernels/device_backend.h"
#include "kernels/memory/segment_map.h"
#include "kernels/own_blocks.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// Inline bytes are copied into aligned memory; blocks are used where they lie (those that this process holds on its
/// own arena by their address, all others through a private mapping) and their leases end with the last tensor over
/// them. May block where a segment is mapped for the first time. Strides, offset, empty and 0-dim shapes arrive as they
/// were sent. Everything is checked against the real length before a view exists.
/// For a device with memory of its own, what lies in host memory is copied there, and blocks that another device of its
/// kind lent are used where they lie.
class TensorImporter {
 public:
  /// Both outlive it. For a cpu device, and whoever reads as one.
  TensorImporter(OwnBlocks& own, SegmentMap* segments) : own_(own), segments_(segments) {}
  /// For the device of `backend`, which outlives it.
  TensorImporter(OwnBlocks& own, SegmentMap* segments, DeviceBackend& backend)
      : own_(own), segments_(segments), device_(backend.device()), exchange_(backend.exchange()) {}

  Result<c10::IValue> import(const WireValue& value) const { return import(value, nullptr); }
  /// `stream` is the calling thread's and current: copies are queued on it, and it waits for writers of other
  /// processes.
  Result<c10::IValue> import(const WireValue& value, StreamContext* stream) const;
  /// Ends the lease of a value that will not be imported.
  void discard(const WireValue& value) const;

 private:
  Result<at::Tensor> import_tensor(const TensorHandle& handle, StreamContext* stream) const;
  Result<at::Tensor> import_from_host(const TensorHandle& handle) const;
  Result<at::Tensor> import_lent(const TensorHandle& handle, const CudaIpcBlock& block, StreamContext* stream) const;
  Result<at::Tensor> to_device(const at::Tensor& host, const TensorMeta& meta, StreamContext& stream) const;

  OwnBlocks& own_;
  SegmentMap* const segments_;
  const c10::Device device_{c10::DeviceType::CPU};
  DeviceExchange* const exchange_ = nullptr;
};

}  // namespace callboard::kernels
