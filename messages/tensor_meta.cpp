#include "messages/tensor_meta.h"

#include <algorithm>
#include <array>

#include "messages/base/names.h"
#include "messages/limits.h"

namespace callboard {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeFacts, kDTypeCount> kDTypes{{
    {"undefined", 1},       {"uint8", 1},          {"int8", 1},          {"int16", 2},       {"int32", 4},
    {"int64", 8},           {"uint16", 2},         {"uint32", 4},        {"uint64", 8},      {"float16", 2},
    {"float32", 4},         {"float64", 8},        {"bfloat16", 2},      {"complex32", 4},   {"complex64", 8},
    {"complex128", 16},     {"bool", 1},           {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1}, {"float8_e8m0fnu", 1},
}};
static_assert(static_cast<int>(DType::kFloat8E8M0FNU) + 1 == kDTypeCount, "one row for each dtype, in order");

std::string bracketed(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(numbers[i]);
  }
  return text + "]";
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].name : kDTypes[0].name;
}

Result<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  const std::string_view shown = name.substr(0, 40);
  std::string list;
  std::string_view nearest;
  std::size_t nearest_distance = 4;  // further away is no help
  for (std::size_t i = 1; i < kDTypes.size(); ++i) {
    list.append(list.empty() ? "" : ", ").append(kDTypes[i].name);
    const std::size_t distance = edit_distance(shown, kDTypes[i].name);
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = kDTypes[i].name;
    }
  }
  std::string hint = nearest.empty() ? "" : "did you mean '" + std::string(nearest) + "'? ";
  return fail(ErrorCode::kUnsupported, "'" + std::string(shown) + "' is not a dtype that tensors can have here",
              hint + "there are " + list);
}

std::size_t dtype_size(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDTypes.size() ? kDTypes[index].size : kDTypes[0].size;
}

bool dtype_takes_gradients(DType dtype) { return dtype >= DType::kFloat16 && dtype != DType::kBool; }

std::int64_t TensorMeta::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
    if (__builtin_mul_overflow(product, size, &product)) return INT64_MAX;
  }
  return product;
}

bool TensorMeta::is_contiguous() const {
  if (sizes.size() != strides.size()) return false;
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;  // its stride is never used
    if (strides[i] != expected) return false;
    if (__builtin_mul_overflow(expected, sizes[i], &expected)) return false;
  }
  return true;
}

std::vector<std::int64_t> TensorMeta::contiguous_strides(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    // Sizes that overflow give a meta that extent_bytes() refuses.
    if (__builtin_mul_overflow(next, std::max<std::int64_t>(sizes[i], 1), &next)) next = INT64_MAX;
  }
  return strides;
}

TensorMeta TensorMeta::contiguous(DType dtype, std::vector<std::int64_t> sizes) {
  TensorMeta meta;
  meta.dtype = dtype;
  meta.strides = contiguous_strides(sizes);
  meta.sizes = std::move(sizes);
  return meta;
}

Result<std::uint64_t> TensorMeta::extent_bytes() const {
  const auto refuse = [this](const std::string& why) {
    // Not to_string() of the whole: its length is the sender's choice.
    const std::string what =
        sizes.size() <= limits::kTensorRankMax && strides.size() <= limits::kTensorRankMax
            ? to_string()
            : std::string(dtype_name(dtype)) + " of " + std::to_string(sizes.size()) + " dimensions";
    return fail(ErrorCode::kMalformed, "tensor " + what + ": " + why);
  };
  const auto dtype_index = static_cast<int>(dtype);
  if (dtype_index <= 0 || dtype_index >= kDTypeCount) return refuse("it has no dtype");
  if (sizes.size() > limits::kTensorRankMax) {
    return refuse("more than " + std::to_string(limits::kTensorRankMax) + " dimensions");
  }
  if (sizes.size() != strides.size()) return refuse("the counts of sizes and strides differ");
  if (storage_offset < 0) return refuse("the storage offset is negative");
  std::int64_t elements = 1;  // an empty dimension counts as one: contiguous strides must fit as well
  std::int64_t last = storage_offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) return refuse("a size or a stride is negative");
    empty = empty || sizes[i] == 0;
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(sizes[i], 1), &elements)) {
      return refuse("its number of elements overflows");
    }
    std::int64_t reach = 0;
    if (sizes[i] > 1 &&
        (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last))) {
      return refuse("its last element lies beyond what can be addressed");
    }
  }
  const auto element_bytes = static_cast<std::int64_t>(dtype_size(dtype));
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes)) return refuse("its number of bytes overflows");
  if (empty) return std::uint64_t{0};
  if (__builtin_add_overflow(last, std::int64_t{1}, &last) || __builtin_mul_overflow(last, element_bytes, &bytes)) {
    return refuse("its last element lies beyond what can be addressed");
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string TensorMeta::to_string() const {
  std::string text = std::string(dtype_name(dtype)) + bracketed(sizes);
  if (!is_contiguous()) text += " strides " + bracketed(strides);
  if (storage_offset != 0) text += " offset " + std::to_string(storage_offset);
  return text;
}

}  // namespace callboard
