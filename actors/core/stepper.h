// Feeds a pure core (step(event, now) → actions) its events one at a time, also those that carrying out its actions
// adds.
#pragma once

#include <deque>
#include <utility>

#include "messages/base/clock.h"

namespace callboard::actors {

/// Of one loop, in its turn.
template <class Core>
class Stepper {
 public:
  /// `act` carries out each action, and may call step() again: that event then has its turn after this one's actions.
  /// False for such a call; true when the core has seen everything, so that its next tick can be asked for.
  template <class Act>
  bool step(Core& core, typename Core::Event&& event, const Act& act) {
    if (stepping_) {
      waiting_.push_back(std::move(event));
      return false;
    }
    stepping_ = true;
    for (auto& action : core.step(std::move(event), Clock::now())) act(std::move(action));
    while (!waiting_.empty()) {
      typename Core::Event next = std::move(waiting_.front());
      waiting_.pop_front();
      for (auto& action : core.step(std::move(next), Clock::now())) act(std::move(action));
    }
    stepping_ = false;
    return true;
  }

 private:
  std::deque<typename Core::Event> waiting_;
  bool stepping_ = false;
};

}  // namespace callboard::actors
