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
  return wait >= kNever - now ? kNever : now + wait;
}

}  // namespace callboard
