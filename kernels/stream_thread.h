// The thread and the bounded queue of a KernelStream, without LibTorch, so that ThreadSanitizer sees them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "kernels/host_event.h"
#include "messages/base/bounded_queue.h"
#include "messages/limits.h"

namespace callboard::kernels {

/// Runs what is posted, in order, on one thread. Any thread may post; a command that throws is reported and the next
/// one runs. Stopping refuses new commands and runs those already queued, so that whoever waits for one gets its
/// answer.
class StreamThread {
 public:
  using Work = std::function<void()>;

  struct Options {
    std::string name;  ///< of the thread; the system keeps the first 15 characters
    std::size_t capacity = limits::kStreamQueueMax;
    /// Called on the new thread; must call `serve` exactly once and may hold thread-wide guards around it.
    std::function<void(const std::function<void()>& serve)> around;
    std::function<void(std::string_view what)> on_exception;  ///< on the stream's thread
    /// On the stream's thread, when there is nothing to run: may wait until `has_work` in a way of its own, say in an
    /// event loop's place. False where it cannot now: then the thread waits for its queue.
    std::function<bool(const std::function<bool()>& has_work)> idle = {};
    std::function<void()> wake = {};  ///< any thread: makes `idle` ask `has_work` again
  };

  explicit StreamThread(Options options);
  ~StreamThread();
  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  /// Never blocks. On kFull and kClosed `work` is not taken.
  PushResult post(Work&& work);
  /// Records `event` when all that was posted before has run.
  PushResult fence(std::shared_ptr<HostEvent> event);
  /// Closes the queue, waits until it is drained, joins. Idempotent; never from the stream's own thread.
  void stop();

  std::size_t queued() const { return queue_.size(); }
  const std::string& name() const { return options_.name; }

 private:
  struct RunWork {
    Work work;
  };
  struct RecordFence {
    std::shared_ptr<HostEvent> event;
  };
  /// There is no stop command: closing the queue is what stops, and cannot fail because the queue is full.
  using Command = std::variant<RunWork, RecordFence>;

  void serve();
  void execute(Command& command) noexcept;

  void wake_if_idle();

  Options options_;
  BoundedQueue<Command> queue_;
  std::atomic<bool> idle_{false};  // the thread is inside options_.idle
  std::thread thread_;
};

}  // namespace callboard::kernels
