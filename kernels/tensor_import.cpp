#include "kernels/tensor_import.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "kernels/tensor_convert.h"

namespace callboard::kernels {

namespace {

Result<at::Tensor> copy_bytes(const TensorMeta& meta, const void* data, std::uint64_t bytes) {
  at::Tensor whole = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  if (bytes > 0) std::memcpy(whole.mutable_data_ptr(), data, bytes);
  return view_storage(whole.storage(), meta);
}

/// A tensor over memory that `keep` holds.
template <class Keep>
Result<at::Tensor> view_memory(const TensorMeta& meta, std::byte* data, std::uint64_t bytes, Keep keep) {
  CALLBOARD_ASSIGN(const std::uint64_t extent, meta.extent_bytes());
  if (extent > bytes) {
    return fail(ErrorCode::kMalformed,
                "a tensor " + meta.to_string() + " reaches beyond its block of " + std::to_string(bytes) + " bytes");
  }
  CALLBOARD_ASSIGN(const at::ScalarType type, scalar_type_of(meta.dtype));
  // A handle may point anywhere; kernels expect elements at multiples of their size.
  if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(meta.dtype) != 0) return copy_bytes(meta, data, extent);
  return at::from_blob(
      data, meta.sizes, meta.strides, meta.storage_offset, [keep = std::move(keep)](void*) mutable { keep.reset(); },
      at::TensorOptions().dtype(type).device(at::kCPU), at::Device(at::kCPU));
}

}  // namespace

Result<c10::IValue> TensorImporter::import(const WireValue& value) const {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return c10::IValue(*integer);
  if (const auto* real = std::get_if<double>(&value)) return c10::IValue(*real);
  if (const auto* flag = std::get_if<bool>(&value)) return c10::IValue(*flag);
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return c10::IValue();
  try {
    // An inference tensor cannot say that it requires grad, and its views would forget it.
    const bool flagged = handle->requires_grad && dtype_takes_gradients(handle->meta.dtype);
    const c10::InferenceMode ordinary(!flagged);
    CALLBOARD_ASSIGN(at::Tensor tensor, import_tensor(*handle));
    if (flagged) tensor.requires_grad_();
    return c10::IValue(std::move(tensor));
  } catch (const std::exception& thrown) {  // LibTorch's: no memory for the copy, or a shape that it refuses
    return fail(ErrorCode::kOutOfMemory, "no tensor can be made of " + handle->meta.to_string() + ": " + thrown.what());
  }
}

void TensorImporter::discard(const WireValue& value) const {
  const auto* handle = std::get_if<TensorHandle>(&value);
  const auto* block = handle == nullptr ? nullptr : std::get_if<ArenaBlock>(&handle->data);
  if (block == nullptr) return;
  if (block->owner == own_.self()) {
    own_.arena()->release(block->lease);
  } else if (segments_ != nullptr) {
    segments_->open(*block);  // releases the lease, whether it can be opened or not
  }
}

Result<at::Tensor> TensorImporter::import_tensor(const TensorHandle& handle) const {
  if (const auto* block = std::get_if<ArenaBlock>(&handle.data)) {
    if (own_.can_open(*block)) {
      CALLBOARD_ASSIGN(std::shared_ptr<std::byte> memory, own_.open(*block));
      std::byte* data = memory.get();
      return view_memory(handle.meta, data, block->bytes, std::move(memory));
    }
    if (segments_ == nullptr) return fail(ErrorCode::kUnsupported, "this process opens no segments of others");
    CALLBOARD_ASSIGN(std::shared_ptr<MappedBlock> mapped, segments_->open(*block));
    std::byte* data = mapped->data();
    const std::uint64_t bytes = mapped->bytes();
    return view_memory(handle.meta, data, bytes, std::move(mapped));
  }
  if (std::holds_alternative<CudaIpcBlock>(handle.data)) {
    return fail(ErrorCode::kUnsupported, "a tensor in another process's CUDA memory cannot be read by a cpu device",
                "place producer and consumer on devices of one kind, or move the tensor to the cpu in the program");
  }
  CALLBOARD_TRY(handle.check());
  const std::string& bytes = std::get<InlineBytes>(handle.data).bytes;
  return copy_bytes(handle.meta, bytes.data(), bytes.size());
}

}  // namespace callboard::kernels
