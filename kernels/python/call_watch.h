// Interrupts Python code that is to stop: a deadline that passed, a cancelled request.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/stop_signal.h"

namespace callboard::kernels {

/// Python raises the exception at the thread's next bytecode (PyThreadState_SetAsyncExc), so what waits or computes in
/// C is not reached. A thread of its own (python/watch), from the first call that may be stopped to the end of this; it
/// looks every 10 ms while there are calls and parks after a second without one. Its mutex is taken after the GIL,
/// never before it.
class CallWatch {
 public:
  CallWatch() = default;
  ~CallWatch();  ///< joins; the GIL is not held
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// One call, from its begin to its end, on the thread that runs it. Made and destroyed with the GIL held.
  class Call {
   public:
    /// `stop` may be nullptr.
    Call(CallWatch& watch, const StopSignal* stop);
    ~Call() { end(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// Takes an interruption back that has not been raised yet. The reason, if the call was interrupted.
    std::optional<Error> end();

   private:
    CallWatch* watch_;
  };

 private:
  void run();
  void interrupt(std::uint64_t call);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;                // all below guarded by mutex_
  const StopSignal* stop_ = nullptr;  // of the call under way
  unsigned long python_thread_ = 0;   // that runs it
  std::uint64_t calls_ = 0;           // so far; the number of the one under way
  std::optional<Error> reason_;       // why it was interrupted
  bool parked_ = false;
  bool ending_ = false;
};

}  // namespace callboard::kernels
