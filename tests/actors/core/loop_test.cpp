#include "actors/core/loop.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "messages/base/fd.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Runs the loop until something stops it; a loop that nothing stops fails the test instead of hanging it.
void run_bounded(Loop& loop) {
  bool timed_out = false;
  loop.in(seconds(20), [&] {
    timed_out = true;
    loop.stop();
  });
  loop.run();
  REQUIRE_FALSE(timed_out);
}

TEST_CASE("tasks posted from several threads all run on the loop's thread, each thread's in order") {
  auto loop = Loop::create();
  constexpr int kThreads = 4;
  constexpr int kEach = 2'000;
  std::vector<int> last(kThreads, -1);
  int ran = 0;
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const bool posted = loop->post([&, t, i] {
          if (!loop->on_loop_thread() || last[t] != i - 1) ++bad;
          last[t] = i;
          if (++ran == kThreads * kEach) loop->stop();
        });
        if (!posted) ++bad;
      }
    });
  }
  run_bounded(*loop);
  for (std::thread& thread : threads) thread.join();
  CHECK(ran == kThreads * kEach);
  CHECK(bad == 0);
}

TEST_CASE("a task that was accepted runs, even when the loop is stopped before its turn") {
  auto loop = Loop::create();
  std::vector<int> order;
  loop->post([&] {
    order.push_back(1);
    loop->post([&] { order.push_back(2); });
    loop->stop();
  });
  run_bounded(*loop);
  CHECK(order == std::vector<int>{1, 2});
  CHECK_FALSE(loop->post([] {}));
}

TEST_CASE("the mailbox is bounded") {
  auto loop = Loop::create();
  int ran = 0;
  for (int i = 0; i < 65'536; ++i) REQUIRE(loop->post([&] { ++ran; }));
  CHECK_FALSE(loop->post([&] { ++ran; }));
  loop->in(Duration::zero(), [&] { loop->post([&] { loop->stop(); }); });
  loop->post([] {});
  loop->in(milliseconds(1), [&] { loop->stop(); });
  run_bounded(*loop);
  CHECK(ran == 65'536);
}

TEST_CASE("timers run in the order of their times, cancelled ones do not run") {
  auto loop = Loop::create();
  std::vector<int> order;
  const TimePoint now = Clock::now();
  loop->at(now + milliseconds(20), [&] {
    order.push_back(3);
    loop->stop();
  });
  const TimerId cancelled = loop->at(now + milliseconds(10), [&] { order.push_back(99); });
  loop->at(now + milliseconds(5), [&] {
    order.push_back(2);
    loop->cancel(cancelled);
    loop->cancel(cancelled);
  });
  loop->at(TimePoint::min(), [&] { order.push_back(1); });
  loop->at(kNever, [&] { order.push_back(98); });
  run_bounded(*loop);
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a timer does not run early") {
  auto loop = Loop::create();
  const TimePoint due = Clock::now() + milliseconds(3);
  TimePoint ran;
  loop->at(due, [&] {
    ran = Clock::now();
    loop->stop();
  });
  run_bounded(*loop);
  CHECK(ran >= due);
}

TEST_CASE("a timer that sets itself for now again does not keep descriptors waiting") {
  auto loop = Loop::create();
  UniqueFd event(::eventfd(1, EFD_CLOEXEC));
  std::function<void()> again = [&] { loop->in(Duration::zero(), again); };
  again();
  bool seen = false;
  loop->watch(event.get(), [&] {
    seen = true;
    loop->stop();
  });
  run_bounded(*loop);
  CHECK(seen);
}

TEST_CASE("a descriptor is watched as long as it is readable, until it is unwatched") {
  auto loop = Loop::create();
  UniqueFd event(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  loop->watch(event.get(), [&] {
    if (++calls < 3) return;  // not read: still readable
    loop->unwatch(event.get());
    loop->in(milliseconds(5), [&] { loop->stop(); });
  });
  run_bounded(*loop);
  CHECK(calls == 3);
}

TEST_CASE("a callback may unwatch another one that is ready in the same round") {
  auto loop = Loop::create();
  UniqueFd first(::eventfd(1, EFD_CLOEXEC));
  UniqueFd second(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  const auto on_ready = [&] {
    ++calls;
    loop->unwatch(first.get());
    loop->unwatch(second.get());
    loop->in(milliseconds(5), [&] { loop->stop(); });
  };
  loop->watch(first.get(), on_ready);
  loop->watch(second.get(), on_ready);
  run_bounded(*loop);
  CHECK(calls == 1);
}

TEST_CASE("what a callback throws does not leave the loop") {
  auto loop = Loop::create();
  int after_throw = 0;
  loop->post([] { throw std::runtime_error("on purpose"); });
  loop->in(Duration::zero(), [] { throw 1; });
  loop->post([&] { ++after_throw; });
  loop->in(milliseconds(2), [&] {
    ++after_throw;
    loop->stop();
  });
  run_bounded(*loop);
  CHECK(after_throw == 2);
}

TEST_CASE("stop from another thread ends a loop that waits for nothing; a second stop does no harm") {
  auto loop = Loop::create();
  std::atomic<bool> running{false};
  loop->post([&] {
    running = true;
    running.notify_all();
  });
  std::thread stopper([&] {
    running.wait(false);
    loop->stop();
    loop->stop();
  });
  loop->run();
  stopper.join();
  CHECK_FALSE(loop->post([] {}));
}

TEST_CASE("a closed descriptor that is still watched does not spin the loop") {
  auto loop = Loop::create();
  UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  int calls = 0;
  loop->watch(event.get(), [&] { ++calls; });
  event.reset();
  loop->in(milliseconds(10), [&] { loop->stop(); });
  run_bounded(*loop);
  CHECK(calls == 0);
}

TEST_CASE("what is to be done before the loop parks runs once, behind the round's other callbacks") {
  auto loop = Loop::create();
  std::vector<int> order;
  loop->post([&] {
    loop->before_park([&] { order.push_back(3); });
    order.push_back(1);
  });
  loop->post([&] { order.push_back(2); });
  loop->in(milliseconds(5), [&] {
    loop->before_park([&] { order.push_back(4); });  // also where the loop ends instead
    loop->stop();
  });
  run_bounded(*loop);
  CHECK(order == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("a descriptor is watched for writing as long as that is on") {
  auto loop = Loop::create();
  int pair[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
  const UniqueFd mine(pair[0]);
  const UniqueFd other(pair[1]);
  const std::string filling(64u << 10, 'x');
  while (::send(mine.get(), filling.data(), filling.size(), MSG_DONTWAIT) > 0) {
  }
  int calls = 0;
  loop->watch(mine.get(), [&] {
    ++calls;
    loop->watch_for_writing(mine.get(), false);
    loop->in(milliseconds(5), [&] { loop->stop(); });
  });
  loop->in(milliseconds(5), [&] {
    CHECK(calls == 0);
    loop->watch_for_writing(mine.get(), true);
    loop->in(milliseconds(5), [&] {
      CHECK(calls == 0);  // full
      std::string sink(filling.size(), '\0');
      while (::recv(other.get(), sink.data(), sink.size(), MSG_DONTWAIT) > 0) {
      }
    });
  });
  run_bounded(*loop);
  CHECK(calls == 1);
}

}  // namespace
}  // namespace callboard::actors
