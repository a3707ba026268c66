// Time as the pure step functions see it. All times are monotonic; wall-clock time is for people only.
#pragma once

#include <chrono>

namespace callboard {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

constexpr TimePoint kNever = TimePoint::max();

/// now + wait without overflow; a wait that reaches past the end of time gives kNever.
inline TimePoint after(TimePoint now, Duration wait) {
  TimePoint::rep sum = 0;
  if (__builtin_add_overflow(now.time_since_epoch().count(), wait.count(), &sum)) {
    return wait.count() > 0 ? kNever : TimePoint::min();
  }
  return TimePoint(Duration(sum));
}

}  // namespace callboard
