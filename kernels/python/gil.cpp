#include "kernels/python/gil.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "kernels/kernel_failure.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

std::atomic<PythonState> current_python_state{PythonState::kAbsent};
std::atomic<GilBoard*> chosen_board{nullptr};

/// Nobody asks while it is replaced (set_loop_question()), so no lock is needed; what was there before stays for good.
std::atomic<const std::function<bool()>*> loop_question{nullptr};

bool serves_the_loop() {
  const std::function<bool()>* ask = loop_question.load(std::memory_order_acquire);
  return ask != nullptr && (*ask)();
}

/// What Python knows of the calling thread.
class ThreadState {
 public:
  ThreadState() = default;
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  /// At the thread's end. Left behind where Python ends, too: then nobody waits for the GIL any more.
  ~ThreadState() {
    if (state_ == nullptr || python_state() != PythonState::kRunning) return;
    GilLedger& ledger = inline_gil_ledger();
    ledger.waits();
    const TimePoint asked = Clock::now();
    PyEval_RestoreThread(state_);
    const TimePoint since = Clock::now();
    ledger.took(GilSite::kThreadEnd, since - asked);
    PyThreadState_Clear(state_);
    PyThreadState_DeleteCurrent();
    ledger.gave_back(Clock::now() - since);
  }

  void take() {
    // A thread that Python itself has started, and the one that started Python, have one already, which is theirs.
    PyThreadState* known = state_ == nullptr ? PyGILState_GetThisThreadState() : state_;
    if (known == nullptr) known = state_ = PyThreadState_New(PyInterpreterState_Main());
    PyEval_RestoreThread(known);
  }

 private:
  PyThreadState* state_ = nullptr;  // that we made
};

thread_local ThreadState thread_state;

}  // namespace

GilBoard& inline_gil_board() {
  if (GilBoard* board = chosen_board.load(std::memory_order_acquire)) return *board;
  auto* own = new GilBoard;  // threads and tensors end after static objects, too
  GilBoard* none = nullptr;
  if (chosen_board.compare_exchange_strong(none, own)) return *own;
  delete own;
  return *none;
}

void use_gil_board(GilBoard& board) {
  GilBoard* none = nullptr;
  chosen_board.compare_exchange_strong(none, &board);
}

PythonState python_state() { return current_python_state.load(std::memory_order_acquire); }
void set_python_state(PythonState state) { current_python_state.store(state, std::memory_order_release); }

void set_loop_question(std::function<bool()> on_loop) {
  loop_question.store(on_loop ? new std::function<bool()>(std::move(on_loop)) : nullptr, std::memory_order_release);
}

GilScopedAcquire::GilScopedAcquire(GilSite site) {
  switch (python_state()) {
    case PythonState::kRunning:
      break;
    case PythonState::kAbsent:
      throw KernelFailure(Error(ErrorCode::kNotReady, "there is no Python interpreter in this process",
                                "name Python kernels in the cluster file (python.kernels), or give the device "
                                "python: inline"));
    case PythonState::kEnding:
      throw KernelFailure(Error(ErrorCode::kActorUnavailable, "the Python interpreter of this process is ending"));
  }
  GilLedger& ledger = inline_gil_ledger();
  if (serves_the_loop()) {
    ledger.refused_on_loop();
    throw KernelFailure(Error(ErrorCode::kInternal, "the GIL is never taken where the actor's loop is served"));
  }
  if (PyGILState_Check() != 0) {
    nested_ = true;
    return;
  }
  ledger.waits();
  const TimePoint asked = Clock::now();
  thread_state.take();
  since_ = Clock::now();
  ledger.took(site, since_ - asked);
}

GilScopedAcquire::~GilScopedAcquire() {
  if (nested_) return;
  inline_gil_ledger().gave_back(Clock::now() - since_);
  PyEval_SaveThread();
}

GilScopedRelease::GilScopedRelease()
    : saved_([] {
        // Python says yes where there is no interpreter.
        CALLBOARD_CHECK(python_state() != PythonState::kAbsent && PyGILState_Check() != 0,
                        "the GIL is given away by the thread that holds it");
        return PyEval_SaveThread();
      }()) {}

GilScopedRelease::~GilScopedRelease() { PyEval_RestoreThread(saved_); }

}  // namespace callboard::kernels
