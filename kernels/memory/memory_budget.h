// How much memory may still be taken. Nothing refuses a memfd that outgrows the machine, the kernel kills: so
// everything that grows asks here first.
#pragma once

#include <cstdint>
#include <string>

namespace callboard::kernels {

constexpr std::uint64_t kMachineReserve = 512u << 20;  ///< of MemAvailable, left to everybody else

struct MemoryLeft {
  std::uint64_t bytes = 0;
  std::string
      limit;  ///< what sets it, for the error text: "the machine (MemAvailable 1.2 GiB, 512.0 MiB kept in reserve)"
};

/// The least of MemAvailable - reserve and, for each cgroup (v1 or v2) that this process is in, its limit minus its use
/// (reclaimable file pages not counted as use). What cannot be read sets no limit. Reads a few small files: tens of
/// microseconds. `root` is put in front of /proc and /sys (tests).
MemoryLeft memory_left(std::uint64_t machine_reserve, const std::string& root = {});

/// "64.0 MiB"; for error texts.
std::string format_bytes(std::uint64_t bytes);

}  // namespace callboard::kernels
