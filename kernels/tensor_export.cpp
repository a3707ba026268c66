#include "kernels/tensor_export.h"

#include <iterator>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>

#include "kernels/device_exchange.h"
#include "kernels/kernel.h"
#include "kernels/tensor_convert.h"
#include "messages/alignment.h"
#include "messages/base/check.h"
#include "messages/inline_limit.h"

namespace callboard::kernels {

namespace {

/// Spread over much more memory than it has elements for, so much that its strides are not worth it.
bool is_thin(const at::Tensor& tensor, std::uint64_t touched) {
  if (touched <= TensorExporter::kSpreadBytesMax) return false;
  const std::uint64_t packed = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
  return touched / TensorExporter::kSpreadMax > packed;
}

const std::byte* start_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }

Status check_plain(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) {
    return fail(ErrorCode::kUnsupported, "a tensor of layout " + describe(tensor) + " has no plain memory to hand over",
                "call to_dense() on it in the program");
  }
  if (tensor.is_quantized()) {
    return fail(ErrorCode::kUnsupported, "quantized tensors do not travel", "call dequantize() on it in the program");
  }
  if (tensor.is_meta() || !tensor.has_storage()) {
    return fail(ErrorCode::kUnsupported,
                "a tensor without memory (on " + tensor.device().str() + ") cannot be handed over");
  }
  return {};
}

std::vector<WireValue> for_each_holder(const ExportItem& item, const WireValue& value) {
  return std::vector<WireValue>(item.holders.size(), value);
}

Result<std::vector<WireValue>> with_grad_flag(Result<std::vector<WireValue>> handles, bool requires_grad) {
  if (!handles || !requires_grad) return handles;
  for (WireValue& value : *handles) std::get<TensorHandle>(value).requires_grad = true;
  return handles;
}

}  // namespace

Result<std::vector<WireValue>> TensorExporter::export_item(const ExportItem& item, StreamContext& stream,
                                                           TimePoint deadline) {
  const c10::IValue& value = item.value;
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined()))
    return for_each_holder(item, std::monostate());
  if (value.isInt()) return for_each_holder(item, value.toInt());
  if (value.isDouble()) return for_each_holder(item, value.toDouble());
  if (value.isBool()) return for_each_holder(item, value.toBool());
  Result<std::vector<WireValue>> result =
      fail(ErrorCode::kUnsupported, "a value of kind " + value.tagKind() + " does not travel");
  if (value.isTensor()) {
    try {
      result = export_tensor(value.toTensor(), item, stream, deadline);
    } catch (const std::exception& thrown) {  // LibTorch's, while resolving or packing
      result = fail(ErrorCode::kOutOfMemory, std::string("it cannot be packed: ") + thrown.what());
    }
  }
  if (!result) result.error().message = "output '" + item.name + "': " + result.error().message;
  return result;
}

Result<std::vector<WireValue>> TensorExporter::export_tensor(at::Tensor tensor, const ExportItem& item,
                                                             StreamContext& stream, TimePoint deadline) {
  CALLBOARD_TRY(check_plain(tensor));
  CALLBOARD_TRY(dtype_of(tensor.scalar_type()));
  const bool requires_grad = tensor.requires_grad();
  // Sizes, strides and offset do not say that a view is conjugated or negated.
  tensor = at::resolve_neg(at::resolve_conj(tensor));
  bool packed = false;
  if (is_thin(tensor, touched_bytes(tensor))) {
    tensor = tensor.contiguous();
    packed = true;
  }
  const std::uint64_t touched = touched_bytes(tensor);
  if (travels_inline(tensor, touched, item)) {
    TensorHandle handle;
    handle.requires_grad = requires_grad;
    CALLBOARD_ASSIGN(handle.meta, meta_of(tensor));
    const std::size_t offset = touched > 0 ? offset_like(tensor.const_data_ptr(), tensor.element_size()) : 0;
    handle.meta.storage_offset = static_cast<std::int64_t>(offset / tensor.element_size());
    InlineBytes bytes;
    if (touched > 0) {
      bytes.bytes.resize(offset + touched);
      CALLBOARD_TRY(stream.read_back(bytes.bytes.data() + offset, start_of(tensor), touched, deadline));
    }
    handle.data = std::move(bytes);
    return for_each_holder(item, handle);
  }
  if (in_device_memory(tensor)) {
    const bool own_memory = packed || can_lease(tensor, item);
    return with_grad_flag(export_from_device(std::move(tensor), own_memory, item, stream, deadline), requires_grad);
  }
  if (packed || can_lease(tensor, item)) {
    auto leased = lease(tensor, item);
    if (leased || leased.error().code != ErrorCode::kTensorLost)
      return with_grad_flag(std::move(leased), requires_grad);
  }
  return with_grad_flag(copy_in(tensor, item, stream, deadline), requires_grad);
}

bool TensorExporter::travels_inline(const at::Tensor& tensor, std::uint64_t touched, const ExportItem& item) const {
  if (touched > inline_bytes_max()) return false;
  // Of nothing there is no memory to lend.
  return item.small_inline || touched == 0 || !in_device_memory(tensor);
}

bool TensorExporter::can_lease(const at::Tensor& tensor, const ExportItem& item) const {
  if (tensor.unsafeGetTensorImpl() != item.value.unsafeToTensorImpl()) return true;  // resolved: memory of its own
  if (item.copy) return false;
  return tensor.storage().nbytes() / kSpreadMax <= touched_bytes(tensor);
}

/// kTensorLost if the tensor does not lie in the arena.
Result<std::vector<WireValue>> TensorExporter::lease(const at::Tensor& tensor, const ExportItem& item) {
  std::vector<WireValue> handles;
  const auto give_up = [&](const char* why) {
    for (const WireValue& handle : handles) {
      own_.arena()->release(std::get<ArenaBlock>(std::get<TensorHandle>(handle).data).lease);
    }
    return fail(ErrorCode::kTensorLost, why);
  };
  CALLBOARD_ASSIGN(TensorMeta meta, meta_of(tensor));
  for (const ActorId& holder : item.holders) {
    auto leased = own_.lease(start_of(tensor), holder);
    if (!leased) return give_up("it does not lie in the arena");
    TensorHandle handle{meta, leased->handle};
    handles.emplace_back(handle);
    // The storage may begin inside the block, the handle begins where the block does.
    const std::ptrdiff_t offset = start_of(tensor) - leased->start;
    const auto element = static_cast<std::ptrdiff_t>(tensor.element_size());
    if (offset < 0 || offset % element != 0) return give_up("its elements do not fit the block's raster");
    handle.meta.storage_offset = offset / element;
    if (!handle.check()) return give_up("it reaches beyond its block");
    handles.back() = std::move(handle);
  }
  return handles;
}

Result<std::vector<WireValue>> TensorExporter::copy_in(const at::Tensor& tensor, const ExportItem& item,
                                                       StreamContext& stream, TimePoint deadline) {
  const std::uint64_t touched = touched_bytes(tensor);
  const std::size_t offset = offset_like(tensor.const_data_ptr(), tensor.element_size());
  CALLBOARD_ASSIGN(void* const block, own_.arena()->allocate(offset + touched));
  Status copied = stream.read_back(static_cast<std::byte*>(block) + offset, start_of(tensor), touched, deadline);
  copied_bytes_.fetch_add(touched, std::memory_order_relaxed);
  TensorHandle handle;
  std::vector<WireValue> handles;
  if (auto meta = meta_of(tensor); meta && copied) {
    handle.meta = std::move(*meta);
    handle.meta.storage_offset = static_cast<std::int64_t>(offset / tensor.element_size());
    for (const ActorId& holder : item.holders) {
      auto leased = own_.lease(block, holder);
      CALLBOARD_CHECK(leased.has_value(), "a block just allocated can be leased");
      handle.data = std::move(leased->handle);
      handles.emplace_back(handle);
    }
  }
  own_.arena()->deallocate(block);  // from here the leases keep it
  if (!copied) return fail(std::move(copied).error());
  return handles;
}

/// `own_memory`: nobody else will write to it or needs it to be his alone.
Result<std::vector<WireValue>> TensorExporter::export_from_device(at::Tensor tensor, bool own_memory,
                                                                  const ExportItem& item, StreamContext& stream,
                                                                  TimePoint deadline) {
  ExportItem host{item.value, item.name, item.copy, {}};
  for (std::size_t i = 0; i < item.holders.size(); ++i) {
    if (!item.on_device(i)) host.holders.push_back(item.holders[i]);
  }
  std::vector<WireValue> copies;
  if (!host.holders.empty()) {
    CALLBOARD_ASSIGN(copies, copy_in(tensor, host, stream, deadline));
  }
  std::vector<WireValue> handles;
  for (std::size_t i = 0, next_copy = 0; i < item.holders.size(); ++i) {
    if (!item.on_device(i)) {
      handles.push_back(std::move(copies[next_copy++]));
      continue;
    }
    auto lent = lend(tensor, own_memory, item, i, stream);
    if (!lent && lent.error().code == ErrorCode::kUnsupported) {
      // Memory that this machine lets nobody else reach: a copy for this one, too.
      auto copy = copy_in(tensor, ExportItem{item.value, item.name, item.copy, {item.holders[i]}}, stream, deadline);
      lent = copy ? Result<WireValue>(std::move(copy->front())) : Result<WireValue>(fail(std::move(copy).error()));
    }
    if (!lent) {
      handles.insert(handles.end(), std::make_move_iterator(copies.begin() + static_cast<std::ptrdiff_t>(next_copy)),
                     std::make_move_iterator(copies.end()));
      give_back(handles);
      return fail(std::move(lent).error());
    }
    handles.push_back(std::move(*lent));
  }
  return handles;
}

/// What cannot be lent where it lies is copied once, for this holder and all further ones.
Result<WireValue> TensorExporter::lend(at::Tensor& tensor, bool& own_memory, const ExportItem& item, std::size_t holder,
                                       StreamContext& stream) {
  for (const bool again : {false, true}) {
    if (!own_memory) {
      CALLBOARD_ASSIGN(tensor, copy_span(tensor, stream));
      copied_bytes_.fetch_add(touched_bytes(tensor), std::memory_order_relaxed);
      own_memory = true;
    }
    CALLBOARD_ASSIGN(auto lent, exchange_->lend(tensor, item.holders[holder], stream));
    if (lent) {
      TensorHandle handle;
      CALLBOARD_ASSIGN(handle.meta, meta_of(tensor));
      handle.data = std::move(lent->handle);
      const std::ptrdiff_t offset = start_of(tensor) - lent->start;
      const auto element = static_cast<std::ptrdiff_t>(tensor.element_size());
      handle.meta.storage_offset = offset / element;
      if (offset >= 0 && offset % element == 0 && handle.check()) return handle;
      exchange_->release(std::get<CudaIpcBlock>(handle.data).lease);
    }
    if (again) break;
    own_memory = false;
  }
  return fail(ErrorCode::kDeviceFailed, "the device's memory cannot be handed to " + item.holders[holder].to_string() +
                                            ": a fresh block of it is none that can be lent");
}

void TensorExporter::give_back(const std::vector<WireValue>& handles) const {
  for (const WireValue& value : handles) {
    const auto* handle = std::get_if<TensorHandle>(&value);
    if (handle == nullptr) continue;
    if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) own_.arena()->release(block->lease);
    if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data); lent != nullptr && exchange_ != nullptr) {
      exchange_->release(lent->lease);
    }
  }
}

bool TensorExporter::waits_for_device(const ExportItem& item) const {
  if (exchange_ == nullptr || !item.value.isTensor() || !item.value.toTensor().defined()) return false;
  const at::Tensor& tensor = item.value.toTensor();
  if (!in_device_memory(tensor) || tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  if (travels_inline(tensor, touched_bytes(tensor), item)) return true;  // its bytes are read
  for (std::size_t i = 0; i < item.holders.size(); ++i) {
    if (!item.on_device(i)) return true;
  }
  return false;
}

std::uint64_t TensorExporter::bytes_to_copy(const ExportItem& item) const {
  if (!item.value.isTensor() || !item.value.toTensor().defined()) return 0;
  const at::Tensor& tensor = item.value.toTensor();
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_meta()) return 0;
  const std::uint64_t touched = touched_bytes(tensor);
  if (is_thin(tensor, touched) || tensor.is_conj() || tensor.is_neg()) {
    return static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
  }
  if (travels_inline(tensor, touched, item)) return 0;
  if (in_device_memory(tensor)) return can_lease(tensor, item) && !waits_for_device(item) ? 0 : touched;
  if (can_lease(tensor, item) && own_.arena()->find(start_of(tensor))) return 0;
  return touched;
}

}  // namespace callboard::kernels
