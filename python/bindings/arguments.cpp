// From plain Python values to expressions, arguments, specs and placements.
#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <map>
#include <string_view>

#include "messages/limits.h"
#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

std::string shown(py::handle value) {
  std::string text = py::str(py::repr(value));
  return text.size() <= 120 ? text : text.substr(0, 117) + "...";
}

[[noreturn]] void wrong_type(const std::string& what, py::handle value) {
  throw py::type_error(what + " expected, got " + shown(value));
}

std::int64_t to_int(py::handle value, const char* what) {
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) wrong_type(what, value);
  int overflow = 0;
  const long long number =
      PyLong_AsLongLongAndOverflow(py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr())).ptr(), &overflow);
  if (overflow != 0) throw py::value_error(shown(value) + " does not fit 64 bits");
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

double to_float(py::handle value, const char* what) {
  if (!PyFloat_Check(value.ptr())) wrong_type(what, value);
  return PyFloat_AS_DOUBLE(value.ptr());
}

bool to_bool(py::handle value, const char* what) {
  if (!PyBool_Check(value.ptr())) wrong_type(what, value);
  return value.ptr() == Py_True;
}

std::string to_text(py::handle value, const char* what) {
  if (!PyUnicode_Check(value.ptr())) wrong_type(what, value);
  return py::cast<std::string>(value);
}

ValueId to_value(py::handle value) {
  const std::int64_t id = to_int(value, "the id of a value");
  if (id < 0 || id >= static_cast<std::int64_t>(kNoValue))
    throw py::value_error(shown(value) + " is not the id of a value");
  return static_cast<ValueId>(id);
}

/// A list or tuple, at most as long as a node's arguments may be.
template <class T, class Convert>
std::vector<T> to_list(py::handle value, const char* what, Convert convert) {
  if (!PyList_Check(value.ptr()) && !PyTuple_Check(value.ptr())) wrong_type(std::string("a list of ") + what, value);
  std::vector<T> items;
  for (const py::handle item : py::reinterpret_borrow<py::sequence>(value)) items.push_back(convert(item));
  return items;
}

struct Operator {
  ExprOp op;
  bool many;  // takes more than two operands, from the left
};

const std::map<std::string, Operator, std::less<>>& operators() {
  static const auto* all = new std::map<std::string, Operator, std::less<>>{
      {"+", {ExprOp::kAdd, true}},        {"-", {ExprOp::kSub, false}},  {"*", {ExprOp::kMul, true}},
      {"//", {ExprOp::kFloorDiv, false}}, {"%", {ExprOp::kMod, false}},  {"min", {ExprOp::kMin, true}},
      {"max", {ExprOp::kMax, true}},      {"**", {ExprOp::kPow, false}}, {"==", {ExprOp::kEq, false}},
      {"!=", {ExprOp::kNe, false}},       {"<", {ExprOp::kLt, false}},   {"<=", {ExprOp::kLe, false}},
      {">", {ExprOp::kGt, false}},        {">=", {ExprOp::kGe, false}},  {"and", {ExprOp::kAnd, true}},
      {"or", {ExprOp::kOr, true}},
  };
  return *all;
}

/// Appends in postfix order. `depth` keeps a nest of tuples from ending the stack.
void append_expr(py::handle value, std::vector<Expr::Term>& terms, std::size_t depth) {
  if (depth > limits::kExprTermsMax || terms.size() > limits::kExprTermsMax) {
    throw py::value_error("an expression has at most " + std::to_string(limits::kExprTermsMax) + " terms");
  }
  if (!PyTuple_Check(value.ptr())) {
    terms.push_back({ExprOp::kConst, to_int(value, "an integer or an expression")});
    return;
  }
  const auto tuple = py::reinterpret_borrow<py::tuple>(value);
  if (tuple.size() < 2 || !PyUnicode_Check(tuple[0].ptr())) wrong_type("an expression such as (\"+\", a, b)", value);
  const auto name = py::cast<std::string>(tuple[0]);
  if (name == "sym" || name == "value") {
    if (tuple.size() != 2) wrong_type("(\"" + name + "\", number)", value);
    const std::int64_t number = name == "sym" ? to_int(tuple[1], "the number of a symbol") : to_value(tuple[1]);
    terms.push_back({name == "sym" ? ExprOp::kSymbol : ExprOp::kValue, number});
    return;
  }
  if (name == "not") {
    if (tuple.size() != 2) wrong_type("(\"not\", a)", value);
    append_expr(tuple[1], terms, depth + 1);
    terms.push_back({ExprOp::kNot, 0});
    return;
  }
  const auto found = operators().find(name);
  if (found == operators().end())
    throw py::value_error("an expression has no operator '" + name + "': " + shown(value));
  if (tuple.size() < 3 || (tuple.size() > 3 && !found->second.many))
    wrong_type("two operands for '" + name + "'", value);
  append_expr(tuple[1], terms, depth + 1);
  for (std::size_t i = 2; i < tuple.size(); ++i) {
    append_expr(tuple[i], terms, depth + 1);
    terms.push_back({found->second.op, 0});
  }
}

ArgScalar to_scalar(py::handle value) {
  if (PyBool_Check(value.ptr())) return {value.ptr() == Py_True};
  if (PyLong_Check(value.ptr())) return {to_int(value, "an integer")};
  if (PyFloat_Check(value.ptr())) return {PyFloat_AS_DOUBLE(value.ptr())};
  if (PyComplex_Check(value.ptr())) return {py::cast<std::complex<double>>(value)};
  wrong_type("a number", value);
}

using Reader = Argument (*)(py::handle);

const std::map<std::string, Reader, std::less<>>& readers() {
  static const auto* all = new std::map<std::string, Reader, std::less<>>{
      {"tensor", [](py::handle v) -> Argument { return ArgValue{to_value(v)}; }},
      {"tensors", [](py::handle v) -> Argument { return ArgValueList{to_list<ValueId>(v, "ids", to_value)}; }},
      {"optional_tensors",
       [](py::handle v) -> Argument {
         return ArgOptionalValueList{
             to_list<ValueId>(v, "ids", [](py::handle item) { return item.is_none() ? kNoValue : to_value(item); })};
       }},
      {"int", [](py::handle v) -> Argument { return to_int(v, "an integer"); }},
      {"float", [](py::handle v) -> Argument { return to_float(v, "a float"); }},
      {"bool", [](py::handle v) -> Argument { return to_bool(v, "a bool"); }},
      {"complex",
       [](py::handle v) -> Argument {
         if (!PyComplex_Check(v.ptr())) wrong_type("a complex number", v);
         return py::cast<std::complex<double>>(v);
       }},
      {"str", [](py::handle v) -> Argument { return to_text(v, "a text"); }},
      {"dtype", [](py::handle v) -> Argument { return ArgDType{to_dtype(to_text(v, "a dtype's name"))}; }},
      {"layout", [](py::handle v) -> Argument { return ArgLayout{to_text(v, "a layout's name")}; }},
      {"memory_format", [](py::handle v) -> Argument { return ArgMemoryFormat{to_text(v, "a memory format's name")}; }},
      {"device", [](py::handle v) -> Argument { return ArgLiteralDevice{to_text(v, "a device's name")}; }},
      {"device_slot",
       [](py::handle v) -> Argument {
         const std::int64_t slot = to_int(v, "a device slot");
         if (slot < 0 || slot > UINT32_MAX) throw py::value_error(shown(v) + " is not a device slot");
         return ArgDeviceSlot{static_cast<std::uint32_t>(slot)};
       }},
      {"expr", [](py::handle v) -> Argument { return ArgSymbol{to_expr(v)}; }},
      {"ints", [](py::handle v) -> Argument { return ArgIntList{to_list<Expr>(v, "integers", to_expr)}; }},
      {"floats",
       [](py::handle v) -> Argument {
         return ArgFloatList{to_list<double>(v, "floats", [](py::handle item) { return to_float(item, "a float"); })};
       }},
      {"bools",
       [](py::handle v) -> Argument {
         return ArgBoolList{to_list<bool>(v, "bools", [](py::handle item) { return to_bool(item, "a bool"); })};
       }},
      {"strs",
       [](py::handle v) -> Argument {
         return ArgStringList{
             to_list<std::string>(v, "texts", [](py::handle item) { return to_text(item, "a text"); })};
       }},
      {"scalar", [](py::handle v) -> Argument { return to_scalar(v); }},
  };
  return *all;
}

}  // namespace

Expr to_expr(py::handle value) {
  Expr expr;
  append_expr(value, expr.terms, 0);
  return expr;
}

Argument to_argument(py::handle value) {
  if (!PyTuple_Check(value.ptr())) wrong_type("a tagged argument such as (\"int\", 3)", value);
  const auto tuple = py::reinterpret_borrow<py::tuple>(value);
  const std::string tag = tuple.empty() ? "" : to_text(tuple[0], "a tag");
  if (tag == "none" && tuple.size() == 1) return ArgNone{};
  const auto reader = readers().find(tag);
  if (reader == readers().end() || tuple.size() != 2) wrong_type("a tagged argument such as (\"int\", 3)", value);
  return reader->second(tuple[1]);
}

ProgramOutput to_output(const std::string& name, py::handle value) {
  const Argument argument = to_argument(value);
  ProgramOutput output{name, ArgNone{}};
  const bool taken = std::visit(
      [&](const auto& source) {
        if constexpr (std::is_constructible_v<decltype(output.source), decltype(source)> &&
                      !std::is_same_v<std::decay_t<decltype(source)>, std::complex<double>>) {
          output.source = source;
          return true;
        } else {
          return false;
        }
      },
      argument);
  if (!taken) wrong_type("\"tensor\", \"none\", \"bool\", \"int\", \"float\", \"str\" or \"expr\" as output", value);
  return output;
}

ValueKind to_kind(const std::string& name) {
  for (const ValueKind kind :
       {ValueKind::kTensor, ValueKind::kInt, ValueKind::kFloat, ValueKind::kBool, ValueKind::kNone}) {
    if (value_kind_name(kind) == name) return kind;
  }
  throw py::value_error("'" + name + "' is not a kind of value: tensor, int, float, bool or none");
}

DType to_dtype(const std::string& name) { return value_or_raise(dtype_from_name(name)); }

/// (kind, name) or, for a tensor, (kind, name, dtype | None, sizes | None).
ValueSpec to_spec(py::handle value) {
  if (!PyTuple_Check(value.ptr())) wrong_type("an output such as (\"tensor\", name, dtype, sizes)", value);
  const auto tuple = py::reinterpret_borrow<py::tuple>(value);
  ValueSpec spec;
  if (tuple.size() != 2 && tuple.size() != 4) wrong_type("an output such as (\"tensor\", name, dtype, sizes)", value);
  spec.kind = to_kind(to_text(tuple[0], "a kind of value"));
  spec.name = to_text(tuple[1], "a name");
  if (tuple.size() == 4 && !tuple[2].is_none()) spec.dtype = to_dtype(to_text(tuple[2], "a dtype's name"));
  if (tuple.size() == 4 && !tuple[3].is_none()) spec.sizes = to_list<Expr>(tuple[3], "sizes", to_expr);
  return spec;
}

std::vector<std::int64_t> to_int_list(py::handle value, const char* what) {
  return to_list<std::int64_t>(value, what, [](py::handle item) { return to_int(item, "an integer"); });
}

Placement to_placement(py::handle value) {
  Placement placement;
  if (!value || value.is_none()) return placement;
  if (!PyDict_Check(value.ptr())) wrong_type("a placement dict", value);
  bool said = false;
  for (const auto& [key, item] : py::reinterpret_borrow<py::dict>(value)) {
    const std::string name = to_text(key, "a key of a placement");
    if (name == "automatic") {
      placement.automatic = to_bool(item, "a bool for 'automatic'");
      said = true;
    } else if (name == "devices") {
      placement.devices =
          to_list<std::string>(item, "devices", [](py::handle each) { return to_text(each, "a device"); });
    } else if (name == "rules") {
      for (const py::handle each : py::reinterpret_borrow<py::sequence>(item)) {
        const auto rule = py::cast<py::dict>(each);
        Placement::Rule made;
        for (const auto& [field, content] : rule) {
          const std::string which = to_text(field, "a key of a rule");
          if (which == "device") {
            made.device = to_text(content, "a device");
          } else if (which == "module_prefixes") {
            made.module_prefixes =
                to_list<std::string>(content, "prefixes", [](py::handle p) { return to_text(p, "a prefix"); });
          } else if (which == "node_ranges") {
            made.node_ranges = py::cast<std::vector<std::pair<std::uint32_t, std::uint32_t>>>(content);
          } else {
            throw py::value_error("a placement rule has no key '" + which + "': device, module_prefixes, node_ranges");
          }
        }
        placement.rules.push_back(std::move(made));
      }
    } else {
      throw py::value_error("a placement has no key '" + name + "': automatic, devices, rules");
    }
  }
  if (!said) placement.automatic = placement.rules.empty();
  return placement;
}

}  // namespace callboard::python
