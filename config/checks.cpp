#include "config/checks.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "config/kernel_schema.h"
#include "config/scalars.h"
#include "config/validation.h"

namespace callboard::config {
namespace {

constexpr std::string_view kNumber = "{i}";
constexpr std::size_t kSocketPathMax = 107;  // sockaddr_un holds 108 bytes with the terminating zero
constexpr std::size_t kSocketNameMax = 32;   // of a file in the run directory: "<device>.<incarnation>.sock"
constexpr std::size_t kIncarnationDigits = 6;
static_assert(kDeviceNameMax + 1 + kIncarnationDigits + 5 == kSocketNameMax,
              "a device's socket fits its place in the path");
/// Names that other actors of a cluster have.
constexpr std::string_view kReserved[] = {"coordinator", "node", "client"};

class Checks {
 public:
  Checks(ClusterRead& read, const Machine& machine, Findings& findings)
      : read_(read), machine_(machine), findings_(findings) {}

  void run() {
    check_name();
    check_times();
    check_tracing();
    check_python_kernels();
    check_operator_libraries();
    expand_devices();
    check_paths();
    check_memory();
    check_kinds();
    check_python_devices();
    check_python_here();
  }

 private:
  Place place_of(std::string_view path) const {
    const auto found = read_.given.find(path);
    return found == read_.given.end() ? Place{} : found->second;
  }
  /// Of a key of an item of a list, or of the item.
  template <class Read>
  static Place place_of(const Read& read, std::string_view key) {
    const auto found = read.given.find(key);
    return found == read.given.end() ? read.place : found->second;
  }
  void error(ErrorCode code, Place place, std::string message, std::string hint = {}) {
    findings_.error(code, place.at, place.width, std::move(message), std::move(hint));
  }

  void check_name() {
    if (is_cluster_name(read_.config.name)) return;
    error(ErrorCode::kConfigOutOfRange, place_of("name"),
          "name is '" + shown(read_.config.name) + "', which is not a cluster name",
          "use 1 to 40 lower-case letters, digits and '-', not starting with '-'");
  }

  /// `a` must be less than `b` (or at most): at the one that the file gives, else there is nothing to blame.
  void check_order(std::string_view a, Millis a_value, std::string_view b, Millis b_value, bool equal_allowed) {
    if (a_value < b_value || (equal_allowed && a_value == b_value)) return;
    const auto text = [this](std::string_view path, Millis value) {
      return std::string(path) + " (" + write_duration(value) + (read_.given.contains(path) ? ")" : ", the default)");
    };
    error(ErrorCode::kConfigConflict, place_of(read_.given.contains(a) ? a : b),
          text(a, a_value) + " must be " + (equal_allowed ? "at most " : "less than ") + text(b, b_value));
  }

  void check_times() {
    const HeartbeatConfig& beat = read_.config.heartbeat;
    check_order("heartbeat.interval", beat.interval, "heartbeat.suspect", beat.suspect, false);
    check_order("heartbeat.suspect", beat.suspect, "heartbeat.dead", beat.dead, false);
    if (beat.dead < 3 * beat.interval) {
      const std::string_view key = read_.given.contains("heartbeat.dead") ? "heartbeat.dead" : "heartbeat.interval";
      error(ErrorCode::kConfigConflict, place_of(key),
            "heartbeat.dead (" + write_duration(beat.dead) + ") must be at least three times heartbeat.interval (" +
                write_duration(beat.interval) + "), so that one late beat is no death",
            "set heartbeat.dead to " + write_duration(3 * beat.interval) + " or more");
    }
    check_order("restart.backoff.min", read_.config.restart.backoff_min, "restart.backoff.max",
                read_.config.restart.backoff_max, true);
  }

  void check_tracing() {
    if (read_.config.tracing.enabled || read_.config.tracing.file.empty()) return;
    const Place place = place_of("tracing.file");
    findings_.warning(ErrorCode::kConfigConflict, place.at, place.width,
                      "tracing.file is given, but tracing.enabled is false",
                      "add enabled: true, or nothing is recorded");
  }

  // -- Python kernels
  // -----------------------------------------------------------------------------------------------------

  void check_python_kernels() {
    std::map<std::string, std::string> targets;
    std::map<std::string, std::string> operators;
    for (KernelRead& read : read_.kernels) {
      const PythonKernelConfig& kernel = read.kernel;
      if (!read.given.contains("target")) {
        error(ErrorCode::kConfigMissing, read.place, read.label + " has no target",
              "name the function, as in {target: \"my_module:my_function\"}");
      } else if (!is_python_target(kernel.target)) {
        error(ErrorCode::kConfigOutOfRange, place_of(read, "target"),
              read.label + ".target is '" + shown(kernel.target) + "', which is not of the form module:function",
              "as in my_module:my_function; both may have dots");
      } else if (const auto [owner, fresh] = targets.try_emplace(kernel.target, read.label); !fresh) {
        error(ErrorCode::kConfigConflict, place_of(read, "target"),
              "the function '" + shown(kernel.target) + "' is named by " + owner->second + " and by " + read.label,
              "remove one");
      }
      if (read.given.contains("random") && !read.given.contains("schema")) {
        error(ErrorCode::kConfigConflict, place_of(read, "random"), read.label + ".random is given without a schema",
              "remove it: a decorated function says it itself, @callboard.kernel(deterministic=False)");
      }
      if (read.given.contains("schema")) check_schema(read, operators);
      if (read.given.contains("warm_up") && !is_python_name(kernel.warm_up)) {
        error(ErrorCode::kConfigOutOfRange, place_of(read, "warm_up"),
              read.label + ".warm_up is '" + shown(kernel.warm_up) + "', which is not a function's name",
              "it is looked for in the target's own module");
      }
      read_.config.python.kernels.push_back(std::move(read.kernel));
    }
  }

  void check_operator_libraries() {
    std::map<std::string, std::string> paths;
    for (LibraryRead& read : read_.libraries) {
      const OperatorLibraryConfig& library = read.library;
      if (!read.given.contains("path")) {
        error(ErrorCode::kConfigMissing, read.place, read.label + " has no path",
              "name the library, as in {path: /srv/libmyops.so}");
      } else if (const auto [owner, fresh] = paths.try_emplace(library.path, read.label); !fresh) {
        error(ErrorCode::kConfigConflict, place_of(read, "path"),
              "the library " + shown(library.path) + " is named by " + owner->second + " and by " + read.label,
              "remove one");
      } else if (const std::string problem = problem_with_library(library.path); !problem.empty()) {
        const Place place = place_of(read, "path");
        findings_.warning(ErrorCode::kFileNotFound, place.at, place.width, read.label + ".path: " + problem,
                          "the cluster does not start here");
      }
      if (read.given.contains("sha256") && !is_sha256(library.sha256)) {
        error(ErrorCode::kConfigOutOfRange, place_of(read, "sha256"),
              read.label + ".sha256 is '" + shown(library.sha256) + "', which is not 64 hexadecimal digits",
              "as `sha256sum FILE` prints it");
      }
      read_.config.operators.push_back(std::move(read.library));
    }
  }

  /// `operators`: those of earlier entries, and which brings them.
  void check_schema(const KernelRead& read, std::map<std::string, std::string>& operators) {
    const std::string& schema = read.kernel.schema;
    if (const auto found = find_schema_problem(schema)) {
      error(ErrorCode::kConfigOutOfRange, place_of(read, "schema"),
            read.label + ".schema is '" + shown(schema) + "', which " + found->problem, found->hint);
      return;
    }
    const auto [owner, fresh] = operators.try_emplace(schema_operator(schema), read.label);
    if (fresh) return;
    error(ErrorCode::kConfigConflict, place_of(read, "schema"),
          "the operator '" + shown(owner->first) + "' is brought by " + owner->second + " and by " + read.label,
          "give one of them another name");
  }

  /// Kernels without a device that runs them, and what is said of processes that there are none of.
  void check_python_devices() {
    const auto in_processes = [](const DeviceConfig& device) { return device.python == "process"; };
    const bool any = std::any_of(read_.config.devices.begin(), read_.config.devices.end(), in_processes);
    for (const char* key : {"count", "spare", "watchdog", "start_timeout", "memory_limit"}) {
      const std::string path = std::string("python.") + key;
      if (any || read_.config.devices.empty() || !read_.given.contains(path)) continue;
      const Place place = place_of(path);
      findings_.warning(ErrorCode::kConfigConflict, place.at, place.width,
                        path + " has no effect: no device has python: process",
                        "remove it, or set python: process at a device");
    }
    if (any && read_.config.python.kernels.empty()) {
      const Place place = place_of("devices");
      findings_.warning(ErrorCode::kConfigConflict, place.at, place.width,
                        "a device has python: process, but python.kernels names no kernel",
                        "name one, or remove it: the processes cost memory");
    }
    const auto runs = [](const DeviceConfig& device) { return device.python != "none"; };
    if (read_.config.python.kernels.empty() || read_.config.devices.empty()) return;
    if (std::any_of(read_.config.devices.begin(), read_.config.devices.end(), runs)) return;
    const Place place = place_of("python.kernels");
    findings_.warning(ErrorCode::kConfigConflict, place.at, place.width,
                      "python.kernels names kernels, but every device has python: none",
                      "remove `python: none` from a device, or they cannot run");
  }

  // -- devices
  // ------------------------------------------------------------------------------------------------------------

  void expand_devices() {
    const bool all_believed =
        std::none_of(read_.devices.begin(), read_.devices.end(), [](const EntryRead& e) { return e.broken; });
    std::int64_t total = 0;
    for (EntryRead& entry : read_.devices) {
      if (entry.broken) continue;
      total += entry.entry.count;
      if (total > kDevicesMax) {
        return error(ErrorCode::kConfigOutOfRange, place_of(entry, "count"),
                     "devices holds more than " + std::to_string(kDevicesMax) + " devices (" + std::to_string(total) +
                         " up to " + entry.label + ")");
      }
      if (!check_entry(entry) || !all_believed) continue;
      expand_entry(entry);
    }
  }

  bool check_entry(EntryRead& read) {
    DeviceEntry& entry = read.entry;
    const std::size_t before = findings_.errors();
    if (!entry.index.empty()) {
      const Place place = place_of(read, "index");
      if (entry.kind == "cpu") {
        error(ErrorCode::kConfigConflict, place, read.label + ".index is for kind cuda only",
              "remove it: CPU devices are numbered as they stand");
      }
      const bool list = entry.index.size() > 1;
      if (list && !read.given.contains("count")) entry.count = static_cast<std::int64_t>(entry.index.size());
      if (list && entry.count != static_cast<std::int64_t>(entry.index.size())) {
        error(ErrorCode::kConfigConflict, place,
              read.label + ".index names " + std::to_string(entry.index.size()) + " GPUs, but count is " +
                  std::to_string(entry.count),
              "remove count");
      }
    }
    check_gpu_keys(read);
    if (!read.given.contains("name")) return findings_.errors() == before;
    const Place place = place_of(read, "name");
    if (entry.count > 1 && entry.name.find(kNumber) == std::string::npos) {
      error(ErrorCode::kConfigConflict, place,
            read.label + ".name is '" + shown(entry.name) + "' for " + std::to_string(entry.count) +
                " devices, whose names would be equal",
            "put {i} into it, as in \"" + shown(entry.name) + "{i}\"");
    }
    if (!is_device_name(named(entry.name, 0))) {
      error(ErrorCode::kConfigOutOfRange, place,
            read.label + ".name is '" + shown(entry.name) + "', which is not a device name",
            "use a lower-case letter, then lower-case letters, digits, '-' and '_', at most 20 together; {i} stands "
            "for the number");
    }
    return findings_.errors() == before;
  }

  void check_gpu_keys(const EntryRead& read) {
    if (read.entry.kind == "cpu") {
      for (const char* key : {"uuid", "output_device", "cuda_graph"}) {
        if (!read.given.contains(key)) continue;
        error(ErrorCode::kConfigConflict, place_of(read, key), read.label + "." + key + " is for kind cuda only",
              "remove it");
      }
      return;
    }
    if (!read.given.contains("uuid")) return;
    const Place place = place_of(read, "uuid");
    if (!is_gpu_uuid(read.entry.uuid)) {
      error(ErrorCode::kConfigOutOfRange, place,
            read.label + ".uuid is '" + shown(read.entry.uuid) + "', which is no GPU's UUID",
            "write it as nvidia-smi -L does: GPU- and hexadecimal digits");
    } else if (read.given.contains("index")) {
      error(ErrorCode::kConfigConflict, place, read.label + " names its GPU twice, by uuid and by index", "remove one");
    } else if (read.entry.count > 1) {
      error(ErrorCode::kConfigConflict, place,
            read.label + ".uuid names one GPU, but count is " + std::to_string(read.entry.count),
            "write one entry for each GPU");
    } else if (!read.given.contains("name") || read.entry.name.find(kNumber) != std::string::npos) {
      error(ErrorCode::kConfigConflict, place, read.label + ".uuid needs a name beside it, without {i}",
            "as in {kind: cuda, uuid: " + shown(read.entry.uuid) +
                ", name: gpu}: the number of a UUID is not known here");
    } else if (const auto [owner, fresh] = uuids_.try_emplace(read.entry.uuid, read.label); !fresh) {
      error(ErrorCode::kConfigConflict, place,
            "GPU " + read.entry.uuid + " is named by " + owner->second + " and by " + read.label,
            "one device actor owns a GPU");
    }
  }

  static std::string named(std::string pattern, std::uint32_t number) {
    if (const std::size_t at = pattern.find(kNumber); at != std::string::npos)
      pattern.replace(at, kNumber.size(), std::to_string(number));
    return pattern;
  }

  void expand_entry(const EntryRead& read) {
    const DeviceEntry& entry = read.entry;
    const std::string pattern = entry.name.empty() ? entry.kind + std::string(kNumber) : entry.name;
    for (std::int64_t i = 0; i < entry.count; ++i) {
      DeviceConfig device;
      device.kind = entry.kind;
      device.index = number_of(entry, i);
      device.name = named(pattern, device.index);
      device.threads = static_cast<int>(entry.threads);
      device.memory_limit = entry.memory_limit;
      device.uuid = entry.uuid;
      device.output_device = entry.output_device;
      device.cuda_graph = entry.cuda_graph;
      device.python = entry.python;
      if (entry.python == "auto") device.python = read_.config.python.kernels.empty() ? "none" : "inline";
      if (check_device(read, device)) read_.config.devices.push_back(std::move(device));
    }
  }

  std::uint32_t number_of(const DeviceEntry& entry, std::int64_t i) {
    if (entry.kind == "cpu") return next_cpu_++;
    if (!entry.uuid.empty()) return 0;  // said by the UUID alone
    if (entry.index.size() > 1) return entry.index[static_cast<std::size_t>(i)];
    if (entry.index.size() == 1) return entry.index[0] + static_cast<std::uint32_t>(i);
    std::uint32_t free = 0;
    while (cuda_.contains(free)) ++free;
    return free;
  }

  bool check_device(const EntryRead& read, const DeviceConfig& device) {
    const std::size_t before = findings_.errors();
    if (device.kind == "cuda" && device.uuid.empty()) {
      const auto [owner, fresh] = cuda_.try_emplace(device.index, read.label);
      if (!fresh) {
        error(ErrorCode::kConfigConflict, place_of(read, "index"),
              "GPU " + std::to_string(device.index) + " is named " +
                  (owner->second == read.label ? "twice by " + read.label
                                               : "by " + owner->second + " and by " + read.label),
              "one device actor owns a GPU");
        return false;  // its name would be the same, and would be told as a second fault
      }
    }
    const Place place = place_of(read, "name");
    if (std::find(std::begin(kReserved), std::end(kReserved), device.name) != std::end(kReserved)) {
      error(ErrorCode::kConfigConflict, place,
            read.label + ".name is '" + device.name + "', which another actor of the cluster has",
            "take another name, such as cpu" + std::to_string(device.index));
    }
    if (device.name.size() > kDeviceNameMax) {
      error(ErrorCode::kConfigOutOfRange, place,
            read.label + ": the name '" + device.name + "' has more than " + std::to_string(kDeviceNameMax) +
                " characters");
    }
    const auto [owner, fresh] = names_.try_emplace(device.name, read.label);
    if (!fresh) {
      error(ErrorCode::kConfigConflict, place,
            "the name '" + device.name + "' is taken twice: by " + owner->second + " and by " + read.label,
            "names are unique; {i} is the number among all devices of a kind");
    }
    return findings_.errors() == before;
  }

  // -- the machine
  // ----------------------------------------------------------------------------------------------------------

  void check_paths() {
    if (machine_.run_root.empty() || !is_cluster_name(read_.config.name)) return;
    const std::string path = machine_.run_root + "/" + read_.config.name;
    constexpr std::size_t kRunDirMax = kSocketPathMax - kSocketNameMax - 1;
    if (path.size() <= kRunDirMax) return;
    error(ErrorCode::kConfigOutOfRange, place_of("name"),
          "the run directory " + path + " has " + std::to_string(path.size()) + " bytes; at most " +
              std::to_string(kRunDirMax) + " are possible, because a socket's path ends at " +
              std::to_string(kSocketPathMax),
          "set CALLBOARD_RUN_DIR to a short directory such as /tmp/cb, or shorten the name");
  }

  void check_memory() {
    if (machine_.memory_bytes == 0) return;
    std::uint64_t sum = 0;
    for (const DeviceConfig& device : read_.config.devices) {
      // Each is at most 1 PiB (the schema's range) and there are at most 256: no overflow.
      if (device.kind == "cpu") sum += device.memory_limit;
    }
    if (sum <= machine_.memory_bytes) return;
    const Place place = place_of("devices");
    findings_.warning(ErrorCode::kConfigConflict, place.at, place.width,
                      "the CPU devices may use " + write_size(sum >> 20 << 20) + " together; this machine has " +
                          write_size(machine_.memory_bytes >> 20 << 20),
                      "lower memory_limit, or expect the system to kill processes when all are used in full");
  }

  /// A warning: the file may be for another machine. Starting it here is refused (check_runs_here).
  void check_kinds() {
    std::set<std::string> told;
    for (const EntryRead& read : read_.devices) {
      const std::string& kind = read.entry.kind;
      if (read.broken || machine_.runs(kind) || !told.insert(kind).second) continue;
      const Place place = place_of(read, "kind");
      findings_.warning(ErrorCode::kUnsupported, place.at, place.width,
                        "this installation has no backend for devices of kind '" + kind + "'",
                        "the cluster does not start here");
    }
  }

  /// Likewise.
  void check_python_here() {
    if (machine_.python) return;
    for (const DeviceConfig& device : read_.config.devices) {
      if (device.python == "none") continue;
      const Place place = place_of(read_.given.contains("python.kernels") ? "python.kernels" : "devices");
      findings_.warning(ErrorCode::kUnsupported, place.at, place.width,
                        "this installation cannot run Python kernels, which device '" + device.name + "' is to run",
                        "the cluster does not start here");
      return;
    }
  }

  ClusterRead& read_;
  const Machine& machine_;
  Findings& findings_;
  std::uint32_t next_cpu_ = 0;
  std::map<std::uint32_t, std::string> cuda_;  ///< GPU → label of its entry
  std::map<std::string, std::string> uuids_;   ///< likewise, by UUID
  std::map<std::string, std::string, std::less<>> names_;
};

}  // namespace

void check_cluster(ClusterRead& read, const Machine& machine, Findings& findings) {
  Checks(read, machine, findings).run();
}

}  // namespace callboard::config
