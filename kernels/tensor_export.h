// From a tensor to what a message can name.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "kernels/device_backend.h"
#include "kernels/own_blocks.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels {

/// One value for one or more receivers.
struct ExportItem {
  c10::IValue value;
  std::string name;   ///< for errors
  bool copy = false;  ///< its memory is an input's, a constant's or a state's: never leased
  std::vector<ActorId> holders;
};

/// Small tensors travel as their bytes, larger ones under a lease on their block where they lie; what does not lie in
/// the arena (or must not be leased) is copied into it once, whatever the number of receivers. A view keeps its
/// strides, except where it is spread so thin (over more than kSpreadMax times its own size) that it is packed first. A
/// small view of a huge storage is copied as well: a lease would keep all of it. Thread-safe; the stream belongs to the
/// caller.
class TensorExporter {
 public:
  static constexpr std::uint64_t kSpreadMax = 4;

  /// `own` outlives it.
  explicit TensorExporter(OwnBlocks& own) : own_(own) {}

  /// One handle for each holder. kUnsupported for what has no plain memory (sparse, quantized, …), kOutOfMemory.
  Result<std::vector<WireValue>> export_item(const ExportItem& item, StreamContext& stream, TimePoint deadline);

  /// How many bytes export_item() will have to copy; an estimate that says where to do it.
  std::uint64_t bytes_to_copy(const ExportItem& item) const;
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  Result<std::vector<WireValue>> export_tensor(at::Tensor tensor, const ExportItem& item, StreamContext& stream,
                                               TimePoint deadline);
  Result<std::vector<WireValue>> lease(const at::Tensor& tensor, const ExportItem& item);
  Result<std::vector<WireValue>> copy_in(const at::Tensor& tensor, const ExportItem& item, StreamContext& stream,
                                         TimePoint deadline);
  bool can_lease(const at::Tensor& tensor, const ExportItem& item) const;

  OwnBlocks& own_;
  std::atomic<std::uint64_t> copied_bytes_{0};
};

}  // namespace callboard::kernels
