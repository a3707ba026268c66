// What a tensor looks like, without LibTorch: dtype by name, sizes, strides, storage offset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"

namespace callboard {

/// Every dtype that a dense tensor can have in PyTorch 2.11, by PyTorch's own names. The numbers stay inside a
/// process; on the wire a dtype travels by name. Quantized and sub-byte dtypes are refused by name.
enum class DType : std::uint8_t {
  kUndefined = 0,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBFloat16,
  kComplex32,
  kComplex64,
  kComplex128,
  kBool,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
};
constexpr int kDTypeCount = 22;

/// "float32", "bfloat16", …, as torch prints them without "torch.".
std::string_view dtype_name(DType dtype);
/// The inverse; kUnsupported with the list of names (and the nearest) if there is none.
Result<DType> dtype_from_name(std::string_view name);
/// Bytes of one element (1…16).
std::size_t dtype_size(DType dtype);
/// Floating point or complex: what autograd allows to require gradients.
bool dtype_takes_gradients(DType dtype);

/// Sizes and strides in elements, offset in elements from the storage's start (for a handle: from the handle's data).
struct TensorMeta {
  DType dtype = DType::kUndefined;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t storage_offset = 0;

  bool operator==(const TensorMeta&) const = default;

  /// Product of the sizes; only on a meta that check() accepted.
  std::int64_t numel() const;
  bool is_contiguous() const;
  /// Contiguous strides for `sizes`, as ATen makes them (a zero size counts as one).
  static std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& sizes);
  static TensorMeta contiguous(DType dtype, std::vector<std::int64_t> sizes);

  /// Bytes from the storage's start to the end of the last element that the tensor can touch; 0 for an empty tensor.
  /// Refuses (kMalformed) unknown dtype, rank above kTensorRankMax, negative sizes or strides or offset, unequal counts
  /// and anything that overflows. This is the one check that every meta from outside goes through before a view exists.
  Result<std::uint64_t> extent_bytes() const;

  /// "float32[2, 3]" or "float32[2, 3] strides [1, 2] offset 4".
  std::string to_string() const;
};

}  // namespace callboard
