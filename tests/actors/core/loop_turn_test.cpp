// A loop's turn on threads that are not its own: tasks that run at once, and drivers.
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/core/loop.h"
#include "messages/base/fd.h"
#include "tests/actors/core/station.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::milliseconds;
using test::Signal;

/// Runs `task` on this thread in the loop's turn. The loop is parked soon after its last task, but nobody tells when.
bool run_here(Loop& loop, const std::function<void()>& task) {
  const TimePoint deadline = after(Clock::now(), test::kPatience);
  const auto self = std::this_thread::get_id();
  while (Clock::now() < deadline) {
    auto ran = std::make_shared<std::promise<bool>>();
    auto here = ran->get_future();
    const bool accepted = loop.run_soon([self, &task, ran] {
      const bool mine = std::this_thread::get_id() == self;
      if (mine) task();
      ran->set_value(mine);
    });
    if (!accepted || here.get()) return accepted;
  }
  return false;
}

/// A thread that drives the loop until it is told to end.
class Driver {
 public:
  explicit Driver(Loop& loop) : loop_(loop), thread_([this] { drive(); }) { driving_.comes(); }
  ~Driver() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    loop_.post([this] { end_ = true; });
    thread_.join();
  }
  bool result() const { return result_; }

 private:
  void drive() {
    bool told = false;
    const auto done = [&] {
      if (!std::exchange(told, true)) driving_.set();
      return end_;
    };
    while (!(result_ = loop_.drive(done, kNever)) && !told) {  // the host was not there yet
    }
  }
  Loop& loop_;
  Signal driving_;
  bool end_ = false;  // in the loop's turn
  bool result_ = false;
  std::thread thread_;
};

UniqueFd event_of(unsigned count) { return UniqueFd(::eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK)); }

void ring(const UniqueFd& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof one);
}

TEST_CASE("a parked loop's turn is taken by the thread that has a task for it") {
  test::Station station;
  bool has_turn = false;
  REQUIRE(run_here(station.loop(), [&] { has_turn = station.loop().on_loop_thread(); }));
  CHECK(has_turn);
  CHECK_FALSE(station.loop().on_loop_thread());
}

TEST_CASE("a busy loop gets the task by post, in the order in which they came") {
  test::Station station;
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  const auto note = [&](int number) {
    order.push_back(number);
    threads.push_back(std::this_thread::get_id());
  };
  {
    test::Busy busy(station.loop());
    REQUIRE(station.loop().post([&] { note(1); }));
    REQUIRE(station.loop().run_soon([&] { note(2); }));
    REQUIRE(station.loop().post([&] { note(3); }));
    REQUIRE(station.loop().run_soon([&] { note(4); }));
  }
  station.call([] {});
  CHECK(order == std::vector<int>{1, 2, 3, 4});
  CHECK(std::count(threads.begin(), threads.end(), std::this_thread::get_id()) == 0);
}

TEST_CASE("a task never overtakes one that this thread posted before") {
  test::Station station;
  int last = 0;
  int wrong = 0;
  for (int i = 1; i <= 2'000; ++i) {
    const auto step = [&, i] {
      if (last != i - 1) ++wrong;
      last = i;
    };
    REQUIRE((i % 3 == 0 ? station.loop().post(step) : station.loop().run_soon(step)));
  }
  CHECK(station.call([&] { return last; }) == 2'000);
  CHECK(wrong == 0);
}

TEST_CASE("what a task on another thread leaves to a parked loop is done: timers, descriptors, posts") {
  test::Station station;
  Loop& loop = station.loop();
  Signal came;
  UniqueFd event = event_of(1);
  int pair[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const UniqueFd writable(pair[0]);
  const UniqueFd other(pair[1]);
  SECTION("a timer that is earlier than what it waits for") {
    station.call([&] { loop.in(std::chrono::hours(1), [] {}); });
    REQUIRE(run_here(loop, [&] { loop.in(milliseconds(1), [&] { came.set(); }); }));
    CHECK(came.comes());
  }
  SECTION("a descriptor that is readable already") {
    REQUIRE(run_here(loop, [&] {
      loop.watch(event.get(), [&] {
        loop.unwatch(event.get());
        came.set();
      });
    }));
    CHECK(came.comes());
  }
  SECTION("a watched descriptor that is writable already") {
    station.call([&] {
      loop.watch(writable.get(), [&] {
        loop.unwatch(writable.get());
        came.set();
      });
    });
    REQUIRE(run_here(loop, [&] { loop.watch_for_writing(writable.get(), true); }));
    CHECK(came.comes());
  }
  SECTION("a post, which does not run inside of it") {
    bool inside = false;
    bool nested = false;
    REQUIRE(run_here(loop, [&] {
      inside = true;
      loop.post([&] {
        nested = inside;
        came.set();
      });
      inside = false;
    }));
    CHECK(came.comes());
    CHECK_FALSE(nested);
  }
  SECTION("what is to be done before it parks, asked for by what was done before it parked") {
    REQUIRE(run_here(loop, [&] { loop.before_park([&] { loop.before_park([&] { came.set(); }); }); }));
    CHECK(came.comes());
  }
}

TEST_CASE("a descriptor that a task on another thread unwatches and closes is not heard of again") {
  test::Station station;
  Loop& loop = station.loop();
  int calls = 0;
  for (int i = 0; i < 200; ++i) {
    UniqueFd event = event_of(0);
    station.call([&] { loop.watch(event.get(), [&] { ++calls; }); });
    REQUIRE(run_here(loop, [&] {
      ring(event);
      loop.unwatch(event.get());
      event.reset();
    }));
  }
  CHECK(station.call([&] { return calls; }) == 0);
}

TEST_CASE("what a task on another thread throws stays in the loop, which goes on") {
  test::Station station;
  bool thrown = false;
  REQUIRE(run_here(station.loop(), [&] { station.loop().post([&] { thrown = true; }); }));
  REQUIRE(station.loop().run_soon([] { throw std::runtime_error("on purpose"); }));
  CHECK(station.call([&] { return thrown; }));
  CHECK(run_here(station.loop(), [] {}));
}

TEST_CASE("a loop that has not begun keeps the task, one that has stopped refuses it") {
  auto loop = Loop::create();
  int ran = 0;
  REQUIRE(loop->run_soon([&] {
    ++ran;
    loop->stop();
  }));
  CHECK(ran == 0);
  CHECK_FALSE(loop->drive([] { return false; }, kNever));
  loop->run();
  CHECK(ran == 1);
  CHECK_FALSE(loop->run_soon([&] { ++ran; }));
  CHECK_FALSE(loop->drive([] { return false; }, kNever));
  CHECK(ran == 1);
}

TEST_CASE("what is to be done before the loop parks is done by who has the turn") {
  test::Station station;
  std::thread::id thread;
  REQUIRE(run_here(station.loop(), [&] { station.loop().before_park([&] { thread = std::this_thread::get_id(); }); }));
  CHECK(thread == std::this_thread::get_id());
}

TEST_CASE("who drives the loop runs its callbacks until what it waits for has come") {
  test::Station station;
  Loop& loop = station.loop();
  UniqueFd event = event_of(0);
  std::thread::id by;
  bool seen = false;
  station.call([&] {
    loop.watch(event.get(), [&] {
      loop.unwatch(event.get());
      by = std::this_thread::get_id();
      seen = true;
    });
  });
  Signal driving;
  std::thread writer([&] {
    driving.comes();
    ring(event);
  });
  bool told = false;
  const auto done = [&] {
    if (!std::exchange(told, true)) driving.set();
    return seen;
  };
  const TimePoint deadline = after(Clock::now(), test::kPatience);
  while (!loop.drive(done, deadline) && Clock::now() < deadline) {
  }
  writer.join();
  CHECK(seen);
  CHECK(by == std::this_thread::get_id());
}

TEST_CASE("who drives hears at once of what a timer or a post brings, not only of descriptors") {
  test::Station station;
  const bool by_timer = GENERATE(true, false);
  const TimePoint until = after(Clock::now(), test::kPatience);
  bool asked = false;
  bool answered = false;
  const auto answer = [&] { answered = true; };
  const auto done = [&] {
    if (std::exchange(asked, true)) return answered;
    if (by_timer) station.loop().in(milliseconds(1), answer);
    if (!by_timer) station.loop().post(answer);
    return false;
  };
  while (!station.loop().drive(done, until) && Clock::now() < until) {
  }
  CHECK(answered);
  CHECK(Clock::now() < until);
}

TEST_CASE("tasks and timers of a loop that is driven run on the driver's thread") {
  test::Station station;
  Loop& loop = station.loop();
  Driver driver(loop);
  const auto posted_by = station.call([] { return std::this_thread::get_id(); });
  std::thread::id timer_by;
  Signal timer;
  station.call([&] {
    loop.in(milliseconds(1), [&] {
      timer_by = std::this_thread::get_id();
      timer.set();
    });
  });
  REQUIRE(timer.comes());
  CHECK(timer_by == posted_by);
  // The turn is no place to wait.
  CHECK_FALSE(station.call([&] { return loop.drive([] { return true; }, kNever); }));
  driver.end();
  CHECK(driver.result());
}

TEST_CASE("a driver gives up at its time") {
  test::Station station;
  const TimePoint until = after(Clock::now(), milliseconds(20));
  while (!station.loop().drive([] { return false; }, until) && Clock::now() < until) {
  }
  CHECK(Clock::now() >= until);
  station.call([] {});
}

TEST_CASE("there is one driver at a time, and none that waits for ever for a busy loop") {
  test::Station station;
  {
    Driver driver(station.loop());
    CHECK_FALSE(station.loop().drive([] { return true; }, kNever));
  }
  test::Busy busy(station.loop());
  CHECK_FALSE(station.loop().drive([] { return true; }, after(Clock::now(), milliseconds(5))));
  CHECK_FALSE(station.loop().drive([] { return true; }, kNever));
  busy.release();
  Signal posted;
  REQUIRE(station.loop().post([&] { posted.set(); }));
  CHECK(posted.comes());
}

TEST_CASE("the loop's own thread goes on when the driver has gone") {
  test::Station station;
  Loop& loop = station.loop();
  const bool long_drive = GENERATE(false, true);
  UniqueFd event = event_of(0);
  Signal timer;
  Signal ready;
  bool set = false;
  const TimePoint patience = after(Clock::now(), test::kPatience);
  const auto done = [&] {
    if (std::exchange(set, true)) return !long_drive;
    loop.in(long_drive ? milliseconds(25) : milliseconds(3), [&] { timer.set(); });
    loop.watch(event.get(), [&] {
      loop.unwatch(event.get());
      ready.set();
    });
    loop.post([] {});  // so that it comes back here at once
    return false;
  };
  while (!set && Clock::now() < patience) {
    loop.drive(done, long_drive ? after(Clock::now(), milliseconds(20)) : patience);
  }
  REQUIRE(set);
  ring(event);
  CHECK(ready.comes());
  CHECK(timer.comes());
  const auto self = std::this_thread::get_id();
  CHECK(station.call([] { return std::this_thread::get_id(); }) != self);
}

TEST_CASE("a loop that is stopped while it is driven lets the driver go and does what it accepted") {
  auto loop = Loop::create();
  std::thread host([&] { loop->run(); });
  Driver driver(*loop);
  int ran = 0;
  SECTION("from outside") {
    REQUIRE(loop->post([&] { ++ran; }));
    loop->stop();
  }
  SECTION("by a callback on the driver's thread") {
    REQUIRE(loop->post([&] {
      loop->post([&] { ++ran; });
      loop->stop();
    }));
  }
  host.join();
  driver.end();
  CHECK(driver.result());
  CHECK(ran == 1);
}

TEST_CASE("a driver may come while the loop begins") {
  for (int i = 0; i < 100; ++i) {
    auto loop = Loop::create();
    bool ran = false;
    loop->post([&] { ran = true; });
    std::thread host([&] { loop->run(); });
    const TimePoint deadline = after(Clock::now(), test::kPatience);
    while (!loop->drive([&] { return ran; }, deadline) && Clock::now() < deadline) {
    }
    loop->stop();
    host.join();
    REQUIRE(ran);
  }
}

/// One of several threads that use a loop in all ways at once. Each question is answered in the loop's turn.
struct Asker {
  Loop& loop;
  std::uint64_t& counted;  // in the loop's turn; ThreadSanitizer says if it is not
  int number = 0;
  int refused = 0;
  int unanswered = 0;

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) ask((i + number) % 5);
  }
  struct Answer {
    bool given = false;  // in the loop's turn
    std::binary_semaphore told{0};
  };
  void ask(int way) {
    const auto shared = std::make_shared<Answer>();
    const auto answer = [this, shared] {
      ++counted;
      shared->given = true;
      shared->told.release();
    };
    bool accepted = false;
    if (way == 0) accepted = loop.post(answer);
    if (way == 1) accepted = loop.run_soon(answer);
    if (way == 2) accepted = loop.run_soon([this, answer] { loop.before_park(answer); });
    if (way == 3) accepted = loop.run_soon([this, answer] { loop.in(std::chrono::microseconds(50), answer); });
    if (way == 4) {
      const auto again = [this, answer] { loop.post(answer); };
      accepted = loop.post([this, again] { loop.in(Duration::zero(), again); });
    }
    if (!accepted) {
      ++refused;
      return;
    }
    const TimePoint until = after(Clock::now(), test::kPatience);
    if (loop.drive([&] { return shared->given; }, until)) {
      if (!shared->told.try_acquire()) ++unanswered;
      return;
    }
    loop.waiter_came();
    if (!shared->told.try_acquire_until(until)) ++unanswered;
    loop.waiter_went();
  }
};

TEST_CASE("many threads that post, run tasks themselves and drive lose nothing and never meet in the turn") {
  constexpr int kThreads = 6;
  constexpr int kRounds = 700;
  test::Station station;
  std::uint64_t counted = 0;
  std::vector<Asker> askers;
  for (int i = 0; i < kThreads; ++i) askers.push_back(Asker{station.loop(), counted, i});
  std::vector<std::thread> threads;
  for (Asker& asker : askers) threads.emplace_back([&asker] { asker.run(kRounds); });
  for (std::thread& thread : threads) thread.join();
  for (const Asker& asker : askers) {
    CHECK(asker.refused == 0);
    CHECK(asker.unanswered == 0);
  }
  CHECK(station.call([&] { return counted; }) == std::uint64_t{kThreads} * kRounds);
}

TEST_CASE("what is posted lazily runs in order, with the next task on this thread or with the loop's own") {
  test::Station station;
  Loop& loop = station.loop();
  std::vector<int> order;  // in the loop's turn
  const bool task_follows = GENERATE(true, false);
  bool told = false;
  while (!loop.drive([&] { return std::exchange(told, true); }, after(Clock::now(), test::kPatience))) {
  }
  // This thread has just driven: nobody polls.
  REQUIRE(loop.post_lazily([&] { order.push_back(1); }));
  REQUIRE(loop.post_lazily([&] { order.push_back(2); }));
  if (task_follows) {
    REQUIRE(loop.run_soon([&] { order.push_back(3); }));
  } else {
    REQUIRE(loop.post([&] { order.push_back(3); }));
  }
  CHECK(station.call([&] { return order; }) == std::vector<int>{1, 2, 3});
}

TEST_CASE("what is posted lazily is not forgotten when nothing follows") {
  test::Station station;
  Signal ran;
  bool told = false;
  const bool driven_before = GENERATE(true, false);
  while (driven_before &&
         !station.loop().drive([&] { return std::exchange(told, true); }, after(Clock::now(), test::kPatience))) {
  }
  REQUIRE(station.loop().post_lazily([&] { ran.set(); }));
  CHECK(ran.comes());
}

}  // namespace
}  // namespace callboard::actors
