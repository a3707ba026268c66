#include "kernels/stream_thread.h"

#include <pthread.h>

#include <algorithm>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;

namespace {
TimePoint soon() { return Clock::now() + std::chrono::seconds(20); }
}  // namespace

TEST_CASE("a host event makes what was written before it visible to another thread") {
  const auto event = std::make_shared<HostEvent>();
  int written = 0;
  std::thread writer([&, event] {
    written = 7;
    event->record();
  });
  REQUIRE(event->wait_until(soon()));
  CHECK(written == 7);
  CHECK(event->ready());
  writer.join();
}

TEST_CASE("waiting for a host event ends at its deadline") {
  const HostEvent event;
  CHECK_FALSE(event.wait_until(Clock::now()));
  CHECK_FALSE(event.ready());
}

TEST_CASE("a stream thread runs commands in the order they were posted") {
  std::vector<int> order;
  {
    StreamThread stream({.name = "stream/test", .capacity = 64, .around = {}, .on_exception = {}});
    for (int i = 0; i < 50; ++i) REQUIRE(stream.post([&order, i] { order.push_back(i); }) == PushResult::kPushed);
  }
  REQUIRE(order.size() == 50);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("a fence is recorded when everything posted before it has run") {
  StreamThread stream({.name = "stream/test", .capacity = 8, .around = {}, .on_exception = {}});
  int ran = 0;
  REQUIRE(stream.post([&] { ++ran; }) == PushResult::kPushed);
  REQUIRE(stream.post([&] { ++ran; }) == PushResult::kPushed);
  const auto fence = std::make_shared<HostEvent>();
  REQUIRE(stream.fence(fence) == PushResult::kPushed);
  REQUIRE(fence->wait_until(soon()));
  CHECK(ran == 2);
}

TEST_CASE("a full stream queue refuses and leaves the command with its owner") {
  const auto gate = std::make_shared<HostEvent>();
  const auto started = std::make_shared<HostEvent>();
  StreamThread stream({.name = "stream/test", .capacity = 1, .around = {}, .on_exception = {}});
  REQUIRE(stream.post([gate, started] {
    started->record();
    gate->wait_until(soon());
  }) == PushResult::kPushed);
  REQUIRE(started->wait_until(soon()));
  REQUIRE(stream.post([] {}) == PushResult::kPushed);
  bool ran = false;
  StreamThread::Work refused = [&ran] { ran = true; };
  CHECK(stream.post(std::move(refused)) == PushResult::kFull);
  REQUIRE(static_cast<bool>(refused));
  refused();
  CHECK(ran);
  gate->record();
}

TEST_CASE("a command that throws is reported and the next one runs") {
  std::vector<std::string> reported;
  bool ran = false;
  {
    StreamThread stream(
        {.name = "stream/test", .capacity = 8, .around = {}, .on_exception = [&](std::string_view what) {
           reported.emplace_back(what);
         }});
    REQUIRE(stream.post([] { throw std::runtime_error("trouble"); }) == PushResult::kPushed);
    REQUIRE(stream.post([] { throw 5; }) == PushResult::kPushed);
    REQUIRE(stream.post([&] { ran = true; }) == PushResult::kPushed);
  }
  CHECK(ran);
  REQUIRE(reported.size() == 2);
  CHECK(reported[0] == "trouble");
}

TEST_CASE("stopping a stream runs what is queued and refuses what comes later") {
  int ran = 0;
  StreamThread stream({.name = "stream/test", .capacity = 8, .around = {}, .on_exception = {}});
  for (int i = 0; i < 5; ++i) REQUIRE(stream.post([&] { ++ran; }) == PushResult::kPushed);
  stream.stop();
  CHECK(ran == 5);
  CHECK(stream.post([] {}) == PushResult::kClosed);
  stream.stop();
}

TEST_CASE("a stream thread carries its name and its guards around all commands") {
  std::atomic<bool> inside{false};
  bool seen_inside = false;
  std::string name(16, '\0');
  {
    StreamThread stream({.name = "stream/communicate",
                         .capacity = 8,
                         .around =
                             [&](const std::function<void()>& serve) {
                               inside = true;
                               serve();
                               inside = false;
                             },
                         .on_exception = {}});
    REQUIRE(stream.post([&] {
      seen_inside = inside;
      pthread_getname_np(pthread_self(), name.data(), name.size());
    }) == PushResult::kPushed);
  }
  CHECK(seen_inside);
  CHECK_FALSE(inside);
  CHECK(std::string(name.c_str()) == "stream/communic");
}

TEST_CASE("many threads may post to one stream") {
  std::atomic<int> ran{0};
  {
    StreamThread stream({.name = "stream/test", .capacity = 4'000, .around = {}, .on_exception = {}});
    std::vector<std::thread> posters;
    for (int t = 0; t < 4; ++t) {
      posters.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          if (stream.post([&] { ++ran; }) != PushResult::kPushed) break;
        }
      });
    }
    for (std::thread& poster : posters) poster.join();
  }
  CHECK(ran == 2'000);
}

namespace {

/// A way of waiting of its own: what a device's stream does with its loop, on a condition variable.
class OwnWaiting {
 public:
  bool wait(const std::function<bool()>& has_work) {
    std::unique_lock lock(mutex_);
    ++waits_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return has_work(); });
    return true;
  }
  void wake() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  bool waits(int times) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, soon(), [&] { return waits_ >= times; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waits_ = 0;  // guarded by mutex_
};

}  // namespace

TEST_CASE("a stream that waits in a way of its own misses no command, fence or stop") {
  OwnWaiting waiting;
  std::atomic<int> ran{0};
  {
    StreamThread stream({.name = "stream/test",
                         .capacity = 2'048,
                         .around = {},
                         .on_exception = {},
                         .idle = [&](const std::function<bool()>& has_work) { return waiting.wait(has_work); },
                         .wake = [&] { waiting.wake(); }});
    for (int i = 1; i <= 200; ++i) {
      REQUIRE(waiting.waits(1));
      REQUIRE(stream.post([&] { ++ran; }) == PushResult::kPushed);
      const auto fence = std::make_shared<HostEvent>();
      REQUIRE(stream.fence(fence) == PushResult::kPushed);
      REQUIRE(fence->wait_until(soon()));
      REQUIRE(ran == i);
    }
  }
  CHECK(ran == 200);
}

TEST_CASE("a stream whose own way of waiting is not there waits for its queue") {
  std::atomic<int> asked{0};
  StreamThread stream({.name = "stream/test",
                       .capacity = 8,
                       .around = {},
                       .on_exception = {},
                       .idle =
                           [&](const std::function<bool()>&) {
                             ++asked;
                             return false;
                           },
                       .wake = [] {}});
  const auto fence = std::make_shared<HostEvent>();
  REQUIRE(stream.fence(fence) == PushResult::kPushed);
  REQUIRE(fence->wait_until(soon()));
  CHECK(asked <= 2);  // once for each time that the queue was empty: it does not spin
}
