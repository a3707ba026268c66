// A memory broker on a thread of its own, as the node actor's loop runs it, with a clock that only the test puts
// forward.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/node/memory_broker.h"
#include "messages/base/fd.h"
#include "tests/support/test.h"

namespace callboard::test {

class BrokerThread {
 public:
  explicit BrokerThread(const std::string& path) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    auto created = actors::MemoryBroker::create(path);
    if (!created) FAIL(created.error().to_string());
    broker_ = std::move(*created);
    thread_ = std::thread([this] { run(); });
  }
  ~BrokerThread() {
    call([this] { stop_ = true; });
    thread_.join();
  }

  /// Runs `task` on the broker's thread and waits for its end.
  void call(std::function<void()> task) {
    std::packaged_task<void()> packaged(std::move(task));
    auto done = packaged.get_future();
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(packaged));
    }
    const std::uint64_t one = 1;
    REQUIRE(::write(wake_.get(), &one, sizeof one) == sizeof one);
    done.wait();
  }
  void advance(Duration time) {
    call([this, time] {
      offset_ += time;
      broker_->on_tick(now());
    });
  }
  actors::MemoryBroker::Stats stats() {
    actors::MemoryBroker::Stats stats;
    call([&] { stats = broker_->stats(); });
    return stats;
  }
  /// Waits until the broker's figures satisfy `condition`; looks after each of its turns. False after 20 s.
  bool eventually(std::function<bool(const actors::MemoryBroker::Stats&)> condition) {
    auto reached = std::make_shared<std::promise<void>>();
    auto future = reached->get_future();
    call([this, condition = std::move(condition), reached, told = false]() mutable {
      watcher_ = [this, condition, reached, told]() mutable {
        if (!told && condition(broker_->stats())) {
          told = true;
          reached->set_value();
        }
      };
    });
    const bool in_time = future.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    call([this] { watcher_ = nullptr; });
    return in_time;
  }

 private:
  TimePoint now() const { return start_ + offset_; }

  void run() {
    while (!stop_) {
      std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
      for (const int fd : broker_->fds()) entries.push_back({fd, POLLIN, 0});
      ::poll(entries.data(), entries.size(), -1);
      for (std::size_t i = 1; i < entries.size(); ++i) {
        if (entries[i].revents != 0) broker_->on_readable(entries[i].fd, now());
      }
      if (broker_->next_tick() <= now()) broker_->on_tick(now());
      if (entries[0].revents != 0) run_tasks();
      if (watcher_) watcher_();
    }
  }
  void run_tasks() {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &count, sizeof count);
    std::vector<std::packaged_task<void()>> tasks;
    {
      std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
  }

  UniqueFd wake_;
  std::unique_ptr<actors::MemoryBroker> broker_;
  const TimePoint start_ = Clock::now();
  Duration offset_{0};
  std::function<void()> watcher_;
  bool stop_ = false;
  std::mutex mutex_;
  std::vector<std::packaged_task<void()>> tasks_;
  std::thread thread_;
};

}  // namespace callboard::test
