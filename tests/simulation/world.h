// Virtual time, chance from a seed, and the log of one simulated run. One thread; nothing here looks at a clock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "messages/base/clock.h"
#include "tests/support/random_graph.h"

namespace callboard::simulation {

class World {
 public:
  explicit World(std::uint64_t seed, bool verbose = false) : random(seed), verbose_(verbose) {}

  TimePoint now() const { return now_; }
  void at(TimePoint when, std::function<void()> task) {
    if (when != kNever) tasks_.push(Task{std::max(when, now_), next_++, std::move(task)});
  }
  void in(Duration wait, std::function<void()> task) { at(now_ + wait, std::move(task)); }
  /// False when an invariant broke.
  bool run_until(TimePoint end);

  Duration between(Duration low, Duration high) {
    return low + Duration(static_cast<Duration::rep>(random.below(static_cast<std::size_t>((high - low).count()) + 1)));
  }
  bool chance(double probability) { return static_cast<double>(random.below(1'000'000)) < probability * 1e6; }

  void note(const std::string& line);
  /// An invariant is broken: the run ends here.
  void violation(const std::string& what);
  bool broken() const { return !violation_.empty(); }
  const std::string& violation_text() const { return violation_; }
  const std::deque<std::string>& log() const { return log_; }
  std::uint64_t steps() const { return next_; }

  test::Random random;

 private:
  struct Task {
    TimePoint when;
    std::uint64_t number;
    std::function<void()> run;
    bool operator<(const Task& other) const {  // the queue's top is the largest
      return when != other.when ? when > other.when : number > other.number;
    }
  };

  const bool verbose_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  std::priority_queue<Task> tasks_;
  std::uint64_t next_ = 0;
  std::string violation_;
  std::deque<std::string> log_;
};

/// Wakes somebody at the time that was asked for last.
class Alarm {
 public:
  Alarm(World& world, std::function<void()> ring) : world_(world), state_(std::make_shared<State>()) {
    state_->ring = std::move(ring);
  }
  ~Alarm() { state_->at = kNever; }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  void set(TimePoint when) {
    if (when == state_->at) return;
    state_->at = when;
    world_.at(when, [state = state_, when] {
      if (state->at != when) return;
      state->at = kNever;
      state->ring();
    });
  }

 private:
  struct State {
    TimePoint at = kNever;
    std::function<void()> ring;
  };
  World& world_;
  std::shared_ptr<State> state_;
};

}  // namespace callboard::simulation
