#include "actors/core/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/base/check.h"
#include "messages/base/fd.h"
#include "messages/base/log.h"

namespace callboard::actors {
namespace {

constexpr std::size_t kMailboxMax = 65'536;

using Task = std::function<void()>;

/// A callback that throws is a fault of ours, but it must not take the actor with it.
void run_guarded(const Task& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    log::error("callback_threw", error.what());
  } catch (...) {
    log::error("callback_threw", "something that is not a std::exception");
  }
}

struct Watch {
  int fd = -1;
  void* socket = nullptr;  // of ZeroMQ, or null for a plain descriptor
  Task ready;
  bool active = true;       // false once unwatched: the callback may do that to itself or to another
  bool has_events = false;  // of a socket: asked before the wait
};

// zmq_poll() would do, but it polls twice for each wait and counts in milliseconds. A ZeroMQ socket's descriptor says
// "something changed" once (edge), so the socket itself is asked (ZMQ_EVENTS) before every wait.
class PollLoop final : public Loop {
 public:
  PollLoop() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CALLBOARD_CHECK(wake_.get() >= 0, "eventfd failed: no descriptor left for the loop");
  }

  void run() override;
  void stop() override;
  bool post(Task task) override;
  TimerId at(TimePoint when, Task task) override;
  void cancel(TimerId timer) override;
  void watch(int fd, Task ready) override;
  void unwatch(int fd) override;
  void watch_socket(void* zmq_socket, Task ready) override;
  void unwatch_socket(void* zmq_socket) override;
  bool on_loop_thread() const override { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  void check_thread() const {
    CALLBOARD_CHECK(thread_.load(std::memory_order_relaxed) == std::thread::id() || on_loop_thread(),
                    "only post() and stop() may be called from another thread than the loop's");
  }
  void wake() noexcept;
  void add(std::shared_ptr<Watch> watch);
  template <class Match>
  void remove(Match match);
  void run_mailbox();
  void run_timers();
  void wait();
  bool sockets_have_events();
  Duration time_to_next_timer() const;
  void dispatch();

  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::thread::id> thread_{};

  std::mutex mutex_;
  std::vector<Task> mailbox_;  // guarded by mutex_
  bool closed_ = false;        // guarded by mutex_
  std::vector<Task> running_;  // swapped with mailbox_, so that both keep their capacity

  TimerId next_timer_ = 1;
  std::map<std::pair<TimePoint, TimerId>, Task> timers_;
  std::unordered_map<TimerId, TimePoint> timer_times_;

  std::vector<std::shared_ptr<Watch>> watches_;
  std::vector<std::shared_ptr<Watch>> polled_;  // watches_ as of the last wait; polled_[i] belongs to poll_set_[i + 1]
  std::vector<pollfd> poll_set_;
  bool poll_set_stale_ = true;
};

void PollLoop::run() {
  thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  while (!stopping_.load(std::memory_order_acquire)) {
    run_timers();
    run_mailbox();
    if (stopping_.load(std::memory_order_acquire)) break;
    wait();
    dispatch();
  }
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  run_mailbox();  // what post() accepted is done
  thread_.store(std::thread::id(), std::memory_order_relaxed);
}

void PollLoop::stop() {
  stopping_.store(true, std::memory_order_release);
  wake();
}

void PollLoop::wake() noexcept {
  const int saved_errno = errno;  // may run in a signal handler
  const std::uint64_t one = 1;
  // The only possible failure is a counter that is full, and then the loop wakes anyway.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  errno = saved_errno;
}

bool PollLoop::post(Task task) {
  if (stopping_.load(std::memory_order_acquire)) return false;
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || mailbox_.size() >= kMailboxMax) return false;
    first = mailbox_.empty();
    mailbox_.push_back(std::move(task));
  }
  if (first) wake();
  return true;
}

void PollLoop::run_mailbox() {
  {
    std::lock_guard lock(mutex_);
    if (mailbox_.empty()) return;
    running_.swap(mailbox_);
  }
  for (const Task& task : running_) run_guarded(task);
  running_.clear();
}

TimerId PollLoop::at(TimePoint when, Task task) {
  check_thread();
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  return id;
}

void PollLoop::cancel(TimerId timer) {
  check_thread();
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

// Only timers that exist when it begins: one that sets itself again for "now" does not keep the sockets waiting.
void PollLoop::run_timers() {
  if (timers_.empty()) return;
  const TimePoint now = Clock::now();
  const TimerId newer = next_timer_;
  auto next = timers_.begin();
  while (next != timers_.end() && next->first.first <= now) {
    const std::pair<TimePoint, TimerId> key = next->first;
    if (key.second < newer) {
      const Task task = std::move(next->second);
      timers_.erase(next);
      timer_times_.erase(key.second);
      run_guarded(task);
    }
    next = timers_.upper_bound(key);
  }
}

void PollLoop::add(std::shared_ptr<Watch> watch) {
  check_thread();
  watches_.push_back(std::move(watch));
  poll_set_stale_ = true;
}

template <class Match>
void PollLoop::remove(Match match) {
  check_thread();
  std::erase_if(watches_, [&](const std::shared_ptr<Watch>& watch) {
    if (!match(*watch)) return false;
    watch->active = false;
    return true;
  });
  poll_set_stale_ = true;
}

void PollLoop::watch(int fd, Task ready) {
  unwatch(fd);
  add(std::make_shared<Watch>(Watch{fd, nullptr, std::move(ready)}));
}

void PollLoop::unwatch(int fd) {
  remove([fd](const Watch& watch) { return watch.socket == nullptr && watch.fd == fd; });
}

void PollLoop::watch_socket(void* zmq_socket, Task ready) {
  unwatch_socket(zmq_socket);
  int fd = -1;
  std::size_t size = sizeof fd;
  CALLBOARD_CHECK(zmq_getsockopt(zmq_socket, ZMQ_FD, &fd, &size) == 0, "not a ZeroMQ socket");
  add(std::make_shared<Watch>(Watch{fd, zmq_socket, std::move(ready)}));
}

void PollLoop::unwatch_socket(void* zmq_socket) {
  remove([zmq_socket](const Watch& watch) { return watch.socket == zmq_socket; });
}

bool PollLoop::sockets_have_events() {
  bool any = false;
  for (const auto& watch : polled_) {
    if (watch->socket == nullptr || !watch->active) continue;
    int events = 0;
    std::size_t size = sizeof events;
    watch->has_events = zmq_getsockopt(watch->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
    any = any || watch->has_events;
  }
  return any;
}

Duration PollLoop::time_to_next_timer() const {
  if (timers_.empty() || timers_.begin()->first.first == kNever) return Duration::max();
  const TimePoint next = timers_.begin()->first.first;
  const TimePoint now = Clock::now();
  return next <= now ? Duration::zero() : next - now;
}

void PollLoop::wait() {
  if (poll_set_stale_) {
    polled_ = watches_;
    poll_set_.assign(1, pollfd{wake_.get(), POLLIN, 0});
    for (const auto& watch : polled_) poll_set_.push_back({watch->fd, POLLIN, 0});
    poll_set_stale_ = false;
  }
  // With events at hand the descriptors are still asked, or a busy socket would starve them.
  const Duration left = sockets_have_events() ? Duration::zero() : time_to_next_timer();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{static_cast<time_t>(seconds.count()),
                         static_cast<long>(std::chrono::nanoseconds(left - seconds).count())};
  if (::ppoll(poll_set_.data(), poll_set_.size(), left == Duration::max() ? nullptr : &timeout, nullptr) < 0) {
    CALLBOARD_CHECK(errno == EINTR, "ppoll refused the loop's descriptors");
    for (pollfd& entry : poll_set_) entry.revents = 0;
  }
}

void PollLoop::dispatch() {
  if (poll_set_[0].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }
  for (std::size_t i = 0; i < polled_.size(); ++i) {
    const std::shared_ptr<Watch>& watch = polled_[i];
    const short events = poll_set_[i + 1].revents;
    const bool ready = events != 0 || std::exchange(watch->has_events, false);
    if (!ready || !watch->active) continue;
    if ((events & POLLNVAL) != 0) {
      log::error("closed_while_watched", "descriptor " + std::to_string(watch->fd) + " is no longer watched");
      unwatch(watch->fd);
      continue;
    }
    run_guarded(watch->ready);
  }
}

}  // namespace

std::unique_ptr<Loop> Loop::create() { return std::make_unique<PollLoop>(); }

}  // namespace callboard::actors
