#include "kernels/dying_operand.h"

#include <atomic>

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>

namespace callboard::kernels {

namespace {

/// The strides of a fresh contiguous tensor, also where a dimension of 1 would allow others.
bool has_default_strides(const c10::TensorImpl& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  std::int64_t expected = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

bool has_dimension_of_one(const c10::TensorImpl& tensor) {
  for (const std::int64_t size : tensor.sizes()) {
    if (size == 1) return true;
  }
  return false;
}

bool is_plain(const c10::TensorImpl& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

/// A Python number that promotes to the tensor's dtype: 2 and 2.0 with floating point, 2 with integers.
bool is_lesser_number(const c10::TensorImpl& number, const c10::TensorImpl& tensor) {
  if (!number.is_wrapped_number()) return false;
  const auto kind = [](const c10::TensorImpl& of) {
    const c10::ScalarType type = c10::typeMetaToScalarType(of.dtype());
    return c10::isComplexType(type) ? 3 : c10::isFloatingType(type) ? 2 : type == c10::kBool ? 0 : 1;
  };
  return kind(number) <= kind(tensor);
}

/// One strong reference, and no weak one but that which all strong ones share.
bool is_only_reference(c10::StorageImpl* memory) {
  auto borrowed = c10::intrusive_ptr<c10::StorageImpl>::reclaim(memory);
  const bool alone = borrowed.use_count() == 1 && borrowed.weak_use_count() == 1;
  borrowed.release();
  return alone;
}

/// Nobody else has a reference to the tensor or to its memory.
bool is_alone(const c10::IValue& value, const c10::TensorImpl& tensor) {
  if (value.use_count() != 1 || !tensor.has_storage()) return false;
  c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || !is_only_reference(storage)) return false;
  const c10::StorageImpl& memory = *storage;
  if (!memory.resizable() || tensor.storage_offset() != 0) return false;
  if (memory.nbytes() != static_cast<std::size_t>(tensor.numel()) * tensor.itemsize()) return false;
  // The counts are read relaxed. Whoever let go last, on another thread, read before it did.
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

bool same_rest(const c10::FunctionSchema& op, const c10::FunctionSchema& in_place) {
  for (std::size_t i = 1; i < op.arguments().size(); ++i) {
    const c10::Argument& ours = op.arguments()[i];
    const c10::Argument& theirs = in_place.arguments()[i];
    if (ours.name() != theirs.name() || *ours.type() != *theirs.type() || theirs.alias_info() != nullptr) return false;
  }
  return true;
}

}  // namespace

std::optional<c10::OperatorHandle> in_place_form(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (!op.hasTag(at::Tag::pointwise) || op.hasTag(at::Tag::nondeterministic_seeded)) return std::nullopt;
  if (schema.arguments().empty() || schema.returns().size() != 1) return std::nullopt;
  const c10::Argument& self = schema.arguments().front();
  if (self.name() != "self" || self.alias_info() != nullptr || self.type()->kind() != c10::TypeKind::TensorType)
    return std::nullopt;
  const c10::OperatorName& name = op.operator_name();
  auto in_place = c10::Dispatcher::singleton().findSchema({name.name + "_", name.overload_name});
  if (!in_place || in_place->schema().arguments().size() != schema.arguments().size()) return std::nullopt;
  const c10::AliasInfo* written = in_place->schema().arguments().front().alias_info();
  if (written == nullptr || !written->isWrite() || !same_rest(schema, in_place->schema())) return std::nullopt;
  constexpr auto kCpu = c10::DispatchKey::CPU;
  if (!op.hasKernelForDispatchKey(kCpu) || !in_place->hasKernelForDispatchKey(kCpu)) return std::nullopt;
  return in_place;
}

bool may_overwrite_first(const torch::jit::Stack& stack, std::size_t count, c10::ScalarType result) {
  const c10::IValue* arguments = stack.data() + (stack.size() - count);
  if (!arguments[0].isTensor()) return false;
  const c10::TensorImpl& first = *arguments[0].unsafeToTensorImpl();
  if (first.dtype() != c10::scalarTypeToTypeMeta(result) || !is_alone(arguments[0], first)) return false;
  if (!is_plain(first) || first.numel() == 0 || !has_default_strides(first)) return false;
  // A number as the first operand (torch.mul(n, x)) is a tensor that promotes as a number: the result must not.
  if (first.is_wrapped_number()) return false;
  for (std::size_t i = 1; i < count; ++i) {
    if (!arguments[i].isTensor()) {
      if (arguments[i].isList()) return false;
      continue;
    }
    const c10::TensorImpl& other = *arguments[i].unsafeToTensorImpl();
    if (!is_plain(other)) return false;
    if (other.dtype() != first.dtype() && !is_lesser_number(other, first)) return false;
    // With an operand to be spread, LibTorch sorts dimensions by strides, and one of size 1 may get another one.
    if (other.dim() == 0 ? first.dim() > 0 && has_dimension_of_one(first)
                         : other.sizes() != first.sizes() || !other.is_contiguous()) {
      return false;
    }
  }
  return true;
}

}  // namespace callboard::kernels
