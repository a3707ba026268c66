// Threads that come back for the GIL while the interpreter ends.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

constexpr auto kStragglersWait = std::chrono::seconds(2);

std::atomic<bool> ending{false};
std::atomic<int> coming_back{0};               // threads between the end of their work and the GIL
std::atomic<std::thread::id> ending_thread{};  // runs the interpreter's end and may have the GIL
std::mutex mutex;                              // of came_back
// coming_back has fallen, and the interpreter ends. Never destroyed: daemon threads outlive static objects.
std::condition_variable& came_back = *new std::condition_variable;

/// Sequentially consistent with interpreter_ends(): either this sees that it waits, or it sees the number that is left.
void count_down() {
  --coming_back;
  if (!ending) return;
  std::lock_guard lock(mutex);
  came_back.notify_all();
}

/// With the GIL, before the interpreter ends. Daemon threads that ask for the GIL from now on stop; those that ask for
/// it already get it once more.
void interpreter_ends() {
  ending_thread = std::this_thread::get_id();
  ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  {
    std::unique_lock lock(mutex);
    came_back.wait_for(lock, kStragglersWait, [] { return coming_back == 0; });
  }
  PyEval_RestoreThread(state);
}

}  // namespace

bool gil_is_gone() { return ending && ending_thread.load() != std::this_thread::get_id(); }

bool ask_with_gil(bool (*question)()) {
  ++coming_back;
  if (gil_is_gone()) {
    count_down();
    return false;
  }
  bool answer = false;
  {
    const py::gil_scoped_acquire acquire;
    answer = question();
  }
  count_down();
  return answer;
}

GilRelease::~GilRelease() {
  ++coming_back;
  if (gil_is_gone()) {
    count_down();
    for (;;) ::pause();
  }
  PyEval_RestoreThread(state_);
  count_down();
}

void watch_interpreter_end() { py::module_::import("atexit").attr("register")(py::cpp_function(&interpreter_ends)); }

}  // namespace callboard::python
