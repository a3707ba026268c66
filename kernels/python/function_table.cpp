#include "kernels/python/function_table.h"

#include <algorithm>
#include <utility>

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "kernels/python/bootstrap.h"
#include "kernels/python/python_error.h"
#include "messages/operator_name.h"

namespace callboard::kernels {

namespace {

std::string entry_text(const PythonKernelEntry& entry) { return "Python kernel '" + entry.target + "'"; }

Error about(const PythonKernelEntry& entry, Error error) {
  error.message = entry_text(entry) + ": " + error.message;
  return error;
}

/// Imports a module, once for the process; runs its code where it was not imported yet.
Result<PyRef> import_module(const std::string& name) {
  PyRef module = PyRef::steal(PyImport_ImportModule(name.c_str()));
  if (module) return module;
  const bool missing = PyErr_ExceptionMatches(PyExc_ModuleNotFoundError) != 0;
  Error error = take_python_error("importing the module '" + name + "'");
  if (missing) error.hint = "python.path in the cluster file lists the folders where modules are";
  return fail(std::move(error));
}

/// An attribute, or the attribute of one: "Model.kernel". Empty without an exception if it is not there.
PyRef find_attribute(PyObject* object, std::string_view path) {
  PyRef found = PyRef::share(object);
  while (found && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    found = PyRef::steal(PyObject_GetAttrString(found.get(), std::string(path.substr(0, dot)).c_str()));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  if (!found) PyErr_Clear();
  return found;
}

std::string text_attribute(PyObject* object, const char* name) {
  const PyRef value = find_attribute(object, name);
  return value && PyUnicode_Check(value.get()) != 0 ? text_of(value.get()) : std::string();
}

Result<c10::FunctionSchema> read_schema(const std::string& text) {
  try {
    return torch::jit::parseSchema(text, /*allow_typevars=*/false);
  } catch (const std::exception& thrown) {  // LibTorch's, with a picture of the text and backtraces behind it
    const std::string what = thrown.what();
    return fail(ErrorCode::kBadArgument,
                "the schema '" + text + "' cannot be read: " + what.substr(0, what.find("\nException")),
                "as in \"my::scale(Tensor x, float factor=1.0) -> Tensor\"");
  }
}

/// What the decorator or the entry says of a function.
struct Declared {
  std::string op;
  std::string schema;
  bool random = false;
};

Result<Declared> declaration_of(const PythonKernelEntry& entry, PyObject* object) {
  const PyRef kernel = find_attribute(object, "__callboard_kernel__");
  Declared declared;
  if (!entry.schema.empty()) {
    declared.schema = entry.schema;
    declared.random = entry.random;
    if (kernel && text_attribute(kernel.get(), "schema") != entry.schema) {
      return fail(ErrorCode::kBadArgument,
                  "the cluster file gives the schema '" + entry.schema + "', the function's own is '" +
                      text_attribute(kernel.get(), "schema") + "'",
                  "remove it from the cluster file: the function's own holds");
    }
    return declared;
  }
  if (!kernel) {
    return fail(ErrorCode::kBadArgument, "the function has no schema",
                "decorate it with @callboard.kernel(...), or give its schema in the cluster file");
  }
  declared.op = text_attribute(kernel.get(), "op");
  declared.schema = text_attribute(kernel.get(), "schema");
  const PyRef deterministic = find_attribute(kernel.get(), "deterministic");
  declared.random = !deterministic || deterministic.get() != Py_True;
  return declared;
}

/// The function itself: torch.library's operator around it would check, dispatch and wrap once more.
PyRef plain_function(PyObject* object) {
  const PyRef kernel = find_attribute(object, "__callboard_kernel__");
  PyRef plain = kernel ? find_attribute(kernel.get(), "fn") : PyRef();
  if (!plain && kernel) plain = find_attribute(object, "fn");
  return plain ? std::move(plain) : PyRef::share(object);
}

Status check_returns(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    CALLBOARD_ASSIGN(const PythonValue value, python_value_of(result));
    const bool dtype =
        value != PythonValue::kTensor && value != PythonValue::kTensorList && value != PythonValue::kPlain;
    const auto kind = result.real_type()->kind();
    const bool text = kind == c10::TypeKind::StringType || kind == c10::TypeKind::DeviceObjType ||
                      kind == c10::TypeKind::ComplexType || kind == c10::TypeKind::NumberType ||
                      (kind == c10::TypeKind::ListType && value == PythonValue::kPlain);
    if (dtype || text) {
      return fail(ErrorCode::kUnsupported,
                  "it returns " + result.real_type()->str() + ", which no value of a program is",
                  "tensors, lists of tensors, int, float and bool are");
    }
  }
  return {};
}

Result<FunctionTable::Function> describe_arguments(const c10::FunctionSchema& schema) {
  if (schema.is_vararg() || schema.is_varret()) {
    return fail(ErrorCode::kUnsupported, "its schema has '...': " + c10::toString(schema),
                "name each argument and each result");
  }
  FunctionTable::Function function;
  std::vector<std::string> keywords;
  for (const c10::Argument& argument : schema.arguments()) {
    CALLBOARD_ASSIGN(const PythonValue value, python_value_of(argument));
    function.values.push_back(value);
    function.written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    if (argument.kwarg_only()) keywords.push_back(argument.name());
  }
  CALLBOARD_TRY(check_returns(schema));
  if (keywords.empty()) return function;
  PyRef names = PyRef::steal(PyTuple_New(static_cast<Py_ssize_t>(keywords.size())));
  for (std::size_t i = 0; names && i < keywords.size(); ++i) {
    PyObject* name = PyUnicode_InternFromString(keywords[i].c_str());
    if (name == nullptr) return fail(take_python_error("naming its arguments"));
    PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(i), name);
  }
  function.keyword_names = names.release();
  return function;
}

/// Would the function take what the schema has?
Status check_signature(PyObject* callable, const c10::FunctionSchema& schema, const FunctionTable::Function& function) {
  const PyRef accepts = bootstrap_function("accepts");
  const auto keywords = function.keyword_names == nullptr ? 0 : PyTuple_GET_SIZE(function.keyword_names);
  const auto positional = static_cast<Py_ssize_t>(function.values.size()) - keywords;
  const PyRef names =
      function.keyword_names == nullptr ? PyRef::steal(PyTuple_New(0)) : PyRef::share(function.keyword_names);
  const PyRef bound = accepts && names
                          ? PyRef::steal(PyObject_CallFunction(accepts.get(), "OnO", callable, positional, names.get()))
                          : PyRef();
  if (bound) return {};
  const Error error = take_python_error("it");
  return fail(ErrorCode::kBadArgument,
              "the function does not take the arguments of its schema " + c10::toString(schema) + ": " + error.message,
              "make the function's parameters those of the schema, in its order");
}

}  // namespace

Result<FunctionTable> FunctionTable::make(const std::vector<PythonKernelEntry>& entries,
                                          const std::function<void(const std::string& step)>& step) {
  FunctionTable table;
  for (const PythonKernelEntry& entry : entries) {
    if (Status added = table.add(entry, step); !added) return fail(about(entry, std::move(added).error()));
  }
  return table;
}

Status FunctionTable::add(const PythonKernelEntry& entry, const std::function<void(const std::string&)>& step) {
  const std::size_t colon = entry.target.find(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == entry.target.size()) {
    return fail(ErrorCode::kBadArgument, "the target is not of the form module:function");
  }
  const std::string module_name = entry.target.substr(0, colon);
  step("importing the module '" + module_name + "'");
  CALLBOARD_ASSIGN(const PyRef module, import_module(module_name));
  CALLBOARD_TRY(note_declared(module.get(), module_name));
  const std::string path = entry.target.substr(colon + 1);
  const PyRef object = find_attribute(module.get(), path);
  if (!object) {
    return fail(ErrorCode::kBadArgument, "the module '" + module_name + "' has no function '" + path + "'",
                "python.kernels in the cluster file names it");
  }
  if (PyCallable_Check(object.get()) == 0) {
    return fail(ErrorCode::kBadArgument,
                "'" + path + "' is a " + type_name_of(object.get()) + ", which cannot be called");
  }
  CALLBOARD_TRY(add_operator(entry, object.get()));
  return add_warm_up(entry, object.get(), module.get());
}

Status FunctionTable::add_operator(const PythonKernelEntry& entry, PyObject* object) {
  CALLBOARD_ASSIGN(const Declared declared, declaration_of(entry, object));
  CALLBOARD_ASSIGN(c10::FunctionSchema schema, read_schema(declared.schema));
  const std::string name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  if (name.find("::") == std::string::npos) {
    return fail(ErrorCode::kBadArgument, "the operator '" + name + "' has no namespace", "as in \"my::scale\"");
  }
  if (!declared.op.empty() && declared.op != name) {
    return fail(ErrorCode::kBadArgument,
                "the function's operator is '" + declared.op + "', its schema is of '" + name + "'");
  }
  if (is_reserved_namespace(std::string_view(name).substr(0, name.find("::")))) {
    return fail(ErrorCode::kBadArgument, "'" + name + "' is in a namespace of PyTorch or of programs",
                "use a namespace of your own");
  }
  if (const auto known = std::ranges::find(operators_, name, &PythonOperator::op); known != operators_.end()) {
    return fail(ErrorCode::kBadArgument, "the operator '" + name + "' is brought by '" + known->target + "' already");
  }
  CALLBOARD_ASSIGN(Function function, describe_arguments(schema));
  PyRef callable = plain_function(object);
  CALLBOARD_TRY(check_signature(callable.get(), schema, function));
  function.callable = callable.release();
  PythonOperator op{name, entry.target, std::move(schema), declared.random,
                    static_cast<std::uint32_t>(functions_.size())};
  functions_.push_back(std::move(function));
  operators_.push_back(std::move(op));
  return {};
}

/// The decorator's, and the one that the entry names.
Status FunctionTable::add_warm_up(const PythonKernelEntry& entry, PyObject* object, PyObject* module) {
  const PyRef kernel = find_attribute(object, "__callboard_kernel__");
  PyRef own = kernel ? find_attribute(kernel.get(), "warm_up") : PyRef();
  if (own && own.get() != Py_None) warm_ups_.push_back({own.release(), entry.target});
  if (entry.warm_up.empty()) return {};
  PyRef named = find_attribute(module, entry.warm_up);
  if (!named || PyCallable_Check(named.get()) == 0) {
    return fail(ErrorCode::kBadArgument, "its module has no warm-up function '" + entry.warm_up + "'",
                "warm_up names a function of the same module that takes a torch.device");
  }
  warm_ups_.push_back({named.release(), entry.target.substr(0, entry.target.find(':') + 1) + entry.warm_up});
  return {};
}

Status FunctionTable::note_declared(PyObject* module, const std::string& module_name) {
  const PyRef ask = bootstrap_function("declared");
  const PyRef pairs = ask ? PyRef::steal(PyObject_CallOneArg(ask.get(), module)) : PyRef();
  if (!pairs) return fail(take_python_error("looking for kernels in the module '" + module_name + "'"));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs.get()); ++i) {
    PyObject* pair = PyList_GET_ITEM(pairs.get(), i);
    declared_.emplace(text_of(PyTuple_GET_ITEM(pair, 0)), text_of(PyTuple_GET_ITEM(pair, 1)));
  }
  return {};
}

std::string FunctionTable::why_not(std::string_view op) const {
  const auto found = declared_.find(op);
  if (found == declared_.end()) return {};
  return "the operator '" + std::string(op) + "' is the Python kernel '" + found->second +
         "', which python.kernels of the cluster file does not name";
}

}  // namespace callboard::kernels
