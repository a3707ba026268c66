// The cluster file as a validated structure. One table (config/schema.cpp) gives parser, JSON Schema and reference
// page.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/log.h"

namespace callboard::config {

using Millis = std::chrono::milliseconds;

struct DeviceConfig {
  std::string name;                   ///< "cpu0"; unique. From `name: "cpu{i}"` and `count`
  std::string kind = "cpu";           ///< cpu | cuda
  std::uint32_t index = 0;            ///< cuda: which GPU; cpu: number among the CPU devices
  std::string uuid;                   ///< cuda: which GPU, by CUDA's name for it, instead of its index; empty: by index
  int threads = 1;                    ///< intra-op threads
  std::uint64_t memory_limit = 0;     ///< bytes of results and activations; 0: what the machine has left
  std::string output_device = "cpu";  ///< cuda: where results for clients lie, cpu | cuda | cuda_only
  std::string cuda_graph = "auto";    ///< cuda: auto | never
  std::string python = "none";        ///< its GIL domain: none | inline | process
};

/// A Python function that devices with a GIL domain may run.
struct PythonKernelConfig {
  std::string target;   ///< "module:function"
  std::string schema;   ///< empty: the function says it (@callboard.kernel)
  bool random = false;  ///< with `schema` only
  std::string warm_up;  ///< a function of the same module; empty: none but the function's own
};

struct PythonConfig {
  std::string executable;         ///< absolute; empty: the Python that Callboard was built with
  std::vector<std::string> path;  ///< absolute folders, in front of sys.path
  std::vector<PythonKernelConfig> kernels;
  // of devices with `python: process`
  std::uint32_t count = 1;         ///< processes that serve calls, of each device
  std::uint32_t spare = 0;         ///< warm ones that replace one of those
  Millis watchdog{30'000};         ///< a call may take
  Millis start_timeout{120'000};   ///< until a process is ready
  std::uint64_t memory_limit = 0;  ///< of a process's ordinary memory; 0: none
};

/// A shared library of operators that every device loads.
struct OperatorLibraryConfig {
  std::string path;    ///< absolute
  std::string sha256;  ///< of the file, 64 hexadecimal digits; empty: not checked
};

struct RestartConfig {
  std::string policy = "on-failure";  ///< never | on-failure
  std::uint32_t max = 5;
  Millis window{60'000};
  Millis backoff_min{200};
  Millis backoff_max{30'000};
};

struct HeartbeatConfig {
  Millis interval{500};
  Millis suspect{1'500};
  Millis dead{3'000};
};

struct LimitsConfig {
  std::uint32_t requests_per_client = 1'024;
  std::uint32_t clients = 256;
  std::uint32_t device_fragments = 256;  ///< sent to a device and not answered; the rest waits in the coordinator
  std::uint32_t attempts = 3;            ///< of a request whose devices die, the first included
  std::uint64_t edge_bytes = 0;  ///< kept on a device for other devices; 0: a quarter of its memory_limit, or 1 GiB
  Millis deadline{120'000};      ///< of a request that names none
  Millis start_timeout{60'000};
  Millis stop_grace{5'000};
};

struct LogConfig {
  log::Level level = log::Level::kInfo;
  std::string dir;  ///< empty: <run dir>/logs
};

struct TracingConfig {
  bool enabled = false;
  std::string file;  ///< where `callboard down` and launch() leave the Chrome trace; empty: ./trace.json
};

struct ChecksConfig {
  bool outputs = true;  ///< step 5 of Kernel::run
  bool nan = false;     ///< refuse NaN and Inf in outputs
};

struct ClusterConfig {
  std::uint32_t version = 1;
  std::string name = "local";
  std::vector<DeviceConfig> devices;
  std::string retry = "pure";  ///< never | pure
  RestartConfig restart;
  HeartbeatConfig heartbeat;
  LimitsConfig limits;
  LogConfig log;
  TracingConfig tracing;
  ChecksConfig checks;
  PythonConfig python;
  std::vector<OperatorLibraryConfig> operators;
};

/// Parses and validates. `file` is only used in error messages. All findings at once (at most 50, sorted by position)
/// as causes; each message starts "file:line:column: " (1-based) and names key, value, what is allowed and the nearest
/// name. For text that is JSON (callboard.launch of a dict) they also name the path, "devices[0].kind".
Result<ClusterConfig> parse_cluster(std::string_view text, std::string_view file);
Result<ClusterConfig> load_cluster(const std::string& path);

/// JSON Schema 2020-12 of the cluster file, for editors.
std::string cluster_schema_json();
/// The reference page in Markdown: each key with type, default, unit, range and meaning.
std::string cluster_reference_markdown();
/// The effective configuration as YAML that parses to the same structure.
std::string to_yaml(const ClusterConfig& config);

}  // namespace callboard::config
