#include "kernels/primitive_kernel.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "messages/base/names.h"

namespace callboard::kernels {

namespace {

using c10::IValue;

[[noreturn]] void refuse(std::string what, std::string hint = {}) {
  throw KernelFailure(Error(ErrorCode::kBadInput, std::move(what), std::move(hint)));
}

// -- numbers with Python's rules
// ---------------------------------------------------------------------------------------

bool is_whole(const IValue& value) { return value.isInt() || value.isBool(); }

std::int64_t whole(const IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  refuse("an int was expected, found " + describe(value));
}

double real(const IValue& value) {
  if (value.isDouble()) return value.toDouble();
  return static_cast<double>(whole(value));
}

bool truth(const IValue& value) { return value.isDouble() ? value.toDouble() != 0.0 : whole(value) != 0; }

using Overflow = bool (*)(std::int64_t, std::int64_t, std::int64_t*);
bool add_overflows(std::int64_t a, std::int64_t b, std::int64_t* r) { return __builtin_add_overflow(a, b, r); }
bool sub_overflows(std::int64_t a, std::int64_t b, std::int64_t* r) { return __builtin_sub_overflow(a, b, r); }
bool mul_overflows(std::int64_t a, std::int64_t b, std::int64_t* r) { return __builtin_mul_overflow(a, b, r); }

std::int64_t exact(Overflow overflows, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (overflows(a, b, &result)) refuse("an integer of the program does not fit 64 bits");
  return result;
}

template <Overflow kExact, double (*kReal)(double, double)>
IValue arithmetic(const IValue* a) {
  if (is_whole(a[0]) && is_whole(a[1])) return exact(kExact, whole(a[0]), whole(a[1]));
  return kReal(real(a[0]), real(a[1]));
}
double add_real(double a, double b) { return a + b; }
double sub_real(double a, double b) { return a - b; }
double mul_real(double a, double b) { return a * b; }

void check_divisor(bool zero) {
  if (zero) refuse("division by zero in the program's arithmetic on sizes");
}

double mod_real(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : std::copysign(rest, rest == 0.0 ? b : rest);
}

std::int64_t mod_whole(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;  // INT64_MIN % -1 traps
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

IValue floordiv(const IValue* a) {
  check_divisor(real(a[1]) == 0.0);
  if (!is_whole(a[0]) || !is_whole(a[1])) return std::floor(real(a[0]) / real(a[1]));
  const std::int64_t x = whole(a[0]);
  const std::int64_t y = whole(a[1]);
  if (y == -1) return exact(sub_overflows, 0, x);
  return x / y - (mod_whole(x, y) != 0 && (x < 0) != (y < 0) ? 1 : 0);
}

IValue mod(const IValue* a) {
  check_divisor(real(a[1]) == 0.0);
  if (is_whole(a[0]) && is_whole(a[1])) return mod_whole(whole(a[0]), whole(a[1]));
  return mod_real(real(a[0]), real(a[1]));
}

IValue truediv(const IValue* a) {
  check_divisor(real(a[1]) == 0.0);
  return real(a[0]) / real(a[1]);
}

IValue power(const IValue* a) {
  if (!is_whole(a[0]) || !is_whole(a[1]) || whole(a[1]) < 0) return std::pow(real(a[0]), real(a[1]));
  std::int64_t result = 1;
  std::int64_t base = whole(a[0]);
  for (std::int64_t exponent = whole(a[1]); exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = exact(mul_overflows, result, base);
    if (exponent > 1) base = exact(mul_overflows, base, base);
  }
  return result;
}

/// -1, 0, 1; 2 if a NaN makes them incomparable.
int compare(const IValue* a) {
  if (is_whole(a[0]) && is_whole(a[1])) {
    const std::int64_t x = whole(a[0]);
    const std::int64_t y = whole(a[1]);
    return x < y ? -1 : (x > y ? 1 : 0);
  }
  const double x = real(a[0]);
  const double y = real(a[1]);
  return x < y ? -1 : (x > y ? 1 : (x == y ? 0 : 2));
}

std::int64_t to_whole(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(value >= -kLimit && value < kLimit)) refuse("the float " + std::to_string(value) + " does not fit an int");
  return static_cast<std::int64_t>(value);
}

template <double (*kRound)(double)>
IValue rounded(const IValue* a) {
  return is_whole(a[0]) ? IValue(whole(a[0])) : IValue(to_whole(kRound(real(a[0]))));
}

IValue negative(const IValue* a) {
  return is_whole(a[0]) ? IValue(exact(sub_overflows, 0, whole(a[0]))) : IValue(-real(a[0]));
}

IValue absolute(const IValue* a) {
  return real(a[0]) < 0 ? negative(a) : (is_whole(a[0]) ? IValue(whole(a[0])) : a[0]);
}

// -- tensors
// -------------------------------------------------------------------------------------------------------------

const at::Tensor& tensor(const IValue& value) {
  if (!value.isTensor()) refuse("a tensor was expected, found " + describe(value));
  return value.toTensor();
}

std::int64_t dimension(const at::Tensor& of, const IValue& index) {
  const std::int64_t dim = whole(index);
  const std::int64_t rank = of.dim();
  if (dim < -rank || dim >= rank) {
    refuse("dimension " + std::to_string(dim) + " of a tensor with " + std::to_string(rank) + " dimensions");
  }
  return dim < 0 ? dim + rank : dim;
}

IValue size(const IValue* a) { return tensor(a[0]).size(dimension(tensor(a[0]), a[1])); }
IValue stride(const IValue* a) { return tensor(a[0]).stride(dimension(tensor(a[0]), a[1])); }
IValue numel(const IValue* a) { return tensor(a[0]).numel(); }
IValue storage_offset(const IValue* a) { return tensor(a[0]).storage_offset(); }

IValue assert_true(const IValue* a) {
  if (!truth(a[0]))
    refuse("the program's own check failed: " + (a[1].isString() ? a[1].toStringRef() : describe(a[1])));
  return {};
}

struct Primitive {
  std::string_view name;
  std::size_t arguments;
  std::size_t results;
  IValue (*apply)(const IValue* arguments);
};

constexpr std::array kPrimitives = {
    Primitive{"size", 2, 1, size},
    Primitive{"stride", 2, 1, stride},
    Primitive{"numel", 1, 1, numel},
    Primitive{"storage_offset", 1, 1, storage_offset},
    Primitive{"assert", 2, 0, assert_true},
    Primitive{"add", 2, 1, arithmetic<add_overflows, add_real>},
    Primitive{"sub", 2, 1, arithmetic<sub_overflows, sub_real>},
    Primitive{"mul", 2, 1, arithmetic<mul_overflows, mul_real>},
    Primitive{"floordiv", 2, 1, floordiv},
    Primitive{"truediv", 2, 1, truediv},
    Primitive{"mod", 2, 1, mod},
    Primitive{"pow", 2, 1, power},
    Primitive{"min", 2, 1, [](const IValue* a) { return compare(a) <= 0 ? a[0] : a[1]; }},
    Primitive{"max", 2, 1, [](const IValue* a) { return compare(a) >= 0 ? a[0] : a[1]; }},
    Primitive{"eq", 2, 1, [](const IValue* a) { return IValue(compare(a) == 0); }},
    Primitive{"ne", 2, 1, [](const IValue* a) { return IValue(compare(a) != 0); }},
    Primitive{"lt", 2, 1, [](const IValue* a) { return IValue(compare(a) == -1); }},
    Primitive{"le", 2, 1, [](const IValue* a) { return IValue(compare(a) <= 0); }},
    Primitive{"gt", 2, 1, [](const IValue* a) { return IValue(compare(a) == 1); }},
    Primitive{"ge", 2, 1, [](const IValue* a) { return IValue(compare(a) == 0 || compare(a) == 1); }},
    Primitive{"and", 2, 1, [](const IValue* a) { return IValue(truth(a[0]) && truth(a[1])); }},
    Primitive{"or", 2, 1, [](const IValue* a) { return IValue(truth(a[0]) || truth(a[1])); }},
    Primitive{"not", 1, 1, [](const IValue* a) { return IValue(!truth(a[0])); }},
    Primitive{"neg", 1, 1, negative},
    Primitive{"abs", 1, 1, absolute},
    Primitive{"floor", 1, 1, rounded<std::floor>},
    Primitive{"ceil", 1, 1, rounded<std::ceil>},
    Primitive{"trunc", 1, 1, rounded<std::trunc>},
    Primitive{"round", 1, 1, rounded<std::nearbyint>},
    Primitive{"sqrt", 1, 1, [](const IValue* a) { return IValue(std::sqrt(real(a[0]))); }},
    Primitive{"int", 1, 1, rounded<std::trunc>},
    Primitive{"float", 1, 1, [](const IValue* a) { return IValue(real(a[0])); }},
    Primitive{"ite", 3, 1, [](const IValue* a) { return truth(a[0]) ? a[1] : a[2]; }},
};

class PrimitiveKernel final : public Kernel {
 public:
  PrimitiveKernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs,
                  const Primitive& primitive)
      : Kernel(std::move(info), std::move(arguments), std::move(outputs)), primitive_(primitive) {}

 private:
  void compute(Stack& stack, KernelFrame&) override {
    IValue result = primitive_.apply(stack.data());
    stack.clear();
    if (primitive_.results == 1) stack.push_back(std::move(result));
  }
  const Primitive& primitive_;
};

constexpr std::string_view kOurSpace = "callboard_sym::";
constexpr std::array<std::string_view, 4> kSpaces = {kOurSpace, "_operator::", "math::", "torch::sym_"};

/// Python's names for what we call otherwise.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSynonyms = {
    {{"and_", "and"}, {"or_", "or"}, {"not_", "not"}, {"fmod", "mod"}}};

std::string_view bare_name(std::string_view op) {
  for (const std::string_view space : kSpaces) {
    if (!op.starts_with(space)) continue;
    std::string_view name = op.substr(space.size());
    for (const auto& [theirs, ours] : kSynonyms) {
      if (name == theirs) name = ours;
    }
    return name;
  }
  return {};
}

}  // namespace

bool is_primitive(std::string_view op) { return !bare_name(op).empty(); }

Result<PreparedKernel> make_primitive_kernel(const Node& node, std::shared_ptr<const KernelInfo> info,
                                             OutputPlan outputs, const BindingScope& scope) {
  static const std::vector<std::string> kArgumentNames = {"first", "second", "third"};
  const std::string_view name = bare_name(node.op);
  const Primitive* primitive = nullptr;
  std::vector<std::string> names;
  for (const Primitive& known : kPrimitives) {
    if (known.name == name) primitive = &known;
    names.push_back(std::string(kOurSpace) + std::string(known.name));
  }
  if (primitive == nullptr) {
    Error error(ErrorCode::kUnknownOperator, "there is no operator '" + node.op + "' on this device");
    for (const std::string& near : nearest_names(std::string(kOurSpace) + std::string(name), names, 3)) {
      error.hint += (error.hint.empty() ? "did you mean " : ", ") + near;
    }
    return fail(std::move(error));
  }
  const std::vector<std::string> argument_names(
      kArgumentNames.begin(), kArgumentNames.begin() + static_cast<std::ptrdiff_t>(primitive->arguments));
  CALLBOARD_ASSIGN(ArgumentPlan arguments, bind_plain_arguments(node, argument_names, primitive->arguments, scope));
  if (outputs.steps.size() != primitive->results || (primitive->results == 1 && outputs.steps[0].is_list)) {
    return fail(ErrorCode::kOutputMismatch, "the node declares " + std::to_string(outputs.steps.size()) +
                                                " outputs, the operator gives " + std::to_string(primitive->results) +
                                                " value");
  }
  PreparedKernel prepared;
  prepared.kernel =
      std::make_unique<PrimitiveKernel>(std::move(info), std::move(arguments), std::move(outputs), *primitive);
  return prepared;
}

}  // namespace callboard::kernels
