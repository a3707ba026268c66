#include "kernels/python/interpreter.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/python/bootstrap.h"
#include "kernels/python/gil.h"
#include "kernels/python/py_ref.h"
#include "kernels/python/python_error.h"

namespace callboard::kernels {

namespace {

constexpr std::string_view kLinkedMinor = CALLBOARD_PYTHON_MINOR;   // "3.11"
constexpr std::string_view kLinkedTorch = CALLBOARD_TORCH_VERSION;  // "2.11.0+cu130"
constexpr const char* kBuiltWith = CALLBOARD_PYTHON_EXECUTABLE;     // of the environment with that torch
constexpr const char* kKeyHint = "python.executable in the cluster file says which";

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string minor_of(std::string_view version) {
  const std::size_t first = version.find('.');
  const std::size_t second = first == std::string_view::npos ? first : version.find('.', first + 1);
  return std::string(version.substr(0, second));
}

std::string trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return std::string(text);
}

/// "3.11.2" of a virtual environment's pyvenv.cfg, beside its bin folder.
std::optional<std::string> version_of_environment(const std::string& executable) {
  std::ifstream file(parent_of(parent_of(executable)) + "/pyvenv.cfg");
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = trimmed(std::string_view(line).substr(0, equals));
    if (key == "version" || key == "version_info") return trimmed(std::string_view(line).substr(equals + 1));
  }
  return std::nullopt;
}

/// "3.11" of a file that is named python3.11, links followed.
std::optional<std::string> version_of_name(const std::string& executable) {
  char* real = ::realpath(executable.c_str(), nullptr);
  if (real == nullptr) return std::nullopt;
  const std::string path(real);
  std::free(real);
  const std::string name = path.substr(path.rfind('/') + 1);
  constexpr std::string_view kStem = "python";
  if (!name.starts_with(kStem) || name.find('.') == std::string::npos) return std::nullopt;
  return name.substr(kStem.size());
}

/// Before anything is started: a Python of another version would find another version's standard library.
Status check_executable(const std::string& executable) {
  if (executable.empty() || executable.front() != '/') {
    return fail(ErrorCode::kEnvironment, "the Python '" + executable + "' is not an absolute path", kKeyHint);
  }
  if (::access(executable.c_str(), X_OK) != 0) {
    return fail(ErrorCode::kEnvironment,
                "the Python '" + executable + "' cannot be used: " + std::string(std::strerror(errno)), kKeyHint);
  }
  std::optional<std::string> version = version_of_environment(executable);
  if (!version) version = version_of_name(executable);
  if (!version || minor_of(*version) == kLinkedMinor) return {};  // unknown: the standard library will not be found
  return fail(ErrorCode::kEnvironment,
              "the Python '" + executable + "' is version " + *version + ", this program is linked with " +
                  std::string(kLinkedMinor),
              "make a virtual environment with Python " + std::string(kLinkedMinor) + "; " + kKeyHint);
}

std::string text_of_status(const PyStatus& status) {
  std::string text = status.func == nullptr ? "" : std::string(status.func) + ": ";
  return text + (status.err_msg == nullptr ? "it ended with " + std::to_string(status.exitcode) : status.err_msg);
}

Status initialize(const std::string& executable) {
  const auto failed = [&](const PyStatus& status) {
    return fail(ErrorCode::kEnvironment,
                "the interpreter of '" + executable + "' does not start: " + text_of_status(status), kKeyHint);
  };
  PyPreConfig before;
  PyPreConfig_InitIsolatedConfig(&before);
  before.utf8_mode = 1;  // whatever the locale says: paths and logs are UTF-8
  if (const PyStatus status = Py_PreInitialize(&before); PyStatus_Exception(status) != 0) return failed(status);

  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  config.buffered_stdio = 0;
  char name[] = "callboard-device";
  char* arguments[] = {name};
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, executable.c_str());
  if (PyStatus_Exception(status) == 0) status = PyConfig_SetBytesArgv(&config, 1, arguments);
  if (PyStatus_Exception(status) == 0) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status) != 0) return failed(status);
  set_python_state(PythonState::kRunning);
  PyEval_SaveThread();  // every later use takes the GIL through a guard
  return {};
}

std::string system_text(const char* name) {
  PyObject* value = PySys_GetObject(name);  // borrowed
  return value == nullptr ? std::string() : text_of(value);
}

/// The version is compared before the import: two versions of LibTorch's libraries in one process do not end well.
Status check_torch(const InterpreterReport& report) {
  const std::string linked = "this program is linked with torch " + std::string(kLinkedTorch);
  const std::string hint = "install torch==" + std::string(kLinkedTorch) + " into it; " + kKeyHint;
  const PyRef ask = bootstrap_function("torch_version");
  const PyRef version = ask ? PyRef::steal(PyObject_CallNoArgs(ask.get())) : PyRef();
  if (!version) {
    Error error = take_python_error("looking for torch");
    return fail(Error(ErrorCode::kEnvironment,
                      "there is no torch in the Python '" + report.executable + "' (prefix " + report.prefix + "); " +
                          linked + " (" + error.message + ")",
                      hint));
  }
  const std::string found = text_of(version.get());
  if (found == kLinkedTorch) return {};
  return fail(ErrorCode::kEnvironment, "the Python '" + report.executable + "' has torch " + found + ", " + linked,
              hint);
}

Result<InterpreterReport> look_around() {
  const GilScopedAcquire gil(GilSite::kStart);
  InterpreterReport report;
  report.executable = system_text("executable");
  report.prefix = system_text("prefix");
  const std::string version = Py_GetVersion();  // "3.11.2 (main, …"
  report.python = version.substr(0, version.find(' '));
  CALLBOARD_TRY(check_torch(report));
  const PyRef torch = PyRef::steal(PyImport_ImportModule("torch"));
  if (!torch) {
    Error error = take_python_error("importing torch from " + report.prefix);
    error.code = ErrorCode::kEnvironment;
    error.hint = kKeyHint;
    return fail(std::move(error));
  }
  const PyRef version_text = PyRef::steal(PyObject_GetAttrString(torch.get(), "__version__"));
  if (!version_text) return fail(take_python_error("asking torch for its version"));
  report.torch = text_of(version_text.get());  // with the build's part, which a package's version may lack
  return report;
}

Result<InterpreterReport> start_once(const std::string& executable) {
  CALLBOARD_TRY(check_executable(executable));
  CALLBOARD_TRY(initialize(executable));
  return look_around();
}

}  // namespace

Result<InterpreterReport> start_interpreter(const std::string& executable) {
  static std::string started;  // the main thread's, like the rest of this
  static std::optional<Result<InterpreterReport>> answer;
  const std::string wanted = executable.empty() ? kBuiltWith : executable;
  if (answer && (*answer || python_state() != PythonState::kAbsent)) {
    if (wanted == started) {
      if (*answer) set_python_state(PythonState::kRunning);
      return *answer;
    }
    return fail(ErrorCode::kUnsupported,
                "this process has the interpreter of '" + started + "'; a second one, of '" + wanted +
                    "', cannot be started in it",
                "torch can be imported by one interpreter of a process; use another device");
  }
  started = wanted;
  answer = start_once(wanted);
  return *answer;
}

Status prepend_path(const std::vector<std::string>& folders) {
  const GilScopedAcquire gil(GilSite::kStart);
  PyObject* path = PySys_GetObject("path");  // borrowed
  if (path == nullptr || PyList_Check(path) == 0) return fail(ErrorCode::kPythonFailed, "sys.path is no list");
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    const PyRef text = PyRef::steal(PyUnicode_DecodeFSDefault(folder->c_str()));
    const Py_ssize_t known = text ? PySequence_Index(path, text.get()) : -1;
    PyErr_Clear();  // it is not there: what -1 says
    const bool moved = text && (known < 0 || PySequence_DelItem(path, known) == 0);
    if (!moved || PyList_Insert(path, 0, text.get()) != 0) {
      return fail(take_python_error("putting '" + *folder + "' on sys.path"));
    }
  }
  return {};
}

}  // namespace callboard::kernels
