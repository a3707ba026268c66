// Threads that come back for the GIL while the interpreter ends.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

constexpr auto kStragglersWait = std::chrono::seconds(2);
constexpr auto kLookAgain = std::chrono::milliseconds(1);

std::atomic<bool> ending{false};
std::atomic<int> coming_back{0};               // threads between the end of their work and the GIL
std::atomic<std::thread::id> ending_thread{};  // runs the interpreter's end and may have the GIL

/// With the GIL, before the interpreter ends. Daemon threads that ask for the GIL from now on stop; those that ask for
/// it already get it once more.
void interpreter_ends() {
  ending_thread = std::this_thread::get_id();
  ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  const auto until = std::chrono::steady_clock::now() + kStragglersWait;
  while (coming_back > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kLookAgain);  // tidy: allow (they come through the GIL, which tells nobody)
  }
  PyEval_RestoreThread(state);
}

}  // namespace

bool gil_is_gone() { return ending && ending_thread.load() != std::this_thread::get_id(); }

GilRelease::~GilRelease() {
  ++coming_back;
  if (gil_is_gone()) {
    --coming_back;
    for (;;) ::pause();
  }
  PyEval_RestoreThread(state_);
  --coming_back;
}

void watch_interpreter_end() { py::module_::import("atexit").attr("register")(py::cpp_function(&interpreter_ends)); }

}  // namespace callboard::python
