#include "kernels/tensor_import.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "kernels/device_exchange.h"
#include "kernels/tensor_convert.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

Result<at::Tensor> copy_bytes(const TensorMeta& meta, const void* data, std::uint64_t bytes) {
  at::Tensor whole = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  if (bytes > 0) std::memcpy(whole.mutable_data_ptr(), data, bytes);
  return view_storage(whole.storage(), meta);
}

/// A tensor over memory that `keep` holds.
template <class Keep>
Result<at::Tensor> view_memory(const TensorMeta& meta, std::byte* data, std::uint64_t bytes, c10::Device device,
                               Keep keep) {
  CALLBOARD_ASSIGN(const std::uint64_t extent, meta.extent_bytes());
  if (extent > bytes) {
    return fail(ErrorCode::kMalformed,
                "a tensor " + meta.to_string() + " reaches beyond its block of " + std::to_string(bytes) + " bytes");
  }
  CALLBOARD_ASSIGN(const at::ScalarType type, scalar_type_of(meta.dtype));
  // A handle may point anywhere; kernels expect elements at multiples of their size.
  if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(meta.dtype) != 0) {
    if (device.is_cpu()) return copy_bytes(meta, data, extent);
    return fail(ErrorCode::kMalformed, "a tensor " + meta.to_string() + " begins within one of its items");
  }
  return at::from_blob(
      data, meta.sizes, meta.strides, meta.storage_offset, [keep = std::move(keep)](void*) mutable { keep.reset(); },
      at::TensorOptions().dtype(type).device(device), device);
}

}  // namespace

Result<c10::IValue> TensorImporter::import(const WireValue& value, StreamContext* stream) const {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return c10::IValue(*integer);
  if (const auto* real = std::get_if<double>(&value)) return c10::IValue(*real);
  if (const auto* flag = std::get_if<bool>(&value)) return c10::IValue(*flag);
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return c10::IValue();
  try {
    // An inference tensor cannot say that it requires grad, and its views would forget it.
    const bool flagged = handle->requires_grad && dtype_takes_gradients(handle->meta.dtype);
    const c10::InferenceMode ordinary(!flagged);
    CALLBOARD_ASSIGN(at::Tensor tensor, import_tensor(*handle, stream));
    if (flagged) tensor.requires_grad_();
    return c10::IValue(std::move(tensor));
  } catch (const std::exception& thrown) {  // LibTorch's: no memory for the copy, or a shape that it refuses
    return fail(ErrorCode::kOutOfMemory, "no tensor can be made of " + handle->meta.to_string() + ": " + thrown.what());
  }
}

void TensorImporter::discard(const WireValue& value) const {
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return;
  if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data); lent != nullptr && exchange_ != nullptr) {
    exchange_->discard(*lent);
    return;
  }
  const auto* block = std::get_if<ArenaBlock>(&handle->data);
  if (block == nullptr) return;
  if (block->owner == own_.self()) {
    own_.arena()->release(block->lease);
  } else if (segments_ != nullptr) {
    segments_->open(*block);  // releases the lease, whether it can be opened or not
  }
}

Result<at::Tensor> TensorImporter::import_tensor(const TensorHandle& handle, StreamContext* stream) const {
  if (const auto* lent = std::get_if<CudaIpcBlock>(&handle.data)) return import_lent(handle, *lent, stream);
  CALLBOARD_ASSIGN(at::Tensor tensor, import_from_host(handle));
  if (exchange_ == nullptr) return tensor;
  CALLBOARD_CHECK(stream != nullptr, "a device's tensors are imported on a stream");
  return to_device(tensor, handle.meta, *stream);
}

Result<at::Tensor> TensorImporter::import_lent(const TensorHandle& handle, const CudaIpcBlock& block,
                                               StreamContext* stream) const {
  if (exchange_ == nullptr) {
    return fail(ErrorCode::kUnsupported, "a tensor in another process's CUDA memory cannot be read by a cpu device",
                "place producer and consumer on devices of one kind, or move the tensor to the cpu in the program");
  }
  CALLBOARD_CHECK(stream != nullptr, "a device's tensors are imported on a stream");
  if (Status inside = handle.check(); !inside) {
    exchange_->discard(block);
    return fail(std::move(inside).error());
  }
  CALLBOARD_ASSIGN(std::shared_ptr<std::byte> memory, exchange_->open(block, *stream));
  std::byte* data = memory.get();
  return view_memory(handle.meta, data, block.bytes, device_, std::move(memory));
}

/// The span that the tensor touches, as it lies: strides and offset stay.
Result<at::Tensor> TensorImporter::to_device(const at::Tensor& host, const TensorMeta& meta,
                                             StreamContext& stream) const {
  CALLBOARD_ASSIGN(const std::uint64_t extent, meta.extent_bytes());
  const at::Tensor whole =
      at::empty({static_cast<std::int64_t>(extent)}, at::TensorOptions().dtype(at::kByte).device(device_));
  if (extent > 0) CALLBOARD_TRY(stream.copy(whole.mutable_data_ptr(), host.storage().data(), extent));
  return view_storage(whole.storage(), meta);
}

Result<at::Tensor> TensorImporter::import_from_host(const TensorHandle& handle) const {
  if (const auto* block = std::get_if<ArenaBlock>(&handle.data)) {
    if (own_.can_open(*block)) {
      CALLBOARD_ASSIGN(std::shared_ptr<std::byte> memory, own_.open(*block));
      std::byte* data = memory.get();
      return view_memory(handle.meta, data, block->bytes, at::kCPU, std::move(memory));
    }
    if (segments_ == nullptr) return fail(ErrorCode::kUnsupported, "this process opens no segments of others");
    CALLBOARD_ASSIGN(std::shared_ptr<MappedBlock> mapped, segments_->open(*block));
    std::byte* data = mapped->data();
    const std::uint64_t bytes = mapped->bytes();
    return view_memory(handle.meta, data, bytes, at::kCPU, std::move(mapped));
  }
  CALLBOARD_TRY(handle.check());
  const std::string& bytes = std::get<InlineBytes>(handle.data).bytes;
  return copy_bytes(handle.meta, bytes.data(), bytes.size());
}

}  // namespace callboard::kernels
