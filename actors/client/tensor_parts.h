// Parts of tensors along one dimension: views without a copy, and copies with exactly one. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "messages/tensor_ref.h"
#include "messages/base/error.h"

namespace callboard::actors {

/// Gives memory for a contiguous tensor, not initialised; Client::allocator() is one. Any thread.
using AllocateTensor = std::function<Result<TensorRef>(TensorMeta meta)>;

/// The tensor's extent_bytes(); kBadInput naming the input, where its elements reach beyond its memory or lie on a GPU.
/// Every function below relies on this check.
Result<std::uint64_t> check_tensor_memory(const std::string& input, const TensorRef& tensor);

/// The elements [start, start + count) along `dim`, which lie within the tensor: a view that shares its memory.
TensorRef tensor_slice(const TensorRef& tensor, std::size_t dim, std::int64_t start, std::int64_t count);

/// Bytes of all elements, each once, however they lie.
std::uint64_t tensor_bytes(const TensorMeta& meta);

/// True only if no two elements share memory: then slices of it are disjoint, and a write into one changes no other.
/// Expanded tensors (stride 0) and overlapping windows are not; in doubt false.
bool elements_are_disjoint(const TensorMeta& meta);

/// Memory of this process alone, aligned to 64 bytes, as ATen likes it. kOutOfMemory.
Result<TensorRef> allocate_private(TensorMeta meta);
/// For what a request will read: what travels inside its message is private, what is larger comes from `arena`, where
/// devices read it in place.
Result<TensorRef> allocate_for_request(TensorMeta meta, const AllocateTensor& arena);

/// A contiguous copy in memory from `allocate`. kUnsupported, like concatenate(), for what lies on a GPU.
Result<TensorRef> tensor_copy(const TensorRef& tensor, const AllocateTensor& allocate);
/// One after the other along `dim`, contiguous, in memory from `allocate`; one copy. There is at least one part;
/// kOutputMismatch if dtypes or other sizes differ.
Result<TensorRef> concatenate(std::span<const TensorRef> parts, std::size_t dim, const AllocateTensor& allocate);

}  // namespace callboard::actors
