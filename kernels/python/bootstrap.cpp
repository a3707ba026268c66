#include "kernels/python/bootstrap.h"

namespace callboard::kernels {

namespace {

constexpr const char* kSource = R"py(
import importlib.metadata
import inspect
import traceback

_CHAIN_MAX = 100


def explain(error):
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    ours = kind.__module__ == "callboard.errors"
    try:
        text = error.message if ours else str(error)
    except BaseException:
        text = "(its text could not be made)"
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = ""
    left, seen = [error], set()
    while left and len(seen) < _CHAIN_MAX:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
        one.__traceback__ = None
    if isinstance(error, MemoryError) or name == "torch.OutOfMemoryError" or "can't allocate memory" in text:
        return name, text, trace, "memory", ""
    if ours:
        return name, text, trace, error.name, error.hint
    return name, text, trace, "", ""


class Stopped(BaseException):
    """The request was cancelled, or its deadline passed."""


def watch_crashes(fd):
    import faulthandler
    import signal

    faulthandler.enable(file=fd, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=True, chain=False)


def tell_crashes(on):
    import faulthandler

    if on:
        faulthandler.enable(file=2, all_threads=True)
    else:
        faulthandler.disable()


def torch_version():
    return importlib.metadata.version("torch")


def accepts(function, positional, keywords):
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # of a function in C, which does not tell
    signature.bind(*[None] * positional, **dict.fromkeys(keywords))


def declared(module):
    found = []
    for value in list(vars(module).values()):
        kernel = getattr(value, "__dict__", {}).get("__callboard_kernel__")
        if kernel is not None:
            found.append((str(kernel.op), str(kernel.target)))
    return found
)py";

}  // namespace

PyRef bootstrap_function(const char* name) {
  static PyObject* functions = nullptr;  // for good; guarded by the GIL
  if (functions == nullptr) {
    PyRef made = PyRef::steal(PyDict_New());
    if (!made || PyDict_SetItemString(made.get(), "__builtins__", PyEval_GetBuiltins()) != 0) return {};
    const PyRef name_text = PyRef::steal(PyUnicode_FromString("callboard-device"));
    if (!name_text || PyDict_SetItemString(made.get(), "__name__", name_text.get()) != 0) return {};
    const PyRef ran = PyRef::steal(PyRun_String(kSource, Py_file_input, made.get(), made.get()));
    if (!ran) return {};
    functions = made.release();
  }
  PyObject* function = PyDict_GetItemString(functions, name);
  if (function == nullptr) PyErr_Format(PyExc_KeyError, "%s", name);
  return PyRef::share(function);
}

}  // namespace callboard::kernels
