// Starts the device's helper processes, on the main thread as every child must be (actors/core/process.h).
#pragma once

#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/runtime.h"
#include "messages/base/fd.h"

namespace callboard::actors {

/// Made on the main thread.
class HelperSpawner {
 public:
  /// `program`: empty is this one.
  explicit HelperSpawner(std::string program = {});
  ~HelperSpawner() { close(); }
  HelperSpawner(const HelperSpawner&) = delete;
  HelperSpawner& operator=(const HelperSpawner&) = delete;

  using Fds = std::vector<std::pair<int, int>>;
  /// `program` as a GIL domain's child, with these descriptors (ours, its number), on this thread: main's, unless it
  /// may outlive whoever started it (then it ends with its socket). kStartFailed, kResourceExhausted.
  static Result<std::unique_ptr<kernels::HelperProcess>> start(const std::string& program, const Fds& fds,
                                                               bool die_with_parent = true);
  /// start() with this program, on main. Any thread; waits until main serves, or until close() (kActorUnavailable).
  Result<std::unique_ptr<kernels::HelperProcess>> spawn(const Fds& fds);

  /// Main: starts what is asked for until one of `signals`, which are blocked, comes; then closes.
  void serve_until(const sigset_t& signals);
  /// Whoever waits or asks later gets kActorUnavailable.
  void close();

 private:
  struct Request;
  void serve_waiting();

  const std::string program_;
  const std::thread::id main_ = std::this_thread::get_id();
  UniqueFd wake_;  // an eventfd
  std::mutex mutex_;
  std::deque<std::shared_ptr<Request>> waiting_;  // guarded by mutex_
  bool closed_ = false;                           // guarded by mutex_
};

}  // namespace callboard::actors
