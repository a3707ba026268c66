#include "kernels/memory/memory_budget.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

constexpr std::uint64_t kMebibyte = 1u << 20;

/// A /proc and /sys of our own.
class FakeSystem {
 public:
  FakeSystem() {
    const char* base = std::getenv("TMPDIR");
    std::string pattern = std::string(base ? base : "/tmp") + "/callboard-budget-XXXXXX";
    REQUIRE(::mkdtemp(pattern.data()));
    root = pattern;
  }
  ~FakeSystem() {
    std::error_code ignored;
    std::filesystem::remove_all(root, ignored);
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  void machine(std::uint64_t available_mib) {
    write("/proc/meminfo", "MemTotal:       99999999 kB\nMemAvailable:   " + std::to_string(available_mib * 1024) +
                               " kB\nMemAvailableX:  1 kB\n");
  }
  std::string root;
};

TEST_CASE("what the machine has left is MemAvailable minus the reserve") {
  FakeSystem system;
  system.machine(1000);
  REQUIRE(memory_left(400 * kMebibyte, system.root).bytes == 600 * kMebibyte);
  REQUIRE(memory_left(2000 * kMebibyte, system.root).bytes == 0);
  REQUIRE(memory_left(0, system.root).limit.find("MemAvailable") != std::string::npos);
}

TEST_CASE("a cgroup v2 limit counts at every level, without reclaimable file pages") {
  FakeSystem system;
  system.machine(10'000);
  system.write("/proc/self/cgroup", "0::/user/job\n");
  system.write("/sys/fs/cgroup/user/job/memory.max", "max\n");
  system.write("/sys/fs/cgroup/user/job/memory.current", "5\n");
  system.write("/sys/fs/cgroup/user/memory.max", std::to_string(1000 * kMebibyte));
  system.write("/sys/fs/cgroup/user/memory.current", std::to_string(700 * kMebibyte));
  system.write("/sys/fs/cgroup/user/memory.stat",
               "anon 1\ninactive_file_x 5\ninactive_file " + std::to_string(100 * kMebibyte) + "\n");
  const MemoryLeft left = memory_left(0, system.root);
  REQUIRE(left.bytes == 400 * kMebibyte);
  REQUIRE(left.limit.find("cgroup /user") != std::string::npos);
}

TEST_CASE("a cgroup v1 limit counts, also where a container sees only its own part of the tree") {
  FakeSystem system;
  system.machine(10'000);
  system.write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n");
  system.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(300 * kMebibyte));
  system.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(400 * kMebibyte));
  REQUIRE(memory_left(0, system.root).bytes == 0);
}

TEST_CASE("what cannot be read sets no limit") {
  FakeSystem system;
  REQUIRE(memory_left(kMachineReserve, system.root).bytes == UINT64_MAX);
  system.write("/proc/meminfo", "MemAvailable: lots\n");
  system.write("/proc/self/cgroup", "garbage\n0::\n");
  REQUIRE(memory_left(kMachineReserve, system.root).bytes == UINT64_MAX);
}

TEST_CASE("the limits of the machine that runs this test can be read") {
  REQUIRE(memory_left(0).bytes > 0);
  REQUIRE(memory_left(0).bytes < UINT64_MAX);
}

}  // namespace
}  // namespace callboard::kernels
