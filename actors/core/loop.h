// The one thread of an actor: sockets, descriptors, timers and a bounded mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "messages/base/clock.h"
#include "messages/base/error.h"

namespace callboard::actors {

using TimerId = std::uint64_t;

/// Everything except post() and stop() is called on the loop's own thread (checked), or before run().
/// Waits park in one poll; nothing spins.
class Loop {
 public:
  virtual ~Loop() = default;
  static std::unique_ptr<Loop> create();

  /// Runs until stop(). The calling thread becomes the loop's thread.
  virtual void run() = 0;
  /// Any thread, and signal handlers of the process's main thread. Idempotent.
  virtual void stop() = 0;
  /// Any thread: `task` runs on the loop's thread, in order; an accepted one runs even if the loop stops before its
  /// turn. False if the loop has stopped or the mailbox (65,536) is full.
  virtual bool post(std::function<void()> task) = 0;

  virtual TimerId at(TimePoint when, std::function<void()> task) = 0;
  TimerId in(Duration wait, std::function<void()> task) { return at(after(Clock::now(), wait), std::move(task)); }
  virtual void cancel(TimerId timer) = 0;

  /// Calls `ready` while the descriptor is readable (level triggered).
  virtual void watch(int fd, std::function<void()> ready) = 0;
  virtual void unwatch(int fd) = 0;

  virtual bool on_loop_thread() const = 0;

  /// For Hub and Line (transport.cpp): a ZeroMQ socket, polled together with the rest. `ready` must drain it.
  virtual void watch_socket(void* zmq_socket, std::function<void()> ready) = 0;
  virtual void unwatch_socket(void* zmq_socket) = 0;
};

}  // namespace callboard::actors
