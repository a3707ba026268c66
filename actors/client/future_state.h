// The outcome of a request or of a question, waited for by many threads and set once.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "actors/client/client.h"

namespace callboard::actors {

/// Marks a thread that runs callbacks: it has the loop's turn or is the batching thread, and what it would wait for
/// could not come.
class CallbackScope {
 public:
  CallbackScope() { ++depth_; }
  ~CallbackScope() { --depth_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  static bool active() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

/// A value that is set once. Any thread may set and wait; waits park.
template <class T>
class OneShot {
 public:
  /// False if it was set before: then `value` goes unused.
  bool set(T value) {
    std::vector<std::function<void()>> callbacks;
    {
      std::lock_guard lock(mutex_);
      if (value_) return false;
      value_.emplace(std::move(value));
      callbacks.swap(callbacks_);
    }
    ready_.notify_all();
    if (callbacks.empty()) return true;
    const CallbackScope scope;
    for (auto& callback : callbacks) callback();
    return true;
  }

  bool is_set() const {
    std::lock_guard lock(mutex_);
    return value_.has_value();
  }

  bool wait_until(TimePoint until) const {
    std::unique_lock lock(mutex_);
    return ready_.wait_until(lock, until, [this] { return value_.has_value(); });
  }

  /// Only once it is set.
  T value() const {
    std::lock_guard lock(mutex_);
    return *value_;
  }

  void on_set(std::function<void()> callback) {
    {
      std::lock_guard lock(mutex_);
      if (!value_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

  bool has_callbacks() const {
    std::lock_guard lock(mutex_);
    return !callbacks_.empty();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ready_;
  std::optional<T> value_;                        // guarded by mutex_; never changes once set
  std::vector<std::function<void()>> callbacks_;  // guarded by mutex_
};

using FutureValue = Result<std::shared_ptr<const RequestResult>>;

class FutureState;

/// Who makes futures come true; any thread.
class FutureHost {
 public:
  virtual ~FutureHost() = default;
  virtual void cancel(std::shared_ptr<FutureState> future) = 0;
  /// Returns when `value` is set, or `until` has come.
  virtual void wait(const OneShot<FutureValue>& value, TimePoint until) = 0;
};

/// The future of a request. `give_up` bounds every wait: the session answers before, unless its thread is stuck.
class FutureState final : public Future, public std::enable_shared_from_this<FutureState> {
 public:
  FutureState(TimePoint give_up, std::weak_ptr<FutureHost> host) : give_up_(give_up), host_(std::move(host)) {}

  bool is_ready() const override { return value_.is_set(); }
  bool wait_for(Duration wait) const override;
  FutureValue get() override;
  void cancel() override;
  void on_ready(std::function<void()> done) override { value_.on_set(std::move(done)); }

  bool set(FutureValue value) { return value_.set(std::move(value)); }
  /// Does somebody wait besides the one holder that asks? Only meaningful on the loop thread, which holds one copy.
  bool has_callbacks() const { return value_.has_callbacks(); }

  RequestSeq request = 0;  ///< in the loop's turn only; 0 until it was sent

 private:
  bool wait_until(TimePoint until) const;
  void expire() const;  ///< a value that comes after this is dropped

  const TimePoint give_up_;
  const std::weak_ptr<FutureHost> host_;
  mutable OneShot<FutureValue> value_;
};

}  // namespace callboard::actors
