#include "kernels/memory/memory_budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace callboard::kernels {

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// The number in a file of one word; nullopt if it cannot be read or says "max".
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse_number(word);
}

/// The number after `key` in a file of "key number" lines.
std::optional<std::uint64_t> read_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::string_view rest(line);
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    if (rest.empty() || (rest.front() != ' ' && rest.front() != '\t')) continue;
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    return parse_number(rest);
  }
  return std::nullopt;
}

struct CgroupFiles {
  std::string_view limit;
  std::string_view use;
  std::string_view reclaimable;  ///< key in memory.stat
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

/// A limit binds everything below it, so each folder up to the mount counts. Where a container sees only its own part
/// of the tree, the path of /proc/self/cgroup is partly missing and the folders above it are found.
void apply_cgroup(MemoryLeft& left, const std::string& mount, std::string path, const CgroupFiles& files) {
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const std::string folder = mount + path + "/";
    const std::optional<std::uint64_t> limit = read_number(folder + std::string(files.limit));
    const std::optional<std::uint64_t> use = read_number(folder + std::string(files.use));
    if (limit && use) {
      const std::uint64_t reclaimable = read_field(folder + "memory.stat", files.reclaimable).value_or(0);
      const std::uint64_t taken = *use - std::min(*use, reclaimable);
      const std::uint64_t bytes = *limit - std::min(*limit, taken);
      if (bytes < left.bytes) {
        left.bytes = bytes;
        left.limit = "cgroup " + (path.empty() ? "/" : path) + " (" + std::string(files.limit) + " " +
                     format_bytes(*limit) + ", " + format_bytes(taken) + " in use)";
      }
    }
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

MemoryLeft memory_left(std::uint64_t machine_reserve, const std::string& root) {
  MemoryLeft left{kUnlimited, "no limit found"};
  if (const auto kib = read_field(root + "/proc/meminfo", "MemAvailable:")) {
    const std::uint64_t available = *kib * 1024;
    left.bytes = available - std::min(available, machine_reserve);
    left.limit = "the machine (MemAvailable " + format_bytes(available) + ", " + format_bytes(machine_reserve) +
                 " kept in reserve)";
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "hierarchy:controllers:path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      apply_cgroup(left, root + "/sys/fs/cgroup", path, kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      apply_cgroup(left, root + "/sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return left;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace callboard::kernels
