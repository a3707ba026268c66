// What a machine must have and should have, each found by trying or reading, none by guessing.
#pragma once

#include <string>
#include <vector>

namespace callboard::cli {

struct Check {
  enum class Level { kOk, kWarn, kFail };  ///< kFail: a cluster will not work; kWarn: it will, but not as well
  std::string name;
  Level level = Level::kOk;
  std::string found;
  std::string advice;  ///< empty where nothing is to be done
};

/// Main thread (it starts the device actor's program to see that it starts). Takes a second or two.
std::vector<Check> examine_machine();

}  // namespace callboard::cli
