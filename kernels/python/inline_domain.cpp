#include "kernels/python/inline_domain.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/Device.h>

#include "kernels/gil_board_json.h"
#include "kernels/kernel_failure.h"
#include "kernels/python/bootstrap.h"
#include "kernels/python/call_watch.h"
#include "kernels/python/convert.h"
#include "kernels/python/function_table.h"
#include "kernels/python/gil.h"
#include "kernels/python/interpreter.h"
#include "kernels/python/python_error.h"
#include "kernels/python/stream_guard.h"

namespace callboard::kernels {

namespace {

/// As eager PyTorch under no_grad: a stream's thread is in InferenceMode, whose tensors Python code cannot write to
/// later and torch.compile takes for others.
struct OrdinaryTensors {
  const c10::InferenceMode ordinary{false};
  const c10::AutoGradMode no_grad{false};
};

/// The arguments of one call: what Python is given, and what it is looked at for afterwards.
class CallArguments {
 public:
  CallArguments(const PythonOperator& op, const FunctionTable::Function& function, const torch::jit::Stack& stack)
      : op_(op), function_(function), stack_(stack) {}
  ~CallArguments() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  Status make() {
    objects_.reserve(stack_.size());
    for (std::size_t i = 0; i < stack_.size(); ++i) {
      auto object = convert(i);
      if (!object) {
        Error error = std::move(object).error();
        error.message = "argument '" + op_.schema.arguments()[i].name() + "' of " + op_.target + ": " + error.message;
        return fail(std::move(error));
      }
      objects_.push_back(object->release());
    }
    return {};
  }

  PyRef call() const {
    const std::size_t keywords =
        function_.keyword_names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(function_.keyword_names));
    return PyRef::steal(
        PyObject_Vectorcall(function_.callable, objects_.data(), objects_.size() - keywords, function_.keyword_names));
  }

  void find_undeclared(std::vector<GilDomain::Undeclared>& undeclared) const {
    for (const Given& given : given_) {
      if (!function_.written[given.argument] && was_written(tensor_of(given.object))) {
        undeclared.push_back({given.argument, given.original});
      }
    }
  }

  /// The storages behind what it was given; for own_results(). Once.
  c10::SmallVector<LentOut, 4> take_lent() { return std::move(lent_); }

 private:
  struct Given {
    std::size_t argument;
    at::Tensor original;
    PyRef object;
  };

  /// The Python object alone owns the alias: LibTorch does more where C++ holds it, too.
  Result<PyRef> lend(std::size_t argument, const at::Tensor& tensor) {
    CALLBOARD_ASSIGN(at::Tensor alias, alias_for_python(tensor));
    const bool defined = alias.defined();
    if (defined) {
      lent_.push_back({argument, tensor.storage().unsafeGetStorageImpl(), alias.storage().getWeakStorageImpl()});
    }
    PyRef object = to_object(std::move(alias));
    if (!object) return fail(take_python_error("making a tensor for it"));
    if (defined) given_.push_back({argument, tensor, PyRef::share(object.get())});
    return object;
  }

  Result<PyRef> lend_list(std::size_t argument, const c10::IValue& value) {
    const auto items = value.toListRef();
    PyRef list = PyRef::steal(PyList_New(static_cast<Py_ssize_t>(items.size())));
    if (!list) return fail(take_python_error("making a list for it"));
    for (std::size_t i = 0; i < items.size(); ++i) {
      CALLBOARD_ASSIGN(PyRef item, lend(argument, items[i].isTensor() ? items[i].toTensor() : at::Tensor()));
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item.release());
    }
    return list;
  }

  Result<PyRef> convert(std::size_t i) {
    const c10::IValue& value = stack_[i];
    if (value.isTensor()) return lend(i, value.toTensor());
    if (function_.values[i] == PythonValue::kTensorList && value.isList()) return lend_list(i, value);
    PyRef object = plain_to_object(value, function_.values[i]);
    if (!object) return fail(take_python_error("making a value for it"));
    return object;
  }

  const PythonOperator& op_;
  const FunctionTable::Function& function_;
  const torch::jit::Stack& stack_;
  c10::SmallVector<PyObject*, 8> objects_;
  c10::SmallVector<Given, 4> given_;
  c10::SmallVector<LentOut, 4> lent_;
};

/// While code of the user's runs at the start, a crash leaves its Python stack on stderr, which is the device's log: a
/// module that crashes at its import could not be told from any other fault else. Not for calls, whose SIGBUS is
/// handled (mapped_file.h). The GIL is held.
class CrashStacks {
 public:
  explicit CrashStacks(const PythonOptions& options) : on_(options.crash_fd < 0 && tell(true)) {}
  ~CrashStacks() {
    if (on_) tell(false);
  }
  CrashStacks(const CrashStacks&) = delete;
  CrashStacks& operator=(const CrashStacks&) = delete;

 private:
  static bool tell(bool on) {
    const PyRef switched = bootstrap_function("tell_crashes");
    const PyRef done = switched ? PyRef::steal(PyObject_CallOneArg(switched.get(), on ? Py_True : Py_False)) : PyRef();
    if (!done) PyErr_Clear();  // without them, then
    return static_cast<bool>(done);
  }

  const bool on_;
};

class InlineDomain final : public GilDomain {
 public:
  InlineDomain(InterpreterReport report, FunctionTable table, c10::Device device, const PythonOptions& options)
      : report_(std::move(report)), table_(std::move(table)), device_(device), options_(options), memory_(device) {
    set_loop_question(options.on_loop);
    tell("python_started", "executable=" + report_.executable + " prefix=" + report_.prefix +
                               " python=" + report_.python + " torch=" + report_.torch +
                               " operators=" + std::to_string(operators().size()));
  }
  /// No thread runs kernels any more. The interpreter stays, and refuses.
  ~InlineDomain() override {
    set_loop_question({});
    set_python_state(PythonState::kEnding);
  }
  InlineDomain(const InlineDomain&) = delete;
  InlineDomain& operator=(const InlineDomain&) = delete;

  std::string_view kind() const override { return "inline"; }
  const std::vector<PythonOperator>& operators() const override { return table_.operators(); }
  std::string why_not(std::string_view op) const override { return table_.why_not(op); }
  Status warm_up(int threads) override;
  void call(const PythonOperator& op, torch::jit::Stack& stack, std::vector<Undeclared>& undeclared,
            const StopSignal* stop) override;
  std::string describe() const override;

 private:
  Status call_function(const PythonOperator& op, torch::jit::Stack& stack, std::vector<Undeclared>& undeclared,
                       const StopSignal* stop);
  Status call_warm_up(const FunctionTable::WarmUp& warm_up);
  void tell(std::string_view event, const std::string& text) const {
    if (options_.log) options_.log(event, text);
  }

  const InterpreterReport report_;
  const FunctionTable table_;
  const c10::Device device_;
  const PythonOptions options_;
  const KnownMemory memory_;
  CallWatch watch_;
};

void InlineDomain::call(const PythonOperator& op, torch::jit::Stack& stack, std::vector<Undeclared>& undeclared,
                        const StopSignal* stop) {
  const GilScopedAcquire gil(GilSite::kCall);
  PythonCodeCudaStreamGuard stream(gil, device_);
  Status called = call_function(op, stack, undeclared, stop);
  Status restored = stream.restore();
  if (called && !restored) called = std::move(restored);
  if (!called) throw KernelFailure(std::move(called).error());
}

Status InlineDomain::call_function(const PythonOperator& op, torch::jit::Stack& stack,
                                   std::vector<Undeclared>& undeclared, const StopSignal* stop) {
  const OrdinaryTensors mode;
  c10::SmallVector<LentOut, 4> lent;
  {
    CallArguments arguments(op, table_.function(op), stack);
    CALLBOARD_TRY(arguments.make());
    CallWatch::Call watched(watch_, stop);
    const PyRef result = arguments.call();
    std::optional<Error> stopped = watched.end();
    std::optional<Error> raised;
    if (!result) raised = take_python_error("the Python kernel " + op.target);
    if (raised && stopped) {
      stopped->detail = "interrupted in the Python kernel " + op.target + "\n" + raised->detail;
      raised = std::move(stopped);
    }
    arguments.find_undeclared(undeclared);
    if (raised) return fail(std::move(*raised));
    if (!undeclared.empty()) return {};  // the caller's to tell
    lent = arguments.take_lent();
    // Behind the arguments, which then go: the stack has the room already.
    const auto count = static_cast<std::ptrdiff_t>(stack.size());
    Status pushed = push_results(result.get(), op.schema, stack);
    if (pushed) pushed = check_sharing({stack.begin() + count, stack.end()}, op.schema, {lent.data(), lent.size()});
    if (!pushed) {
      stack.erase(stack.begin() + count, stack.end());  // while the GIL is held
      Error error = std::move(pushed).error();
      error.message = "the result of the Python kernel " + op.target + ": " + error.message;
      return fail(std::move(error));
    }
    stack.erase(stack.begin(), stack.begin() + count);
  }
  try {
    own_results(stack, memory_, {lent.data(), lent.size()});
  } catch (const std::exception&) {  // no memory for a copy
    stack.clear();                   // while the GIL is held: numpy's memory needs it
    throw;
  }
  return {};
}

/// Once more where torch.compile fell over the number of threads that it found changed; the second time it does not.
Status InlineDomain::call_warm_up(const FunctionTable::WarmUp& warm_up) {
  for (const bool again : {false, true}) {
    at::set_num_threads(1);
    const PyRef device = PyRef::steal(THPDevice_New(device_));
    const PyRef result = device ? PyRef::steal(PyObject_CallOneArg(warm_up.callable, device.get())) : PyRef();
    if (result) return {};
    const bool asserts = PyErr_ExceptionMatches(PyExc_AssertionError) != 0;
    Error error = take_python_error("the warm-up " + warm_up.target);
    const bool threads_changed = asserts && error.message.find("num_threads") != std::string::npos;
    if (again || !threads_changed) return fail(std::move(error));
  }
  return {};
}

Status InlineDomain::warm_up(int threads) {
  if (table_.warm_ups().empty()) return {};
  const GilScopedAcquire gil(GilSite::kWarmUp);
  PythonCodeCudaStreamGuard stream(gil, device_);
  const OrdinaryTensors mode;
  const CrashStacks crashes(options_);
  Status warm;
  for (const FunctionTable::WarmUp& one : table_.warm_ups()) {
    if (options_.step) options_.step("running the warm-up " + one.target);
    const TimePoint start = Clock::now();
    warm = call_warm_up(one);
    if (!warm) break;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    tell("python_warmed_up", "function=" + one.target + " ms=" + std::to_string(took));
  }
  at::set_num_threads(std::max(threads, 1));
  return warm;
}

std::string InlineDomain::describe() const {
  auto operators = nlohmann::json::array();
  for (const PythonOperator& op : table_.operators()) operators.push_back({{"op", op.op}, {"target", op.target}});
  nlohmann::json text = {{"domain", kind()},         {"executable", report_.executable},
                         {"prefix", report_.prefix}, {"python", report_.python},
                         {"torch", report_.torch},   {"operators", std::move(operators)}};
  text["declared"] = table_.declared();
  text.update(nlohmann::json::parse(gil_board_json(inline_gil_board())));
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status watch_crashes(int fd) {
  if (fd < 0) return {};
  const GilScopedAcquire gil(GilSite::kStart);
  const PyRef watch = bootstrap_function("watch_crashes");
  const PyRef done = watch ? PyRef::steal(PyObject_CallFunction(watch.get(), "i", fd)) : PyRef();
  if (!done) return fail(take_python_error("watching for crashes"));
  return {};
}

}  // namespace

Result<std::unique_ptr<GilDomain>> make_inline_domain(const PythonOptions& options, c10::Device device) {
  if (options.board != nullptr) use_gil_board(*options.board);
  std::string told;
  const auto step = [&](const std::string& next) {
    if (options.step && next != told) options.step(told = next);
  };
  step("starting the interpreter and importing torch");
  CALLBOARD_ASSIGN(InterpreterReport report, start_interpreter(options.executable));
  CALLBOARD_TRY(watch_crashes(options.crash_fd));
  CALLBOARD_TRY(prepend_path(options.path));
  std::optional<Result<FunctionTable>> table;
  {
    const GilScopedAcquire gil(GilSite::kImport);
    const CrashStacks crashes(options);
    table = FunctionTable::make(options.kernels, step);
  }
  if (!*table) return fail(std::move(*table).error());
  return std::make_unique<InlineDomain>(std::move(report), std::move(**table), device, options);
}

}  // namespace callboard::kernels
