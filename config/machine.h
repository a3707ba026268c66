// What the cluster file is checked against: the machine it will run on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace callboard::config {

struct Machine {
  std::uint64_t memory_bytes = 0;         ///< the smaller of what is installed and what our cgroup allows; 0: unknown
  std::string run_root;                   ///< where run directories are made: the same rule as actors::run_root()
  std::vector<std::string> device_kinds;  ///< that are installed here; empty: unknown
  bool python = true;                     ///< the plug-in for Python kernels is installed
  bool runs(const std::string& kind) const {
    return device_kinds.empty() || std::find(device_kinds.begin(), device_kinds.end(), kind) != device_kinds.end();
  }

  /// Reads /proc and /sys and the environment; never fails.
  static Machine here();
};

}  // namespace callboard::config
