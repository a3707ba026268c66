#include "kernels/tensor_convert.h"

#include <array>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include "messages/alignment.h"

namespace callboard::kernels {

namespace {

using at::ScalarType;

constexpr std::array<std::pair<DType, ScalarType>, kDTypeCount - 1> kDTypes = {{
    {DType::kUInt8, ScalarType::Byte},
    {DType::kInt8, ScalarType::Char},
    {DType::kInt16, ScalarType::Short},
    {DType::kInt32, ScalarType::Int},
    {DType::kInt64, ScalarType::Long},
    {DType::kUInt16, ScalarType::UInt16},
    {DType::kUInt32, ScalarType::UInt32},
    {DType::kUInt64, ScalarType::UInt64},
    {DType::kFloat16, ScalarType::Half},
    {DType::kFloat32, ScalarType::Float},
    {DType::kFloat64, ScalarType::Double},
    {DType::kBFloat16, ScalarType::BFloat16},
    {DType::kComplex32, ScalarType::ComplexHalf},
    {DType::kComplex64, ScalarType::ComplexFloat},
    {DType::kComplex128, ScalarType::ComplexDouble},
    {DType::kBool, ScalarType::Bool},
    {DType::kFloat8E4M3FN, ScalarType::Float8_e4m3fn},
    {DType::kFloat8E5M2, ScalarType::Float8_e5m2},
    {DType::kFloat8E4M3FNUZ, ScalarType::Float8_e4m3fnuz},
    {DType::kFloat8E5M2FNUZ, ScalarType::Float8_e5m2fnuz},
    {DType::kFloat8E8M0FNU, ScalarType::Float8_e8m0fnu},
}};

constexpr std::array<std::pair<std::string_view, at::Layout>, 8> kLayouts = {{
    {"strided", at::Layout::Strided},
    {"sparse_coo", at::Layout::Sparse},
    {"sparse_csr", at::Layout::SparseCsr},
    {"sparse_csc", at::Layout::SparseCsc},
    {"sparse_bsr", at::Layout::SparseBsr},
    {"sparse_bsc", at::Layout::SparseBsc},
    {"_mkldnn", at::Layout::Mkldnn},
    {"jagged", at::Layout::Jagged},
}};

constexpr std::array<std::pair<std::string_view, at::MemoryFormat>, 4> kMemoryFormats = {{
    {"contiguous_format", at::MemoryFormat::Contiguous},
    {"preserve_format", at::MemoryFormat::Preserve},
    {"channels_last", at::MemoryFormat::ChannelsLast},
    {"channels_last_3d", at::MemoryFormat::ChannelsLast3d},
}};

template <class Table>
auto find_name(const Table& table, std::string_view name, std::string_view what)
    -> Result<typename Table::value_type::second_type> {
  std::string names;
  for (const auto& [known, value] : table) {
    if (known == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  return fail(ErrorCode::kBadArgument, "there is no " + std::string(what) + " '" + std::string(name) + "'",
              "one of " + names);
}

}  // namespace

Result<at::ScalarType> scalar_type_of(DType dtype) {
  for (const auto& [ours, theirs] : kDTypes) {
    if (ours == dtype) return theirs;
  }
  return fail(ErrorCode::kUnsupported, "a tensor cannot have the dtype '" + std::string(dtype_name(dtype)) + "'");
}

Result<DType> dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kDTypes) {
    if (theirs == type) return ours;
  }
  return fail(ErrorCode::kUnsupported, "tensors of dtype " + std::string(c10::toString(type)) + " do not travel",
              c10::isQIntType(type) ? "dequantize() it in the program" : "convert it to another dtype in the program");
}

Result<at::Layout> layout_of(std::string_view name) { return find_name(kLayouts, name, "layout"); }

Result<at::MemoryFormat> memory_format_of(std::string_view name) {
  return find_name(kMemoryFormats, name, "memory format");
}

Result<TensorMeta> meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  CALLBOARD_ASSIGN(meta.dtype, dtype_of(tensor.scalar_type()));
  meta.sizes = tensor.sizes().vec();
  meta.strides = tensor.strides().vec();
  meta.storage_offset = tensor.storage_offset();
  return meta;
}

std::uint64_t touched_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<std::uint64_t>(last + 1) * tensor.element_size();
}

Result<at::Tensor> copy_span(const at::Tensor& tensor, StreamContext& stream) {
  const std::uint64_t touched = touched_bytes(tensor);
  const std::size_t offset = touched == 0 ? 0 : offset_like(tensor.const_data_ptr(), tensor.element_size());
  const at::Tensor whole = at::empty({static_cast<std::int64_t>(offset + touched)},
                                     at::TensorOptions().dtype(at::kByte).device(tensor.device()));
  if (touched > 0) {
    auto* to = static_cast<std::byte*>(whole.mutable_data_ptr()) + offset;
    CALLBOARD_TRY(stream.copy(to, tensor.const_data_ptr(), touched));
  }
  CALLBOARD_ASSIGN(TensorMeta meta, meta_of(tensor));
  meta.storage_offset = static_cast<std::int64_t>(offset / tensor.element_size());
  return view_storage(whole.storage(), meta);
}

Result<at::Tensor> view_storage(const c10::Storage& storage, const TensorMeta& meta) {
  CALLBOARD_ASSIGN(const at::ScalarType type, scalar_type_of(meta.dtype));
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(type).device(storage.device()));
  tensor.set_(storage, meta.storage_offset, meta.sizes, meta.strides);
  return tensor;
}

}  // namespace callboard::kernels
