#include "messages/base/bounded_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include "tests/support/test.h"

namespace callboard {
namespace {

TEST_CASE("a full queue refuses and leaves the item to the caller") {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1);
  auto second = std::make_unique<int>(2);
  CHECK(queue.try_push(std::move(first)) == PushResult::kPushed);
  CHECK(queue.try_push(std::move(second)) == PushResult::kFull);
  REQUIRE(second != nullptr);
  CHECK(**queue.try_pop() == 1);
  CHECK(queue.try_push(std::move(second)) == PushResult::kPushed);
}

TEST_CASE("a closed queue takes nothing more and still gives what it has, in order") {
  BoundedQueue<int> queue(4);
  queue.try_push(1);
  queue.try_push(2);
  queue.close();
  queue.close();
  CHECK(queue.closed());
  CHECK(queue.try_push(3) == PushResult::kClosed);
  CHECK(queue.pop_until(kNever) == 1);
  CHECK(queue.pop_until(kNever) == 2);
  CHECK(queue.pop_until(kNever) == std::nullopt);
}

TEST_CASE("a pop whose deadline has passed gives nothing") {
  BoundedQueue<int> queue(1);
  CHECK(queue.pop_until(Clock::now()) == std::nullopt);
  CHECK(queue.size() == 0);
  CHECK(queue.capacity() == 1);
}

TEST_CASE("closing wakes a pop that waits without a deadline") {
  BoundedQueue<int> queue(1);
  std::thread consumer([&queue] { CHECK_NOTHROW(queue.pop_until(kNever)); });
  queue.close();
  consumer.join();
  SUCCEED();
}

TEST_CASE("what several producers push arrives once, and in order for each of them") {
  constexpr int kProducers = 3;
  constexpr int kItems = 2000;
  BoundedQueue<std::pair<int, int>> queue(16);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems;) {
        std::pair<int, int> item{p, i};
        if (queue.try_push(std::move(item)) == PushResult::kPushed)
          ++i;
        else
          std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int i = 0; i < kProducers * kItems; ++i) {
    const auto item = queue.pop_until(kNever);
    REQUIRE(item.has_value());
    REQUIRE(item->second == next[static_cast<std::size_t>(item->first)]++);
  }
  for (std::thread& producer : producers) producer.join();
  CHECK(queue.try_pop() == std::nullopt);
}

}  // namespace
}  // namespace callboard
