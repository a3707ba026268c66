// Who may go: a bounded number at once, and whoever finds no room waits in line, first in, first out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "messages/base/clock.h"
#include "messages/base/error.h"

namespace callboard::actors {

/// Counts what is on its way and lines up the threads that wait for room. Any thread. Without a line, enter() and
/// leave() take no lock. Nothing of it is held while `attempt` or `wait` runs, so that they may run callbacks.
class Admission {
 public:
  explicit Admission(std::size_t places) : places_(places) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  /// Takes a place. False where none is free, or others wait in line for one.
  bool enter() { return waiting_.load() == 0 && take_place(); }
  /// Gives it back.
  void leave() {
    taken_.fetch_sub(1);
    room_made();
  }
  /// Something else may have room now (memory).
  void room_made() {
    if (waiting_.load() != 0 && attempting_ != this) wake_first();
  }
  std::size_t taken() const { return taken_.load(); }
  std::size_t places() const { return places_; }
  std::size_t waiting() const { return waiting_.load(); }

  struct Call {
    /// Called by the first in line, again after each change: the place is taken with take_place(), not with enter().
    /// Nothing: the call is over, however it ended. An error: what there is no room for; the call goes on waiting.
    std::function<std::optional<Error>()> attempt;
    std::optional<Error> want;  ///< what a first attempt found no room for
    TimePoint until = kNever;
    std::function<bool()> interrupted = {};  ///< about every 50 ms, on the waiting thread; true ends it as kCancelled
    /// How the first in line waits, at most until `until`; by default with `park`, which returns when there is a
    /// change. May return early.
    std::function<void(const std::function<bool()>& changed, const std::function<void(TimePoint)>& park,
                       TimePoint until)>
        wait = {};
    /// The first in line tries again after so long without a change, for room of which no word comes.
    std::optional<Duration> retry = {};
  };
  /// Waits in line. Success: an attempt was the last one. Else kCancelled (interrupted, or end()), or, at `until`, the
  /// error of what was full: its own code and words.
  Status wait_in_line(Call call);
  bool take_place();

  /// Ends every wait, and each later one, with `why`.
  void end(Error why);

 private:
  struct Waiter {
    std::condition_variable changed;
  };
  class Line;

  void wake_first();

  /// This thread makes an attempt: what it took for it and gives back is no news, or it would try again for ever.
  static inline thread_local const Admission* attempting_ = nullptr;

  const std::size_t places_;
  std::atomic<std::size_t> taken_{0};
  // Sequentially consistent with taken_: who gives a place back sees the waiter, or the waiter sees the place.
  std::atomic<std::size_t> waiting_{0};
  std::atomic<std::uint64_t> changes_{0};

  std::mutex mutex_;
  std::deque<Waiter*> line_;    // guarded by mutex_; bounded by the process's threads
  std::optional<Error> ended_;  // guarded by mutex_
  std::optional<Error> want_;   // guarded by mutex_: of the first in line
};

/// What a call gets that waited in line for nothing: `why` is wait_in_line()'s error. With a deadline it is
/// kDeadlineExceeded, with `why` as its cause.
Error late_submission(Error why, Duration waited, bool has_deadline);
/// What a call from a callback gets in place of a wait for `want`.
Error refused_in_callback(Error want);

}  // namespace callboard::actors
