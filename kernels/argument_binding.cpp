#include "kernels/argument_binding.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/complex.h>

#include "kernels/tensor_convert.h"
#include "messages/base/names.h"

namespace callboard::kernels {

namespace {

using c10::IValue;
using c10::TypeKind;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

bool is_int(TypeKind kind) { return kind == TypeKind::IntType || kind == TypeKind::SymIntType; }
bool is_float(TypeKind kind) { return kind == TypeKind::FloatType || kind == TypeKind::SymFloatType; }
bool is_bool(TypeKind kind) { return kind == TypeKind::BoolType || kind == TypeKind::SymBoolType; }

IValue number_of(const ArgScalar& scalar) {
  return std::visit(Overloaded{[](const std::complex<double>& z) { return IValue(c10::complex<double>(z)); },
                               [](auto number) { return IValue(number); }},
                    scalar.value);
}

/// Binds one argument to one parameter.
class Binder {
 public:
  Binder(const c10::Argument& formal, const BindingScope& scope, ArgumentPlan& plan, bool fresh_lists)
      : formal_(formal), scope_(scope), plan_(plan), fresh_lists_(fresh_lists), type_(formal.real_type()) {
    if (const auto optional = type_->cast<c10::OptionalType>()) {
      optional_ = true;
      type_ = optional->getElementType();
    }
    kind_ = type_->kind();
    if (const auto list = type_->cast<c10::ListType>()) {
      element_ = list->getElementType();
      if (const auto optional = element_->cast<c10::OptionalType>()) {
        optional_element_ = true;
        element_ = optional->getElementType();
      }
    }
  }

  Result<ArgumentStep> bind(const Argument& argument) {
    argument_ = &argument;
    if (const auto* device = std::get_if<ArgLiteralDevice>(&argument)) {
      return fail(ErrorCode::kLiteralDevice,
                  "argument '" + formal_.name() + "' names the device '" + device->name + "'",
                  "programs name device slots; export the program again, or place it with a placement rule");
    }
    if (std::holds_alternative<ArgNone>(argument)) return none();
    if (is_unsupported_type()) {
      return fail(ErrorCode::kUnsupported,
                  "argument '" + formal_.name() + "' is a " + type_->str() + ", which cannot travel",
                  "only None can be given for it");
    }
    auto step = std::visit([this](const auto& given) { return this->from(given); }, argument);
    if (step && formal_.alias_info() != nullptr && formal_.alias_info()->isWrite()) {
      const bool value = step->from == ArgumentStep::From::kBlob || step->from == ArgumentStep::From::kTensorList;
      if (!value) return wrong();
      step->written = true;
      plan_.writes = true;
    }
    return step;
  }

  /// For a parameter that was not given.
  Result<ArgumentStep> missing() {
    const bool device_of_factory = formal_.name() == "device" && kind_ == TypeKind::DeviceObjType && optional_;
    if (device_of_factory && !scope_.device.is_cpu() && !plan_takes_tensors()) return constant(IValue(scope_.device));
    if (formal_.default_value()) return constant(*formal_.default_value());
    if (is_unsupported_type()) {
      return fail(ErrorCode::kUnsupported,
                  "argument '" + formal_.name() + "' is a " + type_->str() + ", which cannot travel");
    }
    return fail(ErrorCode::kBadArgument, "argument '" + formal_.name() + "' (" + type_->str() + ") is missing");
  }

 private:
  Result<ArgumentStep> wrong() const {
    return fail(ErrorCode::kBadArgument, "argument '" + formal_.name() + "' must be " + formal_.real_type()->str() +
                                             ", got " + describe_argument(*argument_, scope_));
  }

  bool is_unsupported_type() const {
    static constexpr std::array kKinds = {TypeKind::GeneratorType, TypeKind::StreamObjType, TypeKind::FutureType,
                                          TypeKind::StorageType,   TypeKind::QuantizerType, TypeKind::ClassType,
                                          TypeKind::DictType,      TypeKind::TupleType,     TypeKind::PyObjectType,
                                          TypeKind::FunctionType,  TypeKind::RRefType,      TypeKind::AwaitType};
    return std::find(kKinds.begin(), kKinds.end(), kind_) != kKinds.end();
  }

  bool plan_takes_tensors() const {
    return std::ranges::any_of(plan_.steps, [](const ArgumentStep& step) {
      return step.from == ArgumentStep::From::kBlob || step.from == ArgumentStep::From::kTensorList ||
             step.from == ArgumentStep::From::kOptionalTensorList;
    });
  }

  Result<ArgumentStep> constant(IValue value) const {
    ArgumentStep step;
    step.from = value.isList() && fresh_lists_ ? ArgumentStep::From::kStaticCopy : ArgumentStep::From::kStatic;
    step.constant = std::move(value);
    return step;
  }
  static ArgumentStep at(ArgumentStep::From from, std::uint32_t first, std::uint32_t count = 1) {
    ArgumentStep step;
    step.from = from;
    step.first = first;
    step.count = count;
    return step;
  }

  Result<ArgumentStep> none() const {
    if (optional_ || kind_ == TypeKind::NoneType || kind_ == TypeKind::AnyType) return constant(IValue());
    return wrong();
  }

  // -- numbers -------------------------------------------------------------------------------------------------------

  Result<ArgumentStep> number(const IValue& given) const {
    if (kind_ == TypeKind::TensorType) return constant(wrapped(given));
    if (kind_ == TypeKind::NumberType || kind_ == TypeKind::AnyType) return constant(given);
    if (is_int(kind_) && (given.isInt() || given.isBool())) return constant(IValue(as_int(given)));
    if (is_float(kind_) && given.isInt()) return constant(IValue(static_cast<double>(given.toInt())));
    if (is_float(kind_) && given.isDouble()) return constant(given);
    if (is_bool(kind_) && given.isBool()) return constant(given);
    if (kind_ == TypeKind::ComplexType) return constant(IValue(given.toScalar().toComplexDouble()));
    if (element_ && formal_.N() && is_int(element_->kind()) && given.isInt()) {
      return constant(IValue(c10::List<std::int64_t>(std::vector<std::int64_t>(*formal_.N(), given.toInt()))));
    }
    if (element_ && formal_.N() && is_float(element_->kind()) && (given.isInt() || given.isDouble())) {
      return constant(IValue(c10::List<double>(std::vector<double>(*formal_.N(), given.toScalar().toDouble()))));
    }
    return wrong();
  }
  static std::int64_t as_int(const IValue& value) { return value.isBool() ? value.toBool() : value.toInt(); }
  static IValue wrapped(const IValue& number) {
    at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  Result<ArgumentStep> from(bool given) const { return number(IValue(given)); }
  Result<ArgumentStep> from(std::int64_t given) const { return number(IValue(given)); }
  Result<ArgumentStep> from(double given) const { return number(IValue(given)); }
  Result<ArgumentStep> from(const std::complex<double>& given) const {
    return number(IValue(c10::complex<double>(given)));
  }
  Result<ArgumentStep> from(const ArgScalar& given) const { return number(number_of(given)); }

  Result<ArgumentStep> from(const ArgSymbol& given) const {
    if (given.expr.is_constant()) return number(IValue(given.expr.terms[0].value));
    const ExprTable::Index index = scope_.exprs.add(given.expr);
    if (kind_ == TypeKind::TensorType) return at(ArgumentStep::From::kExprAsTensor, index);
    if (is_int(kind_) || kind_ == TypeKind::NumberType || kind_ == TypeKind::AnyType)
      return at(ArgumentStep::From::kExpr, index);
    if (is_float(kind_)) return at(ArgumentStep::From::kExprAsFloat, index);
    if (is_bool(kind_)) return at(ArgumentStep::From::kExprAsBool, index);
    if (element_ && formal_.N() && is_int(element_->kind())) {
      return int_list(std::vector<Expr>(static_cast<std::size_t>(*formal_.N()), given.expr));
    }
    return wrong();
  }

  // -- values
  // ----------------------------------------------------------------------------------------------------------

  Result<ArgumentStep> from(const ArgValue& given) const {
    const Slot slot = scope_.slots.at(given.value);
    const ValueKind value = scope_.kind_of(given.value);
    if (kind_ == TypeKind::AnyType) return at(ArgumentStep::From::kBlob, slot);
    switch (value) {
      case ValueKind::kTensor:
        if (kind_ == TypeKind::TensorType) return at(ArgumentStep::From::kBlob, slot);
        break;
      case ValueKind::kNone:
        if (optional_) return at(ArgumentStep::From::kBlob, slot);
        break;
      case ValueKind::kInt:
        if (is_int(kind_) || kind_ == TypeKind::NumberType) return at(ArgumentStep::From::kBlob, slot);
        if (is_float(kind_)) return at(ArgumentStep::From::kBlobAsFloat, slot);
        if (element_ && formal_.N() && is_int(element_->kind())) {
          return slots(ArgumentStep::From::kIntListFromBlobs,
                       std::vector<ValueId>(static_cast<std::size_t>(*formal_.N()), given.value));
        }
        break;
      case ValueKind::kFloat:
        if (is_float(kind_) || kind_ == TypeKind::NumberType) return at(ArgumentStep::From::kBlob, slot);
        break;
      case ValueKind::kBool:
        if (is_bool(kind_) || kind_ == TypeKind::NumberType) return at(ArgumentStep::From::kBlob, slot);
        if (is_int(kind_)) return at(ArgumentStep::From::kBlobAsInt, slot);
        break;
    }
    const bool is_number = value != ValueKind::kTensor && value != ValueKind::kNone;
    if (kind_ == TypeKind::TensorType && is_number) return at(ArgumentStep::From::kBlobAsTensor, slot);
    return wrong();
  }

  ArgumentStep slots(ArgumentStep::From from, const std::vector<ValueId>& values) const {
    const auto first = static_cast<std::uint32_t>(plan_.list.size());
    for (const ValueId value : values) plan_.list.push_back(value == kNoValue ? kNoSlot : scope_.slots.at(value));
    return at(from, first, static_cast<std::uint32_t>(values.size()));
  }

  Result<ArgumentStep> from(const ArgValueList& given) const {
    if (!element_) return wrong();
    if (given.values.empty()) return empty_list();
    const bool integers = is_int(element_->kind());
    if (!integers && element_->kind() != TypeKind::TensorType) return wrong();
    const ValueKind wanted = integers ? ValueKind::kInt : ValueKind::kTensor;
    for (const ValueId value : given.values) {
      if (value == kNoValue || scope_.kind_of(value) != wanted) return wrong();
    }
    if (integers) return slots(ArgumentStep::From::kIntListFromBlobs, given.values);
    return slots(optional_element_ ? ArgumentStep::From::kOptionalTensorList : ArgumentStep::From::kTensorList,
                 given.values);
  }

  Result<ArgumentStep> from(const ArgOptionalValueList& given) const {
    if (!element_ || element_->kind() != TypeKind::TensorType) return wrong();
    if (given.values.empty()) return empty_list();
    for (const ValueId value : given.values) {
      if (value == kNoValue ? !optional_element_ : scope_.kind_of(value) != ValueKind::kTensor) return wrong();
    }
    return slots(optional_element_ ? ArgumentStep::From::kOptionalTensorList : ArgumentStep::From::kTensorList,
                 given.values);
  }

  // -- names
  // -----------------------------------------------------------------------------------------------------------

  Result<ArgumentStep> from(const std::string& given) const {
    if (kind_ != TypeKind::StringType && kind_ != TypeKind::AnyType) return wrong();
    return constant(IValue(given));
  }
  Result<ArgumentStep> from(const ArgDType& given) const {
    if (kind_ != TypeKind::ScalarTypeType && kind_ != TypeKind::IntType) return wrong();
    CALLBOARD_ASSIGN(const at::ScalarType type, scalar_type_of(given.dtype));
    return constant(IValue(type));
  }
  Result<ArgumentStep> from(const ArgLayout& given) const {
    if (kind_ != TypeKind::LayoutType && kind_ != TypeKind::IntType) return wrong();
    CALLBOARD_ASSIGN(const at::Layout layout, layout_of(given.name));
    return constant(IValue(layout));
  }
  Result<ArgumentStep> from(const ArgMemoryFormat& given) const {
    if (kind_ != TypeKind::MemoryFormatType && kind_ != TypeKind::IntType) return wrong();
    CALLBOARD_ASSIGN(const at::MemoryFormat format, memory_format_of(given.name));
    return constant(IValue(format));
  }
  Result<ArgumentStep> from(const ArgDeviceSlot& given) const {
    if (kind_ != TypeKind::DeviceObjType) return wrong();
    if (given.slot != 0) {
      return fail(ErrorCode::kUnsupported, "argument '" + formal_.name() + "' names device slot " +
                                               std::to_string(given.slot) +
                                               "; a node can only name slot 0, its own device");
    }
    return constant(IValue(scope_.device));
  }
  Result<ArgumentStep> from(const ArgNone&) const { return none(); }
  Result<ArgumentStep> from(const ArgLiteralDevice&) const { return wrong(); }  // refused before

  // -- lists
  // -----------------------------------------------------------------------------------------------------------

  /// An empty list has no kind of its own.
  Result<ArgumentStep> empty_list() const {
    const TypeKind kind = element_->kind();
    if (kind == TypeKind::TensorType && optional_element_)
      return constant(IValue(c10::List<std::optional<at::Tensor>>()));
    if (kind == TypeKind::TensorType) return constant(IValue(c10::List<at::Tensor>()));
    if (is_int(kind)) return constant(IValue(c10::List<std::int64_t>()));
    if (is_float(kind)) return constant(IValue(c10::List<double>()));
    if (is_bool(kind)) return constant(IValue(c10::List<bool>()));
    if (kind == TypeKind::StringType) return constant(IValue(c10::List<std::string>()));
    return constant(IValue(c10::impl::GenericList(element_)));
  }

  Result<ArgumentStep> int_list(const std::vector<Expr>& items) const {
    const bool fixed = std::ranges::all_of(items, [](const Expr& item) { return item.is_constant(); });
    if (fixed) {
      c10::List<std::int64_t> list;
      for (const Expr& item : items) list.push_back(item.terms[0].value);
      return constant(IValue(std::move(list)));
    }
    const auto first = static_cast<std::uint32_t>(plan_.integers.size());
    for (const Expr& item : items) plan_.integers.push_back(scope_.exprs.add(item));
    return at(ArgumentStep::From::kIntList, first, static_cast<std::uint32_t>(items.size()));
  }

  Result<ArgumentStep> from(const ArgIntList& given) const {
    if (!element_) return wrong();
    if (given.items.empty()) return empty_list();
    if (is_int(element_->kind())) return int_list(given.items);
    const bool fixed = std::ranges::all_of(given.items, [](const Expr& item) { return item.is_constant(); });
    if (!fixed) return wrong();
    if (is_float(element_->kind())) {
      c10::List<double> list;
      for (const Expr& item : given.items) list.push_back(static_cast<double>(item.terms[0].value));
      return constant(IValue(std::move(list)));
    }
    if (element_->kind() != TypeKind::NumberType) return wrong();
    return scalar_list(given.items, [](const Expr& item) { return IValue(item.terms[0].value); });
  }

  template <class Items, class Convert>
  Result<ArgumentStep> scalar_list(const Items& items, const Convert& convert) const {
    c10::impl::GenericList list(c10::NumberType::get());
    for (const auto& item : items) list.push_back(convert(item));
    return constant(IValue(std::move(list)));
  }

  template <class T, class Items>
  Result<ArgumentStep> typed_list(const Items& items, bool fits) const {
    if (!element_) return wrong();
    if (items.empty()) return empty_list();
    if (fits) {
      c10::List<T> list;
      for (const auto& item : items) list.push_back(T(item));
      return constant(IValue(std::move(list)));
    }
    if constexpr (!std::is_same_v<T, std::string>) {
      if (element_->kind() == TypeKind::NumberType) {
        return scalar_list(items, [](const auto& item) { return IValue(T(item)); });
      }
    }
    return wrong();
  }

  Result<ArgumentStep> from(const ArgFloatList& given) const {
    return typed_list<double>(given.items, element_ && is_float(element_->kind()));
  }
  Result<ArgumentStep> from(const ArgBoolList& given) const {
    return typed_list<bool>(given.items, element_ && is_bool(element_->kind()));
  }
  Result<ArgumentStep> from(const ArgStringList& given) const {
    return typed_list<std::string>(given.items, element_ && element_->kind() == TypeKind::StringType);
  }

  const c10::Argument& formal_;
  const BindingScope& scope_;
  ArgumentPlan& plan_;
  const bool fresh_lists_;
  c10::TypePtr type_;     // without the optional around it
  c10::TypePtr element_;  // of a list
  TypeKind kind_ = TypeKind::AnyType;
  bool optional_ = false;
  bool optional_element_ = false;
  const Argument* argument_ = nullptr;
};

/// ATen's own kernels take lists as array references and keep nothing of them. Of others nobody knows.
bool may_keep_lists(const std::string& op) { return !op.starts_with("aten::") && !op.starts_with("prims::"); }

std::string known_names(const c10::FunctionSchema& schema) {
  std::string names;
  for (const c10::Argument& formal : schema.arguments()) names += (names.empty() ? "" : ", ") + formal.name();
  return names;
}

/// The argument for each parameter, nullptr where none was given.
Result<std::vector<const Argument*>> match_names(const Node& node, const c10::FunctionSchema& schema) {
  const auto& formals = schema.arguments();
  std::vector<const Argument*> given(formals.size(), nullptr);
  const auto positional = static_cast<std::size_t>(
      std::ranges::count_if(formals, [](const c10::Argument& formal) { return !formal.kwarg_only(); }));
  if (node.args.size() > positional) {
    return fail(ErrorCode::kBadArgument,
                std::to_string(node.args.size()) + " positional arguments given, the operator takes " +
                    std::to_string(positional),
                "its arguments: " + known_names(schema));
  }
  for (std::size_t i = 0; i < node.args.size(); ++i) given[i] = &node.args[i];
  for (const auto& [name, argument] : node.kwargs) {
    const auto index = schema.argumentIndexWithName(name);
    if (!index) {
      return fail(ErrorCode::kBadArgument, "the operator has no argument '" + name + "'",
                  "its arguments: " + known_names(schema));
    }
    if (given[*index] != nullptr) return fail(ErrorCode::kBadArgument, "argument '" + name + "' is given twice");
    given[*index] = &argument;
  }
  return given;
}

}  // namespace

ValueKind BindingScope::kind_of(ValueId value) const {
  const auto found = fragment.values.find(value);
  return found == fragment.values.end() ? ValueKind::kTensor : found->second.kind;
}

std::string describe_argument(const Argument& argument, const BindingScope& scope) {
  static constexpr std::array<const char*, 5> kKinds = {"a tensor", "an int", "a float", "a bool", "none"};
  const auto count = [](const auto& items) { return std::to_string(items.size()); };
  return std::visit(
      Overloaded{
          [](const ArgNone&) { return std::string("None"); },
          [&](const ArgValue& given) {
            const auto spec = scope.fragment.values.find(given.value);
            const std::string name =
                spec == scope.fragment.values.end() ? std::string() : " '" + spec->second.name + "'";
            return "value " + std::to_string(given.value) + name + " (" +
                   kKinds[static_cast<std::size_t>(scope.kind_of(given.value))] + ")";
          },
          [&](const ArgValueList& given) { return "a list of " + count(given.values) + " values"; },
          [&](const ArgOptionalValueList& given) { return "a list of " + count(given.values) + " optional values"; },
          [](bool given) { return std::string(given ? "the bool true" : "the bool false"); },
          [](std::int64_t given) { return "the int " + std::to_string(given); },
          [](const ArgSymbol&) { return std::string("a symbolic int"); },
          [](double given) { return "the float " + std::to_string(given); },
          [](const std::complex<double>&) { return std::string("a complex number"); },
          [](const std::string& given) { return "the string '" + given + "'"; },
          [](const ArgDType& given) { return "the dtype " + std::string(dtype_name(given.dtype)); },
          [](const ArgLayout& given) { return "the layout '" + given.name + "'"; },
          [](const ArgMemoryFormat& given) { return "the memory format '" + given.name + "'"; },
          [](const ArgDeviceSlot& given) { return "device slot " + std::to_string(given.slot); },
          [](const ArgLiteralDevice& given) { return "the device '" + given.name + "'"; },
          [&](const ArgIntList& given) { return "a list of " + count(given.items) + " ints"; },
          [&](const ArgFloatList& given) { return "a list of " + count(given.items) + " floats"; },
          [&](const ArgBoolList& given) { return "a list of " + count(given.items) + " bools"; },
          [&](const ArgStringList& given) { return "a list of " + count(given.items) + " strings"; },
          [](const ArgScalar& given) {
            const IValue number = number_of(given);
            return "the scalar " + (number.isComplexDouble() ? std::string("(complex)") : describe(number));
          },
      },
      argument);
}

Result<ArgumentPlan> bind_arguments(const Node& node, const c10::FunctionSchema& schema, const BindingScope& scope) {
  CALLBOARD_ASSIGN(const std::vector<const Argument*> given, match_names(node, schema));
  const bool fresh_lists = may_keep_lists(node.op);
  ArgumentPlan plan;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& formal = schema.arguments()[i];
    Binder binder(formal, scope, plan, fresh_lists);
    auto step = given[i] != nullptr ? binder.bind(*given[i]) : binder.missing();
    if (!step) return fail(std::move(step).error());
    plan.steps.push_back(std::move(*step));
    plan.names.push_back(formal.name());
  }
  return plan;
}

Result<ArgumentPlan> bind_plain_arguments(const Node& node, const std::vector<std::string>& names, std::size_t required,
                                          const BindingScope& scope) {
  if (!node.kwargs.empty()) {
    return fail(ErrorCode::kBadArgument, "the operator has no argument '" + node.kwargs.front().first + "'",
                "its arguments have no names");
  }
  if (node.args.size() < required || node.args.size() > names.size()) {
    return fail(ErrorCode::kBadArgument, std::to_string(node.args.size()) + " arguments given, the operator takes " +
                                             std::to_string(required) +
                                             (required == names.size() ? "" : " to " + std::to_string(names.size())));
  }
  ArgumentPlan plan;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    const Argument& argument = node.args[i];
    ArgumentStep step;
    if (const auto* value = std::get_if<ArgValue>(&argument)) {
      step.from = ArgumentStep::From::kBlob;
      step.first = scope.slots.at(value->value);
    } else if (const auto* symbol = std::get_if<ArgSymbol>(&argument)) {
      step.from = ArgumentStep::From::kExpr;
      step.first = scope.exprs.add(symbol->expr);
    } else if (const auto* integer = std::get_if<std::int64_t>(&argument)) {
      step.constant = IValue(*integer);
    } else if (const auto* number = std::get_if<double>(&argument)) {
      step.constant = IValue(*number);
    } else if (const auto* flag = std::get_if<bool>(&argument)) {
      step.constant = IValue(*flag);
    } else if (const auto* text = std::get_if<std::string>(&argument)) {
      step.constant = IValue(*text);
    } else if (const auto* scalar = std::get_if<ArgScalar>(&argument)) {
      step.constant = number_of(*scalar);
    } else {
      return fail(ErrorCode::kBadArgument,
                  "argument '" + names[i] + "' cannot be " + describe_argument(argument, scope));
    }
    plan.steps.push_back(std::move(step));
    plan.names.push_back(names[i]);
  }
  return plan;
}

}  // namespace callboard::kernels
