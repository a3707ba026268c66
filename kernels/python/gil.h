// The guards around Python code in this process. There is one interpreter and so one GIL; who takes it says where.
//
//   GIL-1  Nobody waits for anything while holding the GIL, and nobody takes it while holding a lock of ours.
//   GIL-2  No thread takes it while it serves the actor's loop: that is refused and counted (GilLedger::on_loop).
//   GIL-3  A thread that runs Python keeps one thread state for as long as it lives.
//   GIL-4  Whatever Python made dies inside the scope.
#pragma once

#include <functional>

#include <torch/csrc/python_headers.h>

#include "kernels/gil_ledger.h"
#include "messages/base/clock.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// Of the interpreter in this process; lives as long as the process.
GilBoard& inline_gil_board();
inline GilLedger& inline_gil_ledger() { return inline_gil_board().ledger; }
/// Before anything is counted: it is kept there, for good. A second board is ignored.
void use_gil_board(GilBoard& board);

/// Whether Python may be entered. `absent` and `ending` refuse.
enum class PythonState : std::uint8_t { kAbsent, kRunning, kEnding };
PythonState python_state();
/// The interpreter's; any thread. An ending interpreter is never finalized: threads may still be in it.
void set_python_state(PythonState state);
/// Asked before each acquisition: does this thread serve the actor's loop? Set before kernels run and taken away (an
/// empty function) when none runs any more.
void set_loop_question(std::function<bool()> on_loop);

/// Holds the GIL for a scope; may be nested. Any thread that does not serve the actor's loop. Waits for the GIL without
/// a deadline, since CPython offers none: what must not wait for foreign Python code runs in another process.
class GilScopedAcquire {
 public:
  /// Throws KernelFailure: kNotReady without an interpreter, kActorUnavailable while it ends, kInternal on the loop.
  explicit GilScopedAcquire(GilSite site);
  ~GilScopedAcquire();
  GilScopedAcquire(const GilScopedAcquire&) = delete;
  GilScopedAcquire& operator=(const GilScopedAcquire&) = delete;
  GilScopedAcquire(GilScopedAcquire&&) = delete;
  GilScopedAcquire& operator=(GilScopedAcquire&&) = delete;

 private:
  bool nested_ = false;
  TimePoint since_;
};

/// Gives the GIL away for a scope, for a wait in the midst of Python. The GIL must be held (checked: the process ends,
/// since whoever believes wrongly to hold it has damaged Python already).
class GilScopedRelease {
 public:
  GilScopedRelease();
  ~GilScopedRelease();
  GilScopedRelease(const GilScopedRelease&) = delete;
  GilScopedRelease& operator=(const GilScopedRelease&) = delete;
  GilScopedRelease(GilScopedRelease&&) = delete;
  GilScopedRelease& operator=(GilScopedRelease&&) = delete;

 private:
  PyThreadState* const saved_;
};

}  // namespace callboard::kernels
