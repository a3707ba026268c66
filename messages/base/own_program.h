// The path of the program that runs. Header only.
#pragma once

#include <climits>
#include <string>

#include <unistd.h>

namespace callboard {

/// What /proc/self/exe names; empty where /proc is not mounted. Never fails.
inline std::string own_program() {
  std::string path(PATH_MAX, '\0');
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path;
}

/// The folder of it, "." where it is not known.
inline std::string own_program_folder() {
  const std::string path = own_program();
  return path.empty() ? "." : path.substr(0, path.rfind('/'));
}

}  // namespace callboard
