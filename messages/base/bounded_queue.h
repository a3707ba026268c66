// Many producers, one consumer, a fixed capacity, and an answer for "full" and "closed".
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "messages/base/clock.h"

namespace callboard {

enum class PushResult { kPushed, kFull, kClosed };

/// Waits park on a condition variable; nothing spins. Any thread may push, one thread pops.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  /// Never blocks. On kFull and kClosed `item` is left untouched for the caller.
  PushResult try_push(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return PushResult::kClosed;
      if (items_.size() >= capacity_) return PushResult::kFull;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return PushResult::kPushed;
  }

  /// Waits until there is an item, the queue is closed and empty, or `deadline` has passed (nullopt for both).
  std::optional<T> pop_until(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto wake = [this] { return closed_ || !items_.empty(); };
    if (deadline == kNever) {
      ready_.wait(lock, wake);
    } else {
      ready_.wait_until(lock, deadline, wake);
    }
    return take_locked();
  }

  /// The next item if there is one now.
  std::optional<T> try_pop() {
    std::lock_guard lock(mutex_);
    return take_locked();
  }

  /// No more pushes; what is queued can still be popped. Idempotent.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  std::size_t capacity() const { return capacity_; }

 private:
  std::optional<T> take_locked() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;  // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace callboard
