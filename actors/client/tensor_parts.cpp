#include "actors/client/tensor_parts.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "messages/inline_limit.h"

namespace callboard::actors {
namespace {

constexpr std::size_t kPrivateAlignment = 64;

std::byte* first_byte(const TensorRef& tensor) {
  return tensor.data + static_cast<std::uint64_t>(tensor.meta.storage_offset) * dtype_size(tensor.meta.dtype);
}

/// Both have the same sizes and dtype and passed their checks. What is contiguous in both at the end of the dimensions
/// goes in one memcpy.
void copy_elements(const TensorRef& from, const TensorRef& to) {
  const std::vector<std::int64_t>& sizes = from.meta.sizes;
  if (from.meta.numel() == 0) return;
  const auto item = static_cast<std::int64_t>(dtype_size(from.meta.dtype));
  std::size_t outer = sizes.size();
  std::int64_t run = 1;
  for (; outer > 0; --outer) {
    const std::size_t dim = outer - 1;
    if (sizes[dim] != 1 && (from.meta.strides[dim] != run || to.meta.strides[dim] != run)) break;
    run *= sizes[dim];
  }
  const auto run_bytes = static_cast<std::size_t>(run * item);
  const std::byte* source = first_byte(from);
  std::byte* target = first_byte(to);
  std::vector<std::int64_t> index(outer, 0);
  for (;;) {
    std::memcpy(target, source, run_bytes);
    std::size_t dim = outer;
    for (; dim > 0; --dim) {
      const std::size_t at = dim - 1;
      const std::int64_t steps = ++index[at] < sizes[at] ? 1 : 1 - sizes[at];
      source += steps * from.meta.strides[at] * item;
      target += steps * to.meta.strides[at] * item;
      if (steps == 1) break;
      index[at] = 0;
    }
    if (dim == 0) return;
  }
}

Status check_on_host(const TensorRef& tensor) {
  if (!tensor.device) return {};
  return fail(ErrorCode::kUnsupported,
              "a result " + tensor.meta.to_string() + " lies on GPU " + std::to_string(tensor.device->ordinal()) +
                  ", where batches and replicas cannot put it together or cut it",
              "set output_device of the device to cpu in the cluster file");
}

}  // namespace

Result<std::uint64_t> check_tensor_memory(const std::string& input, const TensorRef& tensor) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kBadInput, "input '" + input + "', " + tensor.meta.to_string() + ": " + what);
  };
  Result<std::uint64_t> extent = tensor.meta.extent_bytes();
  if (!extent) return bad(extent.error().message);
  if (*extent > tensor.bytes) {
    return bad("its elements reach to byte " + std::to_string(*extent) + ", its memory has " +
               std::to_string(tensor.bytes));
  }
  if (*extent != 0 && tensor.data == nullptr) return bad("it has no memory");
  if (tensor.device) {
    return fail(ErrorCode::kBadInput,
                "input '" + input + "', " + tensor.meta.to_string() + ": its memory is GPU " +
                    std::to_string(tensor.device->ordinal()) + "'s",
                "copy it to the host first; the placement decides where the program runs");
  }
  return extent;
}

TensorRef tensor_slice(const TensorRef& tensor, std::size_t dim, std::int64_t start, std::int64_t count) {
  TensorRef slice = tensor;
  slice.meta.sizes[dim] = count;
  slice.meta.storage_offset += start * slice.meta.strides[dim];
  return slice;
}

std::uint64_t tensor_bytes(const TensorMeta& meta) {
  return static_cast<std::uint64_t>(meta.numel()) * dtype_size(meta.dtype);
}

bool elements_are_disjoint(const TensorMeta& meta) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (std::size_t i = 0; i < meta.sizes.size(); ++i) {
    if (meta.sizes[i] == 0) return true;
    if (meta.sizes[i] > 1) dims.emplace_back(meta.strides[i], meta.sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;  // of all smaller dimensions together
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += stride * (size - 1);
  }
  return true;
}

Result<TensorRef> allocate_private(TensorMeta meta) {
  CALLBOARD_ASSIGN(const std::uint64_t bytes, meta.extent_bytes());
  TensorRef tensor;
  tensor.bytes = bytes;
  if (bytes > 0) {
    const std::size_t padded = (bytes + kPrivateAlignment - 1) / kPrivateAlignment * kPrivateAlignment;
    void* memory = std::aligned_alloc(kPrivateAlignment, padded);
    if (memory == nullptr) {
      return fail(ErrorCode::kOutOfMemory,
                  "this process has no " + std::to_string(bytes) + " bytes left for " + meta.to_string());
    }
    tensor.keep = std::shared_ptr<void>(memory, std::free);
    tensor.data = static_cast<std::byte*>(memory);
  }
  tensor.meta = std::move(meta);
  return tensor;
}

Result<TensorRef> allocate_for_request(TensorMeta meta, const AllocateTensor& arena) {
  CALLBOARD_ASSIGN(const std::uint64_t bytes, meta.extent_bytes());
  if (bytes <= inline_bytes_max()) return allocate_private(std::move(meta));
  return arena(std::move(meta));
}

Result<TensorRef> tensor_copy(const TensorRef& tensor, const AllocateTensor& allocate) {
  CALLBOARD_TRY(check_on_host(tensor));
  CALLBOARD_ASSIGN(TensorRef copy, allocate(TensorMeta::contiguous(tensor.meta.dtype, tensor.meta.sizes)));
  copy_elements(tensor, copy);
  return copy;
}

Result<TensorRef> concatenate(std::span<const TensorRef> parts, std::size_t dim, const AllocateTensor& allocate) {
  for (const TensorRef& part : parts) CALLBOARD_TRY(check_on_host(part));
  TensorMeta whole = parts.front().meta;
  whole.sizes[dim] = 0;
  for (const auto& part : parts) {
    TensorMeta expected = TensorMeta::contiguous(whole.dtype, part.meta.sizes);
    if (dim < expected.sizes.size()) expected.sizes[dim] = whole.sizes[dim];
    if (part.meta.dtype != whole.dtype || expected.sizes != whole.sizes) {
      return fail(ErrorCode::kOutputMismatch, "parts that belong together differ outside dimension " +
                                                  std::to_string(dim) + ": " + parts.front().meta.to_string() +
                                                  " and " + part.meta.to_string());
    }
    whole.sizes[dim] += part.meta.sizes[dim];
  }
  CALLBOARD_ASSIGN(TensorRef result, allocate(TensorMeta::contiguous(whole.dtype, whole.sizes)));
  std::int64_t start = 0;
  for (const auto& part : parts) {
    copy_elements(part, tensor_slice(result, dim, start, part.meta.sizes[dim]));
    start += part.meta.sizes[dim];
  }
  return result;
}

}  // namespace callboard::actors
