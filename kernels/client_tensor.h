// A client's tensor (TensorRef, torch-free) as LibTorch's and back, without a copy. For C++ programs that use both.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "kernels/tensor_convert.h"
#include "messages/tensor_ref.h"

namespace callboard::kernels {

/// A tensor over the same memory, which lives as long as the tensor. A result's memory is this process's private view:
/// writing to it changes nobody else's. One on a GPU (ref.device) is read only; `stream`, a cudaStream_t, is the one
/// that reads it first (the default: CUDA's legacy one), any other has to be told by ref.device->use_on(). kUnsupported
/// (dtype), kMalformed (sizes beyond the memory), kTensorLost.
inline Result<at::Tensor> to_tensor(const TensorRef& ref, void* stream = nullptr) {
  CALLBOARD_ASSIGN(const at::ScalarType type, scalar_type_of(ref.meta.dtype));
  CALLBOARD_ASSIGN(const std::uint64_t extent, ref.meta.extent_bytes());
  if (extent > ref.bytes) {
    return fail(ErrorCode::kMalformed, "the elements of " + ref.meta.to_string() + " reach to byte " +
                                           std::to_string(extent) + ", its memory has " + std::to_string(ref.bytes));
  }
  if (extent == 0) return at::empty_strided(ref.meta.sizes, ref.meta.strides, at::dtype(type));
  c10::Device device(c10::DeviceType::CPU);
  if (ref.device) {
    CALLBOARD_TRY(ref.device->use_on(stream));
    device = c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(ref.device->ordinal()));
  }
  return at::from_blob(
      ref.data, ref.meta.sizes, ref.meta.strides, ref.meta.storage_offset, [keep = ref.keep](void*) {},
      at::TensorOptions().dtype(type).device(device), device);
}

/// The tensor as an argument; it stays alive as long as the ref. A dense CPU tensor without lazy conjugation or
/// negation; kBadInput for another one.
inline Result<TensorRef> to_ref(at::Tensor tensor) {
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) {
    return fail(ErrorCode::kBadInput, "an argument must be a dense CPU tensor without lazy conjugation or negation",
                "tensor.cpu().to_dense().resolve_conj().resolve_neg()");
  }
  TensorRef ref;
  CALLBOARD_ASSIGN(ref.meta, meta_of(tensor));
  ref.bytes = tensor.storage().nbytes();
  ref.data = static_cast<std::byte*>(tensor.storage().mutable_data());
  ref.keep = std::make_shared<at::Tensor>(std::move(tensor));
  return ref;
}

}  // namespace callboard::kernels
