#include "tests/simulation/world.h"

#include <cstdio>

namespace callboard::simulation {

bool World::run_until(TimePoint end) {
  while (!tasks_.empty() && tasks_.top().when <= end && !broken()) {
    Task task = std::move(const_cast<Task&>(tasks_.top()));  // popped at once: nobody sees it moved from
    tasks_.pop();
    now_ = task.when;
    task.run();
  }
  if (!broken()) now_ = end;
  return !broken();
}

void World::note(const std::string& line) {
  constexpr std::size_t kKept = 400;
  const auto ms = std::chrono::duration<double, std::milli>(now_ - TimePoint{} - std::chrono::hours(1)).count();
  std::string text = std::to_string(ms) + " ms  " + line;
  if (verbose_) std::printf("%s\n", text.c_str());
  log_.push_back(std::move(text));
  if (log_.size() > kKept) log_.pop_front();
}

void World::violation(const std::string& what) {
  note("VIOLATION: " + what);
  if (violation_.empty()) violation_ = what;
}

}  // namespace callboard::simulation
