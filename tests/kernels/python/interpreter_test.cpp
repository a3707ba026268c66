// Starting the interpreter. Each case has a process of its own, forked before anything of Python is there.
#include "kernels/python/interpreter.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "kernels/kernel_failure.h"
#include "kernels/python/gil.h"
#include "kernels/python/py_ref.h"
#include "tests/kernels/python/support/python_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {

/// What `body` returns in a child process; "signal 6" where it ended so.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string text;
    try {
      text = body();
    } catch (const std::exception& thrown) {
      text = std::string("threw ") + thrown.what();
    }
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : text;
}

std::string start(const std::string& executable) {
  const auto report = start_interpreter(executable);
  if (!report) return std::string(error_name(report.error().code)) + ": " + report.error().message;
  return "executable=" + report->executable + " prefix=" + report->prefix + " python=" + report->python +
         " torch=" + report->torch;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string evaluated(const char* expression) {
  const GilScopedAcquire gil(GilSite::kStart);
  const PyRef names = PyRef::steal(PyDict_New());
  PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins());
  const PyRef value = PyRef::steal(PyRun_String(expression, Py_eval_input, names.get(), names.get()));
  const PyRef text = value ? PyRef::steal(PyObject_Str(value.get())) : PyRef();
  return text ? text_of(text.get()) : "raised";
}

/// A folder that looks like a virtual environment of `version`, and is gone afterwards.
class FakeEnvironment {
 public:
  explicit FakeEnvironment(const std::string& version) {
    char name[] = "/tmp/cb-env-XXXXXX";
    if (::mkdtemp(name) == nullptr) throw std::runtime_error("no folder");
    folder_ = name;
    std::filesystem::create_directory(folder_ / "bin");
    std::ofstream(folder_ / "pyvenv.cfg") << "home = /usr/bin\nversion = " << version << "\n";
    std::filesystem::create_symlink("/bin/sh", folder_ / "bin/python");
  }
  ~FakeEnvironment() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string executable() const { return folder_ / "bin/python"; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("without an interpreter the guards say so: a typed error, and for a release the end of the process") {
  CHECK(in_child([] {
          try {
            const GilScopedAcquire gil(GilSite::kCall);
          } catch (const KernelFailure& failure) {
            return std::string(error_name(failure.error().code)) + " " + failure.error().message;
          }
          return std::string("taken");
        }) == "not_ready there is no Python interpreter in this process");
  CHECK(in_child([] {
          const GilScopedRelease release;
          return std::string("released");
        }) == "signal 6");
}

TEST_CASE("a release without the GIL ends the process, with an interpreter too") {
  CHECK(in_child([] {
          if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
          const GilScopedRelease release;
          return std::string("released");
        }) == "signal 6");
}

TEST_CASE("R23: the interpreter is the file's, whatever the environment and the working directory say") {
  const std::string told = in_child([] {
    ::setenv("PYTHONHOME", "/nonsense", 1);
    ::setenv("PYTHONPATH", "/nonsense", 1);
    ::setenv("VIRTUAL_ENV", "/nonsense", 1);
    if (::chdir("/") != 0) return std::string("no /");
    return start(CALLBOARD_TEST_PYTHON);
  });
  const std::string python = CALLBOARD_TEST_PYTHON;
  const std::string prefix = std::filesystem::path(python).parent_path().parent_path();
  CHECK(has(told, "executable=" + python + " "));
  CHECK(has(told, "prefix=" + prefix + " "));
  CHECK(has(told, "python=3."));
  CHECK(has(told, "torch="));
}

TEST_CASE("the interpreter is isolated: argv, paths, signals") {
  CHECK(in_child([] {
          if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
          return evaluated("__import__('sys').argv") + " " + evaluated("'' in __import__('sys').path") + " " +
                 evaluated("__import__('sys').flags.no_user_site") + " " +
                 evaluated("__import__('signal').getsignal(2) is __import__('signal').default_int_handler") + " " +
                 evaluated("'torch' in __import__('sys').modules");
        }) == "['callboard-device'] False 1 False True");
}

TEST_CASE("folders go in front of sys.path, in their order, once") {
  CHECK(in_child([] {
          if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
          if (!prepend_path({"/one", "/two"}) || !prepend_path({"/two", "/three"})) return std::string("refused");
          return evaluated("__import__('sys').path[:3]") + " " + evaluated("__import__('sys').path.count('/two')");
        }) == "['/two', '/three', '/one'] 1");
}

TEST_CASE("a Python that is not there, or of another version, is refused by both versions before anything starts") {
  CHECK(has(in_child([] { return start("/no/such/python"); }),
            "environment: the Python '/no/such/python' cannot be used"));
  CHECK(has(in_child([] { return start("python3"); }), "is not an absolute path"));
  const FakeEnvironment other("3.99.1");
  const std::string told = in_child([&] { return start(other.executable()); });
  CHECK(has(told, "is version 3.99.1, this program is linked with 3."));
  // The refused one stands in nobody's way.
  CHECK(has(in_child([&] { return start(other.executable()) + start(CALLBOARD_TEST_PYTHON); }), "executable="));
}

TEST_CASE("R23: an environment without torch, or with another version of it, is refused with both versions") {
  // A real environment's folders, but for its packages.
  const std::filesystem::path prefix = std::filesystem::path(CALLBOARD_TEST_PYTHON).parent_path().parent_path();
  const FakeEnvironment empty("3.11");
  std::filesystem::remove(empty.folder() / "bin/python");
  std::filesystem::copy_file(prefix / "pyvenv.cfg", empty.folder() / "pyvenv.cfg",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::create_symlink(std::filesystem::canonical(CALLBOARD_TEST_PYTHON), empty.folder() / "bin/python");
  const std::string none = in_child([&] { return start(empty.executable()); });
  CHECK(has(none, "environment: there is no torch in the Python '" + empty.executable() + "' (prefix " +
                      empty.folder().string() + "); this program is linked with torch "));
  const std::string minor = in_child([] {
    if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
    return evaluated("'%d.%d' % __import__('sys').version_info[:2]");
  });
  const std::filesystem::path packages =
      empty.folder() / ("lib/python" + minor + "/site-packages/torch-0.0.1.dist-info");
  std::filesystem::create_directories(packages);
  std::ofstream(packages / "METADATA") << "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n";
  const std::string other = in_child([&] { return start(empty.executable()); });
  CHECK(has(other, "has torch 0.0.1, this program is linked with torch "));
}

TEST_CASE("R21: a second interpreter in a process is refused, the same one is not") {
  const FakeEnvironment other("3.11");
  CHECK(has(in_child([&] {
              if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
              return start(other.executable());
            }),
            "unsupported: this process has the interpreter of"));
  CHECK(has(in_child([] {
              if (!start_interpreter(CALLBOARD_TEST_PYTHON)) return std::string("not started");
              return start(CALLBOARD_TEST_PYTHON);
            }),
            "executable="));
}
