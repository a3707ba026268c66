#include "actors/client/admission.h"

#include <thread>
#include <vector>

#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;

constexpr auto kLineWait = 20s;  // of a test that goes wrong

Error full() { return Error(ErrorCode::kOverloaded, "full"); }

Admission::Call call_for_place(Admission& admission) {
  Admission::Call call;
  call.attempt = [&admission]() -> std::optional<Error> {
    if (admission.take_place()) return std::nullopt;
    return full();
  };
  call.until = after(Clock::now(), kLineWait);
  return call;
}

}  // namespace

TEST_CASE("there are as many places as were said, and one that is given back is free again", "[admission]") {
  Admission admission(2);
  CHECK(admission.enter());
  CHECK(admission.enter());
  CHECK_FALSE(admission.enter());
  CHECK(admission.taken() == 2);
  admission.leave();
  CHECK(admission.enter());
}

TEST_CASE("who waits in line is served first in, first out, and before whoever comes", "[admission]") {
  Admission admission(1);
  REQUIRE(admission.enter());
  std::vector<int> served;  // written by the one that has the place
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      if (!admission.wait_in_line(call_for_place(admission))) return;
      served.push_back(i);
      admission.leave();
    });
    // The next one comes when this one is in line.
    while (admission.waiting() <= static_cast<std::size_t>(i)) std::this_thread::yield();
  }
  CHECK_FALSE(admission.enter());
  admission.leave();
  for (auto& thread : threads) thread.join();
  CHECK(served == std::vector<int>{0, 1, 2, 3});
  CHECK(admission.taken() == 0);
}

TEST_CASE("a change between the attempt and the wait is not lost", "[admission]") {
  Admission admission(1);
  REQUIRE(admission.enter());
  int attempts = 0;
  Admission::Call call;
  call.attempt = [&]() -> std::optional<Error> {
    if (++attempts > 1) return std::nullopt;
    std::thread([&] { admission.room_made(); }).join();  // after the look, before the wait
    return full();
  };
  call.until = after(Clock::now(), kLineWait);
  REQUIRE(admission.wait_in_line(std::move(call)));
  CHECK(attempts == 2);
}

TEST_CASE("what an attempt itself gives back does not wake it", "[admission]") {
  Admission admission(1);
  int attempts = 0;
  Admission::Call call;
  call.attempt = [&]() -> std::optional<Error> {
    ++attempts;
    REQUIRE(admission.take_place());
    admission.leave();
    return Error(ErrorCode::kOutOfMemory, "a place, but no memory");
  };
  call.until = after(Clock::now(), 20ms);
  CHECK(admission.wait_in_line(std::move(call)).error().code == ErrorCode::kOutOfMemory);
  CHECK(attempts <= 2);  // when it comes, and perhaps at the deadline
}

TEST_CASE("at the deadline the error says what was full, and who was before", "[admission]") {
  Admission admission(1);
  REQUIRE(admission.enter());
  std::thread first([&] { CHECK(admission.wait_in_line(call_for_place(admission))); });
  while (admission.waiting() == 0) std::this_thread::yield();
  Admission::Call call = call_for_place(admission);
  call.until = after(Clock::now(), 5ms);
  const Status late = admission.wait_in_line(std::move(call));
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kOverloaded);
  CHECK(late.error().message.find("1 earlier calls wait") != std::string::npos);
  admission.leave();
  first.join();
  admission.leave();
  Admission::Call alone = call_for_place(admission);
  REQUIRE(admission.enter());
  alone.until = Clock::now();
  const Status alone_late = admission.wait_in_line(std::move(alone));
  REQUIRE_FALSE(alone_late);
  CHECK(alone_late.error().message == "full");
}

TEST_CASE("a wait can be interrupted, and ends for all at the end", "[admission]") {
  Admission admission(1);
  REQUIRE(admission.enter());
  Admission::Call call = call_for_place(admission);
  call.interrupted = [] { return true; };
  CHECK(admission.wait_in_line(std::move(call)).error().code == ErrorCode::kCancelled);
  std::vector<Status> ends(2);
  std::vector<std::thread> threads;
  for (auto& end : ends) threads.emplace_back([&] { end = admission.wait_in_line(call_for_place(admission)); });
  while (admission.waiting() < 2) std::this_thread::yield();
  admission.end(Error(ErrorCode::kCancelled, "closed"));
  for (auto& thread : threads) thread.join();
  for (const auto& end : ends) {
    REQUIRE_FALSE(end);
    CHECK(end.error().message == "closed");
  }
  CHECK_FALSE(admission.wait_in_line(call_for_place(admission)));
}

TEST_CASE("many threads never hold more places than there are, and all are served", "[admission]") {
  constexpr std::size_t kPlaces = 3;
  Admission admission(kPlaces);
  std::atomic<std::size_t> inside{0};
  std::atomic<std::size_t> most{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) {
        if (!admission.enter() && !admission.wait_in_line(call_for_place(admission))) return;
        const std::size_t now = inside.fetch_add(1) + 1;
        for (std::size_t seen = most.load(); seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        inside.fetch_sub(1);
        admission.leave();
        ++done;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(done == 8 * 500);
  CHECK(most <= kPlaces);
  CHECK(admission.taken() == 0);
  CHECK(admission.waiting() == 0);
}

}  // namespace callboard::actors
