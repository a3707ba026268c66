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
  /// By holder: reads this device's own memory where it lies. Empty: none does, all read host memory.
  std::vector<bool> reads_device = {};
  /// A small tensor travels as its bytes, whoever reads it; false: it is left on the device like a large one, for those
  /// that are to find all results there.
  bool small_inline = true;

  bool on_device(std::size_t holder) const { return holder < reads_device.size() && reads_device[holder]; }
};

/// Small tensors travel as their bytes, larger ones under a lease on their block where they lie; what does not lie in
/// the arena (or must not be leased) is copied into it once, whatever the number of receivers. A view keeps its
/// strides, unless it is spread over more than kSpreadBytesMax and over more than kSpreadMax times its own size: then
/// it is packed first. A small view of a huge storage is copied as well: a lease would keep all of it. Thread-safe; the
/// stream belongs to the caller. On a device with memory of its own: those that read it get a lease on the block where
/// it lies, ordered after the stream's work so far; for all others it is copied into the arena, once.
class TensorExporter {
 public:
  static constexpr std::uint64_t kSpreadMax = 4;
  static constexpr std::uint64_t kSpreadBytesMax = 64 * 1024;

  /// Both outlive it.
  TensorExporter(OwnBlocks& own, DeviceBackend& backend)
      : own_(own), device_(backend.device()), exchange_(backend.exchange()) {}

  /// One handle for each holder. kUnsupported for what has no plain memory (sparse, quantized, …), kOutOfMemory.
  Result<std::vector<WireValue>> export_item(const ExportItem& item, StreamContext& stream, TimePoint deadline);

  /// How many bytes export_item() will have to copy; an estimate that says where to do it.
  std::uint64_t bytes_to_copy(const ExportItem& item) const;
  /// Will export_item() wait for the device?
  bool waits_for_device(const ExportItem& item) const;
  std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

 private:
  Result<std::vector<WireValue>> export_tensor(at::Tensor tensor, const ExportItem& item, StreamContext& stream,
                                               TimePoint deadline);
  Result<std::vector<WireValue>> lease(const at::Tensor& tensor, const ExportItem& item);
  Result<std::vector<WireValue>> copy_in(const at::Tensor& tensor, const ExportItem& item, StreamContext& stream,
                                         TimePoint deadline);
  bool can_lease(const at::Tensor& tensor, const ExportItem& item) const;
  bool travels_inline(const at::Tensor& tensor, std::uint64_t touched, const ExportItem& item) const;
  /// In memory that is the device's alone.
  bool in_device_memory(const at::Tensor& tensor) const { return exchange_ != nullptr && tensor.device() == device_; }
  Result<std::vector<WireValue>> export_from_device(at::Tensor tensor, bool own_memory, const ExportItem& item,
                                                    StreamContext& stream, TimePoint deadline);
  Result<WireValue> lend(at::Tensor& tensor, bool& own_memory, const ExportItem& item, std::size_t holder,
                         StreamContext& stream);
  void give_back(const std::vector<WireValue>& handles) const;

  OwnBlocks& own_;
  const c10::Device device_;
  DeviceExchange* const exchange_;
  std::atomic<std::uint64_t> copied_bytes_{0};
};

}  // namespace callboard::kernels
