#include "kernels/process_domain/domain_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include "kernels/kernel.h"
#include "kernels/tensor_convert.h"

namespace callboard::kernels {

namespace {

using Kind = c10::TypeKind;

c10::TypePtr without_optional(c10::TypePtr type) {
  while (type->kind() == Kind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  return type;
}

template <class T, class Get>
std::vector<T> items_as(c10::ArrayRef<c10::IValue> items, Get get) {
  std::vector<T> out;
  out.reserve(items.size());
  for (const c10::IValue& item : items) out.push_back(get(item));
  return out;
}

/// A list for what the schema declares, since an empty one does not say of what it is.
template <class T, class Make>
c10::IValue list_of(const std::vector<T>& items, const c10::Argument& declared, Make make) {
  const c10::TypePtr type = without_optional(declared.real_type());
  c10::TypePtr element = type->kind() == Kind::ListType ? type->expectRef<c10::ListType>().getElementType() : nullptr;
  if (element == nullptr) element = c10::AnyType::get();
  // Lists of Scalar? and of SymInt hold plain numbers.
  c10::impl::GenericList list(element);
  list.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) list.push_back(make(items[i]));
  return list;
}

}  // namespace

Result<std::int64_t> DomainPacker::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return -1;
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    return fail(ErrorCode::kUnsupported,
                "a tensor of layout " + describe(c10::IValue(tensor)) + " cannot go to a GIL domain in a process",
                "call to_dense() on it in the program, or give the device python: inline");
  }
  const c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  auto known = std::ranges::find(packed_, impl);
  if (known == packed_.end()) {
    CALLBOARD_ASSIGN(DomainStorage storage, pack_(tensor.storage()));
    packed_.push_back(impl);
    storages.push_back(std::move(storage));
    known = packed_.end() - 1;
  }
  DomainTensor packed;
  packed.storage = static_cast<std::uint32_t>(known - packed_.begin());
  CALLBOARD_ASSIGN(packed.meta, meta_of(tensor));
  packed.conjugated = tensor.is_conj();
  packed.negated = tensor.is_neg();
  packed.requires_grad = tensor.requires_grad();
  tensors.push_back(std::move(packed));
  return static_cast<std::int64_t>(tensors.size()) - 1;
}

Result<DomainValue> DomainPacker::list(const c10::IValue& value) {
  const auto items = value.toListRef();
  const auto all = [&](auto is) { return std::ranges::all_of(items, is); };
  const c10::TypePtr element = value.toList().elementType();
  const bool tensors_inside = element->isSubtypeOf(*c10::OptionalType::ofTensor());
  if (tensors_inside || (!items.empty() && all([](const c10::IValue& v) { return v.isTensor() || v.isNone(); }))) {
    DomainTensorList list;
    for (const c10::IValue& item : items) {
      CALLBOARD_ASSIGN(const std::int64_t index, tensor(item.isTensor() ? item.toTensor() : at::Tensor()));
      list.tensors.push_back(index);
    }
    return DomainValue(std::move(list));
  }
  if (all([](const c10::IValue& v) { return v.isInt(); })) {
    return DomainValue(items_as<std::int64_t>(items, [](const c10::IValue& v) { return v.toInt(); }));
  }
  if (all([](const c10::IValue& v) { return v.isDouble(); })) {
    return DomainValue(items_as<double>(items, [](const c10::IValue& v) { return v.toDouble(); }));
  }
  if (all([](const c10::IValue& v) { return v.isBool(); })) {
    return DomainValue(items_as<bool>(items, [](const c10::IValue& v) { return v.toBool(); }));
  }
  if (all([](const c10::IValue& v) { return v.isString(); })) {
    return DomainValue(items_as<std::string>(items, [](const c10::IValue& v) { return v.toStringRef(); }));
  }
  if (all([](const c10::IValue& v) { return v.isComplexDouble(); })) {
    return DomainValue(items_as<std::complex<double>>(items, [](const c10::IValue& v) {
      const c10::complex<double> number = v.toComplexDouble();
      return std::complex<double>(number.real(), number.imag());
    }));
  }
  return fail(ErrorCode::kUnsupported, "a list of mixed kinds cannot go to a GIL domain in a process");
}

Result<DomainValue> DomainPacker::value(const c10::IValue& value) {
  if (value.isNone()) return DomainValue(std::monostate());
  if (value.isTensor()) {
    CALLBOARD_ASSIGN(const std::int64_t index, tensor(value.toTensor()));
    return DomainValue(DomainTensorIndex{index});
  }
  if (value.isInt()) return DomainValue(value.toInt());
  if (value.isDouble()) return DomainValue(value.toDouble());
  if (value.isBool()) return DomainValue(value.toBool());
  if (value.isString()) return DomainValue(value.toStringRef());
  if (value.isDevice()) return DomainValue(DomainDevice{value.toDevice().str()});
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    return DomainValue(std::complex<double>(number.real(), number.imag()));
  }
  if (value.isList()) return list(value);
  return fail(ErrorCode::kUnsupported,
              "a value of kind " + value.tagKind() + " cannot go to a GIL domain in a process");
}

Result<at::Tensor> DomainUnpacker::tensor(std::int64_t index) const {
  if (index < 0) return at::Tensor();
  const DomainTensor& packed = tensors_.at(static_cast<std::size_t>(index));
  const c10::Storage& storage = storages_.at(packed.storage);
  CALLBOARD_ASSIGN(const std::uint64_t extent, packed.meta.extent_bytes());
  if (extent > storage.nbytes()) {
    return fail(ErrorCode::kMalformed, "the tensor " + packed.meta.to_string() + " reaches beyond its storage of " +
                                           std::to_string(storage.nbytes()) + " bytes");
  }
  CALLBOARD_ASSIGN(at::Tensor tensor, view_storage(storage, packed.meta));
  if (packed.conjugated && tensor.is_complex()) tensor._set_conj(true);
  if (packed.negated) tensor._set_neg(true);
  if (packed.requires_grad && dtype_takes_gradients(packed.meta.dtype)) tensor.set_requires_grad(true);
  return tensor;
}

Result<c10::IValue> DomainUnpacker::value(const DomainValue& value, const c10::Argument& declared) const {
  if (const auto* one = std::get_if<DomainTensorIndex>(&value)) {
    CALLBOARD_ASSIGN(at::Tensor found, tensor(one->tensor));
    return c10::IValue(std::move(found));
  }
  if (const auto* list = std::get_if<DomainTensorList>(&value)) {
    std::vector<at::Tensor> items;
    for (const std::int64_t index : list->tensors) {
      CALLBOARD_ASSIGN(at::Tensor item, tensor(index));
      items.push_back(std::move(item));
    }
    return list_of(items, declared,
                   [](const at::Tensor& item) { return item.defined() ? c10::IValue(item) : c10::IValue(); });
  }
  if (const auto* device = std::get_if<DomainDevice>(&value)) {
    try {
      return c10::IValue(c10::Device(device->name));
    } catch (const std::exception&) {
      return fail(ErrorCode::kMalformed, "there is no device '" + device->name + "'");
    }
  }
  if (const auto* number = std::get_if<std::int64_t>(&value)) return c10::IValue(*number);
  if (const auto* number = std::get_if<double>(&value)) return c10::IValue(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return c10::IValue(*flag);
  if (const auto* text = std::get_if<std::string>(&value)) return c10::IValue(*text);
  if (const auto* number = std::get_if<std::complex<double>>(&value)) {
    return c10::IValue(c10::complex<double>(number->real(), number->imag()));
  }
  if (const auto* items = std::get_if<std::vector<std::int64_t>>(&value)) {
    return list_of(*items, declared, [](std::int64_t item) { return c10::IValue(item); });
  }
  if (const auto* items = std::get_if<std::vector<double>>(&value)) {
    return list_of(*items, declared, [](double item) { return c10::IValue(item); });
  }
  if (const auto* items = std::get_if<std::vector<bool>>(&value)) {
    return list_of(*items, declared, [](bool item) { return c10::IValue(item); });
  }
  if (const auto* items = std::get_if<std::vector<std::string>>(&value)) {
    return list_of(*items, declared, [](const std::string& item) { return c10::IValue(item); });
  }
  if (const auto* items = std::get_if<std::vector<std::complex<double>>>(&value)) {
    return list_of(*items, declared, [](const std::complex<double>& item) {
      return c10::IValue(c10::complex<double>(item.real(), item.imag()));
    });
  }
  return c10::IValue();
}

c10::Storage storage_of_bytes(std::string_view bytes) {
  at::Tensor own = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(own.mutable_data_ptr(), bytes.data(), bytes.size());
  return own.storage();
}

c10::Storage storage_over(std::byte* data, std::uint64_t bytes, std::shared_ptr<void> keep) {
  auto* held = new std::shared_ptr<void>(std::move(keep));
  c10::DataPtr pointer(
      data, held, [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); },
      c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(pointer), nullptr, /*resizable=*/false);
}

}  // namespace callboard::kernels
