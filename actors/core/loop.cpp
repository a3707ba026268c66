#include "actors/core/loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
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
/// A thread that drove the loop is likely to come back: so long nobody polls, and it finds the place free.
constexpr Duration kDriverMayReturn = std::chrono::milliseconds(1);
/// How long the loop's thread sleeps while another one drives before it looks again.
constexpr Duration kLookAgain = std::chrono::milliseconds(2);
/// For the loop's thread to leave its poll.
constexpr Duration kHandOverWait = std::chrono::milliseconds(100);

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
  bool active = true;  // false once unwatched: the callback may do that to itself or to another
  bool for_writing = false;
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
  bool run_soon(Task task) override;
  bool post_lazily(Task task) override;
  bool drive(const std::function<bool()>& done, TimePoint until) override;
  void waiter_came() override;
  void waiter_went() override { waiters_.fetch_sub(1); }
  TimerId at(TimePoint when, Task task) override;
  void cancel(TimerId timer) override;
  void watch(int fd, Task ready) override;
  void watch_for_writing(int fd, bool on) override;
  void unwatch(int fd) override;
  void before_park(Task task) override;
  void watch_socket(void* zmq_socket, Task ready) override;
  void unwatch_socket(void* zmq_socket) override;
  void socket_used() override { socket_used_ = true; }
  bool on_loop_thread() const override { return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  void check_thread() const {
    CALLBOARD_CHECK(!running_now_.load(std::memory_order_relaxed) || on_loop_thread(),
                    "only post(), run_soon(), drive() and stop() may be called outside the loop's turn");
  }
  bool put(Task task, bool& first);
  void wake() noexcept;
  void wake_poller();
  void call_host();
  void take_turn();
  void give_turn();
  void run_due();
  void park(TimePoint until);
  void let_guest_drive();
  bool enter_as_guest(TimePoint until);
  void leave_as_guest();
  void add(std::shared_ptr<Watch> watch);
  template <class Match>
  void remove(Match match);
  void run_mailbox();
  bool mailbox_empty();
  void run_timers();
  void run_before_park();
  void wait(TimePoint until);
  bool sockets_have_events();
  TimePoint next_timer() const { return timers_.empty() ? kNever : timers_.begin()->first.first; }
  void dispatch();

  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> running_now_{false};

  // -- the turn: whoever has it may touch everything below that has no other owner
  std::mutex turn_;
  std::atomic<std::thread::id> holder_{};  // of turn_
  std::atomic<bool> turn_wanted_{false};   // by who polls: it has something to do and goes first
  bool parked_ = false;                    // somebody polls, or nobody does for a moment; guarded by turn_
  TimePoint parked_until_ = kNever;        // guarded by turn_

  // -- who polls: the loop's thread or one guest; a mutex of its own, and who has it does not ask for the turn
  enum class Poller { kHost, kGuest, kNobody };
  std::mutex role_;
  std::condition_variable role_changed_;
  Poller poller_ = Poller::kNobody;          // guarded by role_
  TimePoint guest_left_ = TimePoint::min();  // guarded by role_
  bool host_wanted_ = false;                 // guarded by role_: something came while nobody polled
  std::atomic<bool> guest_present_{false};   // written under role_
  std::atomic<bool> nobody_polls_{false};    // written under role_
  std::uint64_t guests_ = 0;                 // guarded by role_: how many have come
  bool guest_stays_ = false;                 // guarded by role_: it tells the loop's thread when it leaves
  std::atomic<int> waiters_{0};

  std::mutex mutex_;
  std::vector<Task> mailbox_;  // guarded by mutex_
  bool lazy_ = false;          // guarded by mutex_: nobody was woken for what is in it
  bool closed_ = false;        // guarded by mutex_
  std::vector<Task> running_;  // swapped with mailbox_, so that both keep their capacity

  std::vector<Task> before_park_;
  std::vector<Task> parking_;  // swapped with before_park_
  bool socket_used_ = false;

  TimerId next_timer_ = 1;
  std::map<std::pair<TimePoint, TimerId>, Task> timers_;
  std::unordered_map<TimerId, TimePoint> timer_times_;

  std::vector<std::shared_ptr<Watch>> watches_;
  std::vector<std::shared_ptr<Watch>> polled_;  // watches_ as of the last wait; polled_[i] belongs to poll_set_[i + 1]
  std::vector<pollfd> poll_set_;
  bool poll_set_stale_ = true;
};

void PollLoop::take_turn() {
  // The mutex is not fair: many threads that run_soon() could keep who polls waiting.
  turn_wanted_.store(true, std::memory_order_relaxed);
  turn_.lock();
  turn_wanted_.store(false, std::memory_order_relaxed);
  holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  parked_ = false;
}

void PollLoop::give_turn() {
  holder_.store(std::thread::id(), std::memory_order_relaxed);
  turn_.unlock();
}

void PollLoop::run() {
  {
    std::lock_guard lock(role_);  // both at once, or a guest could slip in between
    running_now_.store(true, std::memory_order_relaxed);
    poller_ = Poller::kHost;
  }
  take_turn();
  while (!stopping_.load(std::memory_order_acquire)) {
    run_due();
    if (!stopping_.load(std::memory_order_acquire)) park(kNever);
    if (guest_present_.load(std::memory_order_acquire)) let_guest_drive();
  }
  give_turn();
  {
    // A guest that is still there sees `stopping_` and leaves.
    std::unique_lock lock(role_);
    poller_ = Poller::kNobody;
    role_changed_.notify_all();
    role_changed_.wait(lock, [this] { return !guest_present_.load(); });
  }
  take_turn();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  run_mailbox();  // what post() accepted is done
  run_before_park();
  give_turn();
  running_now_.store(false, std::memory_order_relaxed);
}

/// First half of a round, in the turn.
void PollLoop::run_due() {
  run_timers();
  run_mailbox();
  run_before_park();
}

/// Second half. It ends in the turn, too; in between, while the thread is parked, others may have had it.
void PollLoop::park(TimePoint until) {
  wait(until);
  dispatch();
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

bool PollLoop::put(Task task, bool& first) {
  if (stopping_.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(mutex_);
  if (closed_ || mailbox_.size() >= kMailboxMax) return false;
  first = mailbox_.empty() || lazy_;
  lazy_ = false;
  mailbox_.push_back(std::move(task));
  return true;
}

bool PollLoop::post(Task task) {
  bool first = false;
  if (!put(std::move(task), first)) return false;
  if (first && !on_loop_thread()) wake_poller();  // whoever has the turn looks again before it parks
  return true;
}

bool PollLoop::post_lazily(Task task) {
  bool first = false;
  if (!put(std::move(task), first)) return false;
  if (!first || on_loop_thread()) return true;
  if (!nobody_polls_.load()) {
    wake_poller();
    return true;
  }
  std::lock_guard lock(mutex_);
  lazy_ = !mailbox_.empty();  // the next post() wakes somebody for this one, too
  return true;
}

void PollLoop::wake_poller() {
  wake();
  call_host();
}

void PollLoop::call_host() {
  if (!nobody_polls_.load()) return;
  std::lock_guard lock(role_);
  host_wanted_ = true;
  role_changed_.notify_all();
}

void PollLoop::waiter_came() {
  waiters_.fetch_add(1);
  call_host();  // sequentially consistent: either it sees that nobody polls, or the guest that leaves sees the waiter
}

bool PollLoop::run_soon(Task task) {
  if (on_loop_thread() || !turn_.try_lock()) return post(std::move(task));
  holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const bool now =
      parked_ && !turn_wanted_.load(std::memory_order_relaxed) && !stopping_.load(std::memory_order_acquire);
  if (!now) {
    give_turn();
    return post(std::move(task));
  }
  run_mailbox();  // first come, first served
  run_guarded(task);
  run_before_park();
  // The poller has its timeout and its descriptors from before.
  const bool stale = poll_set_stale_ || std::exchange(socket_used_, false) || next_timer() < parked_until_ ||
                     !before_park_.empty() || !mailbox_empty();
  give_turn();
  if (stale) wake_poller();
  return true;
}

bool PollLoop::drive(const std::function<bool()>& done, TimePoint until) {
  if (on_loop_thread() || !enter_as_guest(until)) return false;
  take_turn();
  // Asked after either half: what it waits for comes with a descriptor, but with a timer or a post just as well.
  const auto over = [&] { return stopping_.load(std::memory_order_acquire) || done() || Clock::now() >= until; };
  while (!over()) {
    run_due();
    if (!over()) park(until);
  }
  run_before_park();
  parked_ = true;  // nobody polls: run_soon() works as if somebody did
  parked_until_ = std::min(next_timer(), after(Clock::now(), kDriverMayReturn));
  give_turn();
  leave_as_guest();
  return true;
}

bool PollLoop::enter_as_guest(TimePoint until) {
  std::unique_lock lock(role_);
  if (guest_present_.load() || stopping_.load(std::memory_order_acquire) || !running_now_.load()) return false;
  guest_present_.store(true, std::memory_order_release);
  if (poller_ == Poller::kHost) {
    wake();
    const TimePoint patience = std::min(until, after(Clock::now(), kHandOverWait));
    if (!role_changed_.wait_until(lock, patience, [this] { return poller_ == Poller::kNobody; })) {
      guest_present_.store(false, std::memory_order_release);
      role_changed_.notify_all();
      return false;
    }
  }
  poller_ = Poller::kGuest;
  ++guests_;
  nobody_polls_.store(false);
  return true;
}

void PollLoop::leave_as_guest() {
  std::lock_guard lock(role_);
  poller_ = Poller::kNobody;
  guest_left_ = Clock::now();
  nobody_polls_.store(true);
  guest_present_.store(false, std::memory_order_release);
  // What is left for the loop to do waits for its thread, if somebody waits for it.
  if (waiters_.load() > 0 || stopping_.load(std::memory_order_acquire) || !mailbox_empty()) host_wanted_ = true;
  if (host_wanted_ || guest_stays_) role_changed_.notify_all();
}

/// The loop's thread, in the turn, when a guest has come: steps aside until the guest has gone and does not come back.
void PollLoop::let_guest_drive() {
  parked_ = true;
  parked_until_ = std::min(next_timer(), after(Clock::now(), kDriverMayReturn));
  give_turn();
  {
    std::unique_lock lock(role_);
    poller_ = Poller::kNobody;
    nobody_polls_.store(!guest_present_.load());
    guest_left_ = Clock::now();
    host_wanted_ = false;
    role_changed_.notify_all();
    for (;;) {
      if (stopping_.load(std::memory_order_acquire) && !guest_present_.load()) break;
      const TimePoint now = Clock::now();
      if (guest_present_.load()) {
        const std::uint64_t guest = guests_;
        role_changed_.wait_until(lock, after(now, kLookAgain));
        // One that stays tells when it leaves, or its long wait would cost a wake-up here every two milliseconds. Those
        // that come and go need not: each would pay for a wake-up of this thread.
        guest_stays_ = guest_present_.load() && guests_ == guest;
        if (guest_stays_) role_changed_.wait(lock, [&] { return !guest_present_.load() || guests_ != guest; });
        guest_stays_ = false;
      } else if (host_wanted_ || now >= after(guest_left_, kDriverMayReturn)) {
        break;
      } else {
        role_changed_.wait_until(lock, after(guest_left_, kDriverMayReturn));
      }
    }
    poller_ = Poller::kHost;
    host_wanted_ = false;
    nobody_polls_.store(false);
  }
  take_turn();
}

void PollLoop::run_mailbox() {
  {
    std::lock_guard lock(mutex_);
    if (mailbox_.empty()) return;
    running_.swap(mailbox_);
    lazy_ = false;
  }
  for (const Task& task : running_) run_guarded(task);
  running_.clear();
}

bool PollLoop::mailbox_empty() {
  std::lock_guard lock(mutex_);
  return mailbox_.empty();
}

void PollLoop::before_park(Task task) {
  check_thread();
  before_park_.push_back(std::move(task));
}

void PollLoop::run_before_park() {
  if (before_park_.empty()) return;
  parking_.swap(before_park_);
  for (const Task& task : parking_) run_guarded(task);
  parking_.clear();
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

void PollLoop::watch_for_writing(int fd, bool on) {
  check_thread();
  for (const auto& watch : watches_) {
    if (watch->socket != nullptr || watch->fd != fd || watch->for_writing == on) continue;
    watch->for_writing = on;
    poll_set_stale_ = true;
  }
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

void PollLoop::wait(TimePoint until) {
  if (poll_set_stale_) {
    polled_ = watches_;
    poll_set_.assign(1, pollfd{wake_.get(), POLLIN, 0});
    for (const auto& watch : polled_) {
      const short events = watch->for_writing ? POLLIN | POLLOUT : POLLIN;
      poll_set_.push_back({watch->fd, events, 0});
    }
    poll_set_stale_ = false;
  }
  socket_used_ = false;
  // With events at hand the descriptors are still asked, or a busy socket would starve them.
  const bool more = sockets_have_events() || !before_park_.empty() || !mailbox_empty();
  parked_until_ = std::min(next_timer(), until);
  Duration left = Duration::max();
  if (more) {
    left = Duration::zero();
  } else if (parked_until_ != kNever) {
    const TimePoint now = Clock::now();
    left = parked_until_ <= now ? Duration::zero() : parked_until_ - now;
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{static_cast<time_t>(seconds.count()),
                         static_cast<long>(std::chrono::nanoseconds(left - seconds).count())};
  parked_ = true;
  give_turn();
  const int got = ::ppoll(poll_set_.data(), poll_set_.size(), left == Duration::max() ? nullptr : &timeout, nullptr);
  const int number = errno;
  take_turn();
  if (got < 0) {
    CALLBOARD_CHECK(number == EINTR, "ppoll refused the loop's descriptors");
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
