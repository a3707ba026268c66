// TensorMeta and at::Tensor. The only place where our dtype names meet LibTorch's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "kernels/device_backend.h"
#include "messages/base/error.h"
#include "messages/tensor_meta.h"

namespace callboard::kernels {

/// kUnsupported for kUndefined.
Result<at::ScalarType> scalar_type_of(DType dtype);
/// kUnsupported, by name, for quantized, sub-byte and other dtypes that do not travel.
Result<DType> dtype_of(at::ScalarType type);

/// By PyTorch's names, without "torch.". kBadArgument with the list of names.
Result<at::Layout> layout_of(std::string_view name);
Result<at::MemoryFormat> memory_format_of(std::string_view name);

/// Of a dense tensor; the storage offset is the tensor's own.
Result<TensorMeta> meta_of(const at::Tensor& tensor);

/// Bytes from the first to the end of the last element that the tensor touches; strides are never negative.
std::uint64_t touched_bytes(const at::Tensor& tensor);

/// What the tensor touches in memory of its own, queued on `stream`, which is current: strides and alignment stay.
Result<at::Tensor> copy_span(const at::Tensor& tensor, StreamContext& stream);

/// A view over `storage`. The caller has checked meta.extent_bytes() against the storage's length.
Result<at::Tensor> view_storage(const c10::Storage& storage, const TensorMeta& meta);

}  // namespace callboard::kernels
