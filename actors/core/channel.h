// What Hub and Line share: a link with the frames that its socket has not taken yet, and the timer that drives it.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "actors/core/alarm.h"
#include "actors/core/link.h"
#include "actors/core/loop.h"

namespace callboard::actors {

using Frame = std::shared_ptr<const std::string>;

/// A link and what ZeroMQ has not taken yet, in order. `put` gives a frame to the socket and says whether it was taken.
struct Channel {
  Link link;
  bool open = false;            ///< after the Welcome
  std::deque<Frame> waiting{};  ///< numbered frames, so never more than the link's window
  TimePoint retry_at = kNever;
  Duration retry_wait = kRetryMin;

  static constexpr Duration kRetryMin = std::chrono::milliseconds(2);
  static constexpr Duration kRetryMax = std::chrono::milliseconds(100);

  template <class Put>
  void send(Frame frame, TimePoint now, Put put) {
    if (open && waiting.empty() && put(frame)) return;
    waiting.push_back(std::move(frame));
    if (open && retry_at == kNever) retry_at = after(now, retry_wait);
  }

  template <class Put>
  bool send_once(const Frame& frame, Put put) {
    return open && waiting.empty() && put(frame);
  }

  template <class Put>
  void flush(TimePoint now, Put put) {
    const bool had = !waiting.empty();
    bool progress = false;
    while (open && !waiting.empty() && put(waiting.front())) {
      waiting.pop_front();
      progress = true;
    }
    retry_wait = progress ? kRetryMin : std::min(retry_wait * 2, kRetryMax);
    retry_at = waiting.empty() || !open ? kNever : after(now, retry_wait);
    if (had && waiting.empty()) waiting.shrink_to_fit();
  }

  /// False once the link is lost.
  template <class Put>
  bool on_time(TimePoint now, Put put) {
    if (!open) return true;
    if (retry_at <= now) flush(now, put);
    if (link.next_due() > now) return true;
    Link::Due due = link.on_time(now);
    if (due.lost) return false;
    for (const Frame& frame : due.frames) {
      // What still waits here has not been sent once: nothing to send again.
      if (!waiting.empty() || !put(frame)) break;
    }
    return true;
  }

  TimePoint next_due() const { return open ? std::min(retry_at, link.next_due()) : kNever; }
};

}  // namespace callboard::actors
