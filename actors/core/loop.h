// The loop of an actor: sockets, descriptors, timers and a bounded mailbox, one callback at a time.
//
// What belongs to a loop is touched in the loop's *turn* only. The turn is held by one thread at a time: as a rule by
// the one that called run(), which gives it up while it is parked in poll. In that moment another thread may take the
// turn for one task (run_soon) or wait in the loop's place (drive): the message goes out, or the answer comes in, on
// the thread that cares, and no other one has to be woken. A turn changes hands under one mutex, so everything that one
// holder did is visible to the next; that is also what ZeroMQ asks of sockets that several threads use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "messages/base/clock.h"
#include "messages/base/error.h"

namespace callboard::actors {

using TimerId = std::uint64_t;

/// Everything except post(), run_soon(), drive() and stop() is called in the loop's turn (checked), or before run().
/// Waits park in one poll; nothing spins.
class Loop {
 public:
  virtual ~Loop() = default;
  static std::unique_ptr<Loop> create();

  /// Runs until stop(). The calling thread becomes the loop's thread.
  virtual void run() = 0;
  /// Any thread, and signal handlers of the process's main thread. Idempotent.
  virtual void stop() = 0;
  /// Any thread: `task` runs in a turn of the loop, in order; an accepted one runs even if the loop stops before its
  /// turn. False if the loop has stopped or the mailbox (65,536) is full.
  virtual bool post(std::function<void()> task) = 0;
  /// Any thread: like post(), but where the loop is parked this thread runs what the mailbox holds, and then the task,
  /// now. The caller holds no lock that a callback of the loop takes.
  virtual bool run_soon(std::function<void()> task) = 0;
  /// Any thread: like post(), but where a thread has just driven the loop nobody is woken: it is likely to come back,
  /// or to run_soon(); else the loop's own thread takes its place after a millisecond or two.
  virtual bool post_lazily(std::function<void()> task) = 0;
  /// Any thread but the loop's: runs the loop's callbacks on this thread until `done` (asked in the turn; cheap, does
  /// not throw), `until` or stop(). What the loop has to do then may wait two milliseconds for its own thread. False at
  /// once where another thread drives already, or the loop does not run.
  virtual bool drive(const std::function<bool()>& done, TimePoint until) = 0;
  /// Somebody waits without driving: whoever drives gives the loop back to its own thread at once when it is done.
  virtual void waiter_came() = 0;
  virtual void waiter_went() = 0;

  virtual TimerId at(TimePoint when, std::function<void()> task) = 0;
  TimerId in(Duration wait, std::function<void()> task) { return at(after(Clock::now(), wait), std::move(task)); }
  virtual void cancel(TimerId timer) = 0;

  /// Calls `ready` while the descriptor is readable (level triggered).
  virtual void watch(int fd, std::function<void()> ready) = 0;
  /// Also while it is writable; only of a watched one.
  virtual void watch_for_writing(int fd, bool on) = 0;
  virtual void unwatch(int fd) = 0;
  /// Once, before the loop parks again or the turn ends: for writing out what has been gathered.
  virtual void before_park(std::function<void()> task) = 0;

  /// Whether this thread has the turn.
  virtual bool on_loop_thread() const = 0;

  /// For Hub and Line (transport.cpp): a ZeroMQ socket, polled together with the rest. `ready` must drain it.
  virtual void watch_socket(void* zmq_socket, std::function<void()> ready) = 0;
  virtual void unwatch_socket(void* zmq_socket) = 0;
  /// A ZeroMQ socket was used outside its `ready`: it may have taken the news that its descriptor would have told.
  virtual void socket_used() = 0;
};

}  // namespace callboard::actors
