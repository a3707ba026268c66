// Where the programs of this installation are. A build tree has all of them in one folder. A wheel has `callboard`
// among the commands of a Python environment and the rest inside the package there (tools/cmake/package.cmake):
//
//     <environment>/bin/callboard
//     <environment>/lib/python3.11/site-packages/callboard/bin/{callboard-device,callboard_ops.so,…}
#pragma once

#include <filesystem>
#include <string>

namespace callboard::config {

/// callboard-device that belongs to the program `self`: the one beside it, else that of the package in the same
/// environment. The first of these, which does not exist, where there is neither. Never fails.
std::string device_program_of(const std::filesystem::path& self);

/// $CALLBOARD_DEVICE_BINARY, else device_program_of(this program).
std::string device_program();

/// The Python of the environment whose package holds `device_program`; empty for one that is in no package, or where
/// the environment's Python is elsewhere (`pip install --user`, `--target`). Never fails.
std::string interpreter_beside(const std::filesystem::path& device_program);

}  // namespace callboard::config
