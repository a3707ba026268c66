// What the cluster file is checked against: the machine it will run on.
#pragma once

#include <cstdint>
#include <string>

namespace callboard::config {

struct Machine {
  std::uint64_t memory_bytes = 0;  ///< the smaller of what is installed and what our cgroup allows; 0: unknown
  std::string run_root;            ///< where run directories are made: the same rule as actors::run_root()

  /// Reads /proc and /sys and the environment; never fails.
  static Machine here();
};

}  // namespace callboard::config
