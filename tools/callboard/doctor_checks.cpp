#include "tools/callboard/doctor_checks.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "actors/core/process.h"
#include "actors/core/run_dir.h"
#include "config/machine.h"
#include "messages/base/clock.h"
#include "messages/base/fd.h"
#include "tools/callboard/console.h"
#include "tools/callboard/gpu_probe.h"
#include "tools/callboard/programs.h"

namespace callboard::cli {
namespace {

using Level = Check::Level;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value in brackets of "always [never] advise".
std::string chosen(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? std::string()
             : line.substr(open + 1, close - open - 1);
}

Check kernel() {
  utsname names{};
  int major = 0, minor = 0;
  if (uname(&names) != 0 || std::sscanf(names.release, "%d.%d", &major, &minor) != 2)
    return {"kernel", Level::kWarn, "unknown version", ""};
  const std::string found = std::string("Linux ") + names.release;
  const auto at_least = [&](int a, int b) { return major > a || (major == a && minor >= b); };
  if (!at_least(5, 14))
    return {"kernel", Level::kFail, found, "Linux 5.14 or later is needed (MADV_POPULATE_WRITE, pidfd)"};
  if (!at_least(6, 7)) {
    return {"kernel", Level::kOk,
            found + "; without PAGEMAP_SCAN (6.7) readers give back whole blocks instead of the pages they wrote", ""};
  }
  return {"kernel", Level::kOk, found, ""};
}

Check sealed_memory() {
  const UniqueFd file(memfd_create("callboard-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file)
    return {"memfd", Level::kFail, std::string("memfd_create: ") + std::strerror(errno),
            "a container's seccomp profile may forbid it"};
  if (ftruncate(file.get(), 1 << 20) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return {"memfd", Level::kFail, std::string("sealing: ") + std::strerror(errno),
            "tensors cannot be shared between processes without it"};
  }
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const UniqueFd reopened(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened)
    return {"memfd", Level::kFail, std::string("re-open through /proc: ") + std::strerror(errno), "is /proc mounted?"};
  return {"memfd", Level::kOk, "sealed and re-opened read-only", ""};
}

Check process_handles() {
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (self) return {"pidfd", Level::kOk, "ends of processes are noticed at once", ""};
  return {"pidfd", Level::kFail, std::string("pidfd_open: ") + std::strerror(errno),
          "a container's seccomp profile may forbid it"};
}

Check huge_pages() {
  const std::string value = chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  if (value.empty()) return {"huge pages", Level::kOk, "not available for shared memory", ""};
  const bool off = value == "never" || value == "deny";
  return {"huge pages", Level::kOk,
          "shmem_enabled is '" + value + "'" + (off ? "; 'advise' makes first use of large tensors faster" : ""), ""};
}

Check overcommit() {
  const std::string value = first_line("/proc/sys/vm/overcommit_memory");
  if (value != "2")
    return {"overcommit", Level::kOk, "vm.overcommit_memory is " + (value.empty() ? "unknown" : value), ""};
  return {"overcommit", Level::kWarn, "vm.overcommit_memory is 2: private mappings of results count in full",
          "set it to 0 or 1, or raise vm.overcommit_ratio"};
}

Check open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = limit.rlim_cur == RLIM_INFINITY
                                ? "unlimited"
                                : std::to_string(limit.rlim_cur) + " (at most " + std::to_string(limit.rlim_max) + ")";
  if (limit.rlim_cur < 256) return {"open files", Level::kFail, found, "ulimit -n 4096"};
  if (limit.rlim_cur < 1024)
    return {"open files", Level::kWarn, found, "ulimit -n 4096: each peer, segment and program needs some"};
  return {"open files", Level::kOk, found, ""};
}

Check file_size() {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {"file size", Level::kOk, "unlimited", ""};
  const std::string found = "limited to " + size_text(limit.rlim_cur) + ", which also limits memory segments";
  return {"file size", limit.rlim_cur < (512u << 20) ? Level::kFail : Level::kWarn, found, "ulimit -f unlimited"};
}

Check memory() {
  const std::uint64_t whole = config::Machine::here().memory_bytes;
  std::ifstream info("/proc/meminfo");
  std::uint64_t available = 0;
  for (std::string line; std::getline(info, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) available = std::uint64_t{kib} << 10;
  }
  const long pages = sysconf(_SC_PHYS_PAGES);
  const std::uint64_t installed =
      pages > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
  std::string found =
      size_text(whole) +
      (whole < installed ? " (limit of the cgroup; installed " + size_text(installed) + ")" : " installed") + ", " +
      size_text(std::min(available, whole)) + " available";
  if (available < (1u << 30))
    return {"memory", Level::kWarn, found, "a device actor takes about 120 MiB before its first tensor"};
  return {"memory", Level::kOk, found, ""};
}

Check cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return {"cores", Level::kOk, std::to_string(usable) + " usable", ""};
}

Check run_directory() {
  const auto root = actors::run_root();
  if (!root) return {"run directory", Level::kFail, root.error().message, root.error().hint};
  constexpr std::size_t kNameMax = 40, kRootMax = 74 - 1 - kNameMax;  // what config/checks.cpp allows
  const std::string found = *root + " (" + std::to_string(root->size()) + " bytes)";
  if (root->size() <= kRootMax) return {"run directory", Level::kOk, found, ""};
  return {"run directory", root->size() + 6 > 74 ? Level::kFail : Level::kWarn,
          found + "; sockets' paths end at 107 bytes, so names of clusters must be short",
          "set CALLBOARD_RUN_DIR to a short directory such as /tmp/cb"};
}

/// By name, because only the transport may include ZeroMQ's header.
Check message_library() {
  auto* version = reinterpret_cast<void (*)(int*, int*, int*)>(dlsym(RTLD_DEFAULT, "zmq_version"));
  if (version == nullptr) return {"libzmq", Level::kOk, "linked in", ""};
  int major = 0, minor = 0, patch = 0;
  version(&major, &minor, &patch);
  const std::string found = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  const bool enough = std::make_pair(major, minor) > std::make_pair(4, 3) || (major == 4 && minor == 3 && patch >= 4);
  return {"libzmq", enough ? Level::kOk : Level::kFail, found, enough ? "" : "4.3.4 or later is needed"};
}

/// What the driver says without CUDA: enough to tell a missing driver from a missing plug-in.
std::string driver_says() {
  std::error_code error;
  std::vector<std::string> names;
  for (auto entry = std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::ifstream info(entry->path() / "information");
    for (std::string line; std::getline(info, line);) {
      if (line.starts_with("Model:")) names.push_back(line.substr(line.find_first_not_of(" \t", 6)));
    }
  }
  std::string found = names.empty() ? "no NVIDIA driver is loaded" : std::to_string(names.size()) + " in /proc: ";
  for (std::size_t i = 0; i < names.size(); ++i) found += (i > 0 ? ", " : "") + names[i];
  if (!names.empty() && !std::filesystem::exists("/dev/nvidiactl", error)) found += ", but no /dev/nvidiactl";
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    found += std::string("; CUDA_VISIBLE_DEVICES is '") + visible + "'";
  }
  return found;
}

/// Without GPUs all is well: CPU clusters need none. A driver with GPUs that a device actor cannot use is worth a look.
Check gpus() {
  const auto programs = find_programs();
  if (!programs) return {"GPUs", Level::kOk, driver_says(), ""};
  std::error_code error;
  const bool driver = std::filesystem::exists("/proc/driver/nvidia/version", error);
  const auto found = probe_gpus(*programs);
  if (!found) {
    return {"GPUs", driver ? Level::kWarn : Level::kOk,
            "devices of kind cuda do not start here: " + found.error().message + "; " + driver_says(),
            found.error().hint};
  }
  std::string list = std::to_string(found->size()) + ":";
  for (const Gpu& gpu : *found) {
    list += " [" + std::to_string(gpu.index) + "] " + gpu.name + ", " + size_text(gpu.memory_bytes) + ", capability " +
            gpu.compute_capability + ", " + gpu.uuid + ";";
  }
  list.pop_back();
  return {"GPUs", Level::kOk, list, ""};
}

Check device_program() {
  const auto programs = find_programs();
  if (!programs) return {"device actor", Level::kFail, programs.error().message, programs.error().hint};
  char log[] = "/tmp/callboard-doctor-XXXXXX";
  const UniqueFd file(mkstemp(log));
  actors::SpawnOptions options;
  options.program = programs->device;
  options.arguments = {"--version"};
  options.environment = actors::environment_with({});
  options.log_file = log;
  auto process = actors::Process::spawn(options);
  Check check{"device actor", Level::kFail, programs->device + ": ",
              "look for libraries that are missing: ldd " + programs->device};
  if (!process) {
    check.found += process.error().message;
  } else if (const auto exit = process->reap_until(after(Clock::now(), std::chrono::seconds(30))); !exit) {
    check.found += "does not start within 30 s";
  } else if (exit->signalled || exit->code != 0) {
    const std::string said = process->log_tail();
    check.found += exit->to_string() + " " + said;
    if (said.find("libtorch") != std::string::npos) {
      check.advice = "the PyTorch that it was built with must be in the same environment: see pip show callboard";
    }
  } else {
    std::string version = process->log_tail(1);
    while (!version.empty() && version.back() == '\n') version.pop_back();
    check = {"device actor", Level::kOk, programs->device + (version.empty() ? "" : ", version " + version), ""};
  }
  unlink(log);
  return check;
}

}  // namespace

std::vector<Check> examine_machine() {
  return {kernel(), sealed_memory(), process_handles(), huge_pages(),      overcommit(), open_files(),    file_size(),
          memory(), cores(),         run_directory(),   message_library(), gpus(),       device_program()};
}

}  // namespace callboard::cli
