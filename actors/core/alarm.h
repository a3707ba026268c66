// A timer that can be moved.
#pragma once

#include <functional>
#include <utility>

#include "actors/core/loop.h"
#include "messages/base/clock.h"

namespace callboard::actors {

/// One timer of the loop. On its thread; ends before the loop does.
class Alarm {
 public:
  Alarm(Loop& loop, std::function<void()> ring) : loop_(loop), ring_(std::move(ring)) {}
  ~Alarm() { clear(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  void no_later_than(TimePoint when) {
    if (when >= when_) return;
    clear();
    when_ = when;
    timer_ = loop_.at(when, [this] {
      when_ = kNever;
      timer_ = 0;
      ring_();
    });
  }
  /// Exactly then, whatever was asked before; kNever is not at all.
  void at(TimePoint when) {
    if (when == when_) return;
    clear();
    if (when != kNever) no_later_than(when);
  }
  void clear() {
    if (timer_ != 0) loop_.cancel(timer_);
    timer_ = 0;
    when_ = kNever;
  }

 private:
  Loop& loop_;
  std::function<void()> ring_;
  TimePoint when_ = kNever;
  TimerId timer_ = 0;
};

}  // namespace callboard::actors
