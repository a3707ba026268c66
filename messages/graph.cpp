#include "messages/graph.h"

namespace callboard {

Argument::Argument() = default;
template <class T>
  requires(!std::is_same_v<T, Argument>)
Argument::Argument(T value) : ArgumentVariant(std::in_place_type<T>, std::move(value)) {}

// An alternative that is missing here does not link.
template Argument::Argument(ArgNone);
template Argument::Argument(ArgValue);
template Argument::Argument(ArgValueList);
template Argument::Argument(ArgOptionalValueList);
template Argument::Argument(bool);
template Argument::Argument(std::int64_t);
template Argument::Argument(ArgSymbol);
template Argument::Argument(double);
template Argument::Argument(std::complex<double>);
template Argument::Argument(std::string);
template Argument::Argument(ArgDType);
template Argument::Argument(ArgLayout);
template Argument::Argument(ArgMemoryFormat);
template Argument::Argument(ArgDeviceSlot);
template Argument::Argument(ArgLiteralDevice);
template Argument::Argument(ArgIntList);
template Argument::Argument(ArgFloatList);
template Argument::Argument(ArgBoolList);
template Argument::Argument(ArgStringList);
template Argument::Argument(ArgScalar);

Argument::Argument(const Argument& other) = default;
Argument::Argument(Argument&& other) noexcept = default;
Argument& Argument::operator=(const Argument& other) = default;
Argument& Argument::operator=(Argument&& other) noexcept = default;
Argument::~Argument() = default;
std::string_view value_kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kTensor: return "tensor";
    case ValueKind::kInt: return "int";
    case ValueKind::kFloat: return "float";
    case ValueKind::kBool: return "bool";
    case ValueKind::kNone: return "none";
  }
  return "unknown";
}

std::string_view value_kind_phrase(ValueKind kind) {
  switch (kind) {
    case ValueKind::kTensor: return "a tensor";
    case ValueKind::kInt: return "an int";
    case ValueKind::kFloat: return "a float";
    case ValueKind::kBool: return "a bool";
    case ValueKind::kNone: return "None";
  }
  return "something unknown";
}

bool operator==(const Argument& a, const Argument& b) {
  return static_cast<const ArgumentVariant&>(a) == static_cast<const ArgumentVariant&>(b);
}

}  // namespace callboard
