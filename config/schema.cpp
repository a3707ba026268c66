#include "config/schema.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <type_traits>
#include <utility>

#include "config/scalars.h"
#include "messages/limits.h"

namespace callboard::config {
namespace {

constexpr std::int64_t kHour = 3'600'000;
constexpr std::int64_t kDay = 24 * kHour;

constexpr std::array<std::pair<std::string_view, log::Level>, 5> kLevels{{{"trace", log::Level::kTrace},
                                                                          {"debug", log::Level::kDebug},
                                                                          {"info", log::Level::kInfo},
                                                                          {"warning", log::Level::kWarning},
                                                                          {"error", log::Level::kError}}};

// The reader has checked type and range before it calls a setter, so these conversions lose nothing.
template <class T>
void store(T& target, const Value& value) {
  if constexpr (std::is_same_v<T, bool>) {
    target = std::get<bool>(value);
  } else if constexpr (std::is_same_v<T, log::Level>) {
    const auto& name = std::get<std::string>(value);
    const auto level = std::find_if(kLevels.begin(), kLevels.end(), [&](const auto& l) { return l.first == name; });
    if (level != kLevels.end()) target = level->second;
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    target = std::get<ByteSize>(value).bytes;
  } else if constexpr (std::is_integral_v<T>) {
    target = static_cast<T>(std::get<std::int64_t>(value));
  } else {
    target = std::get<T>(value);
  }
}

template <class T>
Value load(const T& source) {
  if constexpr (std::is_same_v<T, log::Level>) {
    const auto level = std::find_if(kLevels.begin(), kLevels.end(), [&](const auto& l) { return l.second == source; });
    return std::string(level == kLevels.end() ? "info" : level->first);
  } else if constexpr (std::is_same_v<T, std::uint64_t>) {
    return ByteSize{source};
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::int64_t>(source);
  } else {
    return source;
  }
}

/// Setter and getter of the member at the end of a chain: bind<&Draft::config, &ClusterConfig::log,
/// &LogConfig::dir>(field).
template <auto First, auto... Rest, class Object>
auto& member(Object& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return member<Rest...>(object.*First);
  }
}
template <auto... Chain>
Field bind(Field field) {
  field.set = [](Draft& draft, const Value& value) { store(member<Chain...>(draft), value); };
  field.get = [](const Draft& draft) { return load(member<Chain...>(draft)); };
  return field;
}

Field base(std::string_view path, FieldType type, std::string_view doc) {
  Field field;
  field.path = path;
  field.type = type;
  field.doc = doc;
  return field;
}
Field flag(std::string_view path, std::string_view doc) { return base(path, FieldType::kBool, doc); }
Field ranged(std::string_view path, FieldType type, std::int64_t min, std::int64_t max, std::string_view doc) {
  Field field = base(path, type, doc);
  field.min = min;
  field.max = max;
  return field;
}
Field choice(std::string_view path, std::vector<std::string_view> choices, std::string_view doc) {
  Field field = base(path, FieldType::kEnum, doc);
  field.choices = std::move(choices);
  return field;
}
Field with_synonyms(Field field, std::vector<std::pair<std::string_view, std::string_view>> meant) {
  field.meant = std::move(meant);
  return field;
}
Field named(std::string_view path, std::string_view pattern, std::string_view default_text, std::string_view doc) {
  Field field = base(path, FieldType::kName, doc);
  field.pattern = pattern;
  field.default_text = default_text;
  return field;
}
Field with_default(Field field, std::string_view text) {
  field.default_text = text;
  return field;
}

void add_root(std::vector<Field>& table) {
  table.push_back(bind<&Draft::config, &ClusterConfig::version>(
      ranged("version", FieldType::kInt, 1, 1, "Version of this format. Files of another version are refused.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::name>(
      named("name", "^[a-z0-9][a-z0-9-]{0,39}$", "",
            "Name of the cluster: lower-case letters, digits and '-', at most 40. One cluster of a name runs at a "
            "time. It names the run "
            "directory, so it is part of the socket paths, which Unix limits to 107 bytes.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::retry>(choice(
      "retry", {"never", "pure"},
      "What happens to a request whose device actor died: `never` fails it with the cause; `pure` runs it again on "
      "the device's next start, at most `limits.attempts` times in all and within its deadline, if all its "
      "operators are pure: without state, effects and random numbers. Others fail with the cause.")));
}

void add_devices(std::vector<Field>& table) {
  table.push_back(bind<&Draft::device, &DeviceEntry::name>(
      named("devices[].name", "^[a-z][a-z0-9_-]*(\\{i\\})?[a-z0-9_-]*$", "{kind}{i}",
            "Name of the device: a lower-case letter, then lower-case letters, digits, '-' and '_', at most 20 "
            "together. `{i}` becomes "
            "the device's number: its `index` for cuda, its place among the CPU devices of the file (from 0) for cpu. "
            "Needed with a "
            "`count` above 1.")));
  table.push_back(bind<&Draft::device, &DeviceEntry::kind>(with_synonyms(
      choice("devices[].kind", {"cpu", "cuda"}, "What the device is. One process (device actor) owns each device."),
      {{"gpu", "cuda"}})));
  table.push_back(bind<&Draft::device, &DeviceEntry::count>(
      ranged("devices[].count", FieldType::kInt, 1, kDevicesMax, "How many devices this entry stands for.")));
  table.push_back(bind<&Draft::device, &DeviceEntry::index>(
      with_default(ranged("devices[].index", FieldType::kIndexes, 0, 1023,
                          "cuda only: which GPU. One number is the first of `count` GPUs; a list names them one by "
                          "one. Without it, the GPUs that no "
                          "entry has named yet, from 0. The numbers are CUDA's (`callboard doctor` lists them)."),
                   "the next free")));
  table.push_back(bind<&Draft::device, &DeviceEntry::uuid>(
      named("devices[].uuid", "^(GPU|MIG)-[0-9a-fA-F]+(-[0-9a-fA-F]+)*$", "by index",
            "cuda only: which GPU, by its UUID as nvidia-smi writes it, instead of `index`. It stays the same when "
            "GPUs are added or taken away.")));
  table.push_back(bind<&Draft::device, &DeviceEntry::threads>(
      ranged("devices[].threads", FieldType::kInt, 1, 1024, "Threads that one operator may use (intra-op threads).")));
  table.push_back(bind<&Draft::device, &DeviceEntry::memory_limit>(
      with_default(ranged("devices[].memory_limit", FieldType::kSize, 16 << 20, std::int64_t{1} << 50,
                          "Most memory for results and activations: a size, or a percentage of the machine's memory "
                          "(the smaller of what is installed "
                          "and what the cgroup allows). An allocation above it fails with the operator's name."),
                   "what the machine has left")));
  table.push_back(bind<&Draft::device, &DeviceEntry::output_device>(
      choice("devices[].output_device", {"cpu", "cuda", "cuda_only"},
             "cuda only: where the results for clients lie. `cpu`: they are copied to the host's memory, on a stream "
             "of their own. `cuda`: they stay on the GPU and are handed over without a copy, to clients that see this "
             "GPU; others get them as with `cpu`. `cuda_only`: as `cuda`, but requests of other clients are "
             "refused.")));
  table.push_back(bind<&Draft::device, &DeviceEntry::cuda_graph>(
      choice("devices[].cuda_graph", {"auto", "never"},
             "cuda only: whether fragments whose shapes are fixed are captured as CUDA graphs and replayed. What "
             "cannot be captured runs as usual, and the device's log names the operator.")));
  table.push_back(bind<&Draft::device, &DeviceEntry::python>(with_default(
      choice(
          "devices[].python", {"auto", "none", "inline", "process"},
          "Where the device runs Python kernels (`python.kernels`): `inline`, in an interpreter in its own process; "
          "`process`, in child processes (`python.count`), whose crash or hang costs a call and not the device; or "
          "not at all. `auto`: `inline` if the file names Python kernels. Each interpreter with torch costs a second "
          "at its start and some 400 MiB; on a GPU each process also has a CUDA context of its own, some 500 MiB of "
          "the "
          "GPU's memory, and its results count for the device's `memory_limit`."),
      "auto")));
}

void add_python(std::vector<Field>& table) {
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::executable>(with_default(
      base("python.executable", FieldType::kPath,
           "The Python whose standard library, packages and torch the kernels see, as a rule a virtual environment's "
           "`bin/python`. Its version and its torch's must be those that Callboard was built with."),
      "that of the environment which holds the package, else the one that Callboard was built with")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::path>(with_default(
      base(
          "python.path", FieldType::kPaths,
          "Folders in front of `sys.path`, where the kernels' modules are. Environment variables (`PYTHONPATH` and the "
          "like), the working directory and the user's own site-packages count for nothing."),
      "none")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::count>(ranged(
      "python.count", FieldType::kInt, 1, 64,
      "With `python: process`: processes of each device that serve calls. Python kernels of one call of a program "
      "that do not need each other's results run in as many of them at once; calls of a device still follow one "
      "another.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::spare>(
      ranged("python.spare", FieldType::kInt, 0, 16,
             "With `python: process`: further processes of each device that are warm and wait. When one that serves "
             "calls ends, a spare one takes its place at once.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::watchdog>(
      ranged("python.watchdog", FieldType::kDuration, 100, kDay,
             "With `python: process`: a call that takes longer is interrupted, and two seconds later its process is "
             "replaced.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::start_timeout>(
      ranged("python.start_timeout", FieldType::kDuration, 1'000, kDay,
             "With `python: process`: how long imports and warm-ups of a process may take.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::python, &PythonConfig::memory_limit>(with_default(
      ranged(
          "python.memory_limit", FieldType::kSize, 64 << 20, std::int64_t{1} << 50,
          "With `python: process`: of a process's ordinary memory: Python's and numpy's own, tensors up to 32 KiB, and "
          "arguments that a kernel keeps beyond its call. Larger tensors that a kernel makes count against the "
          "device's `memory_limit`. A process that has more is ended, and its call fails."),
      "none")));
  table.push_back(bind<&Draft::kernel, &PythonKernelConfig::target>(
      with_default(base("python.kernels[].target", FieldType::kText,
                        "The function, as `module:function`. Only functions that stand here can run."),
                   "must be given")));
  table.push_back(bind<&Draft::kernel, &PythonKernelConfig::schema>(with_default(
      base("python.kernels[].schema", FieldType::kText,
           "The operator that the function is, in PyTorch's notation: `\"my::scale(Tensor x, float factor) -> "
           "Tensor\"`; "
           "`Tensor(a!) x` for an argument that it writes to. Not for a function that `@callboard.kernel` decorates, "
           "which says it itself."),
      "by @callboard.kernel")));
  table.push_back(bind<&Draft::kernel, &PythonKernelConfig::random>(flag(
      "python.kernels[].random",
      "Whether the function draws random numbers, so that running it again may give others. With `schema` only.")));
  table.push_back(bind<&Draft::kernel, &PythonKernelConfig::warm_up>(with_default(
      base("python.kernels[].warm_up", FieldType::kText,
           "A function of the same module that is called with the `torch.device`, once, before the device is ready: "
           "a `torch.compile` that takes its time belongs there. It counts against `limits.start_timeout`."),
      "none")));
}

void add_operators(std::vector<Field>& table) {
  table.push_back(bind<&Draft::library, &OperatorLibraryConfig::path>(
      with_default(base("operators[].path", FieldType::kPath,
                        "The library. It registers its operators when it is loaded (`TORCH_LIBRARY`), and is built for "
                        "the torch that Callboard was built with."),
                   "must be given")));
  table.push_back(bind<&Draft::library, &OperatorLibraryConfig::sha256>(
      with_default(base("operators[].sha256", FieldType::kText,
                        "SHA-256 of the file, as `sha256sum` prints it. A device does not load another one."),
                   "not checked")));
}

void add_supervision(std::vector<Field>& table) {
  table.push_back(bind<&Draft::config, &ClusterConfig::restart, &RestartConfig::policy>(choice(
      "restart.policy", {"never", "on-failure"}, "Whether an actor whose process ended by itself is started again.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::restart, &RestartConfig::max>(
      ranged("restart.max", FieldType::kInt, 1, 1000,
             "More starts than this within `window` end the restarts of that actor; it then counts as failed.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::restart, &RestartConfig::window>(
      ranged("restart.window", FieldType::kDuration, 1'000, kDay, "See `max`.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::restart, &RestartConfig::backoff_min>(
      ranged("restart.backoff.min", FieldType::kDuration, 1, kHour,
             "Wait before the second restart; it doubles with each further one.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::restart, &RestartConfig::backoff_max>(
      ranged("restart.backoff.max", FieldType::kDuration, 1, kHour, "Longest wait. Not less than `min`.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::heartbeat, &HeartbeatConfig::interval>(
      ranged("heartbeat.interval", FieldType::kDuration, 10, 60'000, "How often an actor says that it is alive.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::heartbeat, &HeartbeatConfig::suspect>(
      ranged("heartbeat.suspect", FieldType::kDuration, 10, 600'000,
             "Silence after which an actor is shown as suspect. More than `interval`, less than `dead`.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::heartbeat, &HeartbeatConfig::dead>(
      ranged("heartbeat.dead", FieldType::kDuration, 30, kHour,
             "Silence after which an actor counts as dead and is replaced. At least three times `interval`. (The end "
             "of a process is "
             "noticed at once; this is for one that hangs.)")));
}

void add_limits(std::vector<Field>& table) {
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::requests_per_client>(
      ranged("limits.requests_per_client", FieldType::kInt, 1, limits::kRequestsPerClientMax,
             "Requests of one client that are on their way; submit() waits with a further one, in order, or refuses it "
             "where it was told not to wait.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::clients>(
      ranged("limits.clients", FieldType::kInt, 1, limits::kClientsMax, "Clients that are connected at a time.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::attempts>(
      ranged("limits.attempts", FieldType::kInt, 1, 100,
             "With `retry: pure`: how often a request is run at most, the first time included.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::device_fragments>(
      ranged("limits.device_fragments", FieldType::kInt, 1, limits::kRunsPerDeviceMax,
             "Fragments that are sent to a device and not finished; further ones wait in the coordinator.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::edge_bytes>(with_default(
      ranged(
          "limits.edge_bytes", FieldType::kSize, 1 << 20, std::int64_t{1} << 50,
          "Bytes that a device keeps at most for devices which have not read them yet; then further runs wait in the "
          "coordinator, so that a slow stage slows the one before it and fills nobody's memory. A single larger run "
          "still goes alone."),
      "a quarter of the device's memory_limit, or 1 GiB")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::deadline>(
      ranged("limits.deadline", FieldType::kDuration, 1, limits::kRequestDeadlineMax.count(),
             "Deadline of a request that names none.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::start_timeout>(
      ranged("limits.start_timeout", FieldType::kDuration, 100, kHour,
             "Longest time from an actor's start until it is ready.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::limits, &LimitsConfig::stop_grace>(
      ranged("limits.stop_grace", FieldType::kDuration, 0, kHour,
             "Time that an actor has to stop by itself before it is killed.")));
}

void add_observation(std::vector<Field>& table) {
  table.push_back(bind<&Draft::config, &ClusterConfig::log, &LogConfig::level>(with_synonyms(
      choice("log.level", {"trace", "debug", "info", "warning", "error"}, "Least severe events that are written."),
      {{"warn", "warning"}})));
  table.push_back(bind<&Draft::config, &ClusterConfig::log, &LogConfig::dir>(with_default(
      base("log.dir", FieldType::kPath, "Directory of the log files, one for each actor. An absolute path."),
      "RUN_DIR/logs")));
  table.push_back(bind<&Draft::config, &ClusterConfig::tracing, &TracingConfig::enabled>(
      flag("tracing.enabled", "Record what every actor does, for chrome://tracing or Perfetto.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::tracing, &TracingConfig::file>(
      with_default(base("tracing.file", FieldType::kPath,
                        "Where the command that stops the cluster leaves the trace. An absolute path."),
                   "trace.json where the command runs")));
  table.push_back(bind<&Draft::config, &ClusterConfig::checks, &ChecksConfig::outputs>(
      flag("checks.outputs", "Check count, dtype, shape and device of every operator's outputs against the program.")));
  table.push_back(bind<&Draft::config, &ClusterConfig::checks, &ChecksConfig::nan>(
      flag("checks.nan", "Refuse NaN and infinity in outputs, naming the operator. Reads every output once.")));
}

std::vector<Field> make_fields() {
  std::vector<Field> table;
  add_root(table);
  add_devices(table);
  add_python(table);
  add_operators(table);
  add_supervision(table);
  add_limits(table);
  add_observation(table);
  return table;
}

std::string_view before_last_dot(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
std::string_view after_last_dot(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// Double quotes with the escapes that YAML and JSON share. Always: so no reader can take the text for anything else.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

}  // namespace

std::string_view Field::key() const { return after_last_dot(path); }
std::string_view Field::section() const { return before_last_dot(path); }
std::string_view Section::key() const {
  const std::string_view last = after_last_dot(path);
  return is_list() ? last.substr(0, last.size() - 2) : last;
}
std::string_view Section::parent() const { return before_last_dot(path); }

std::span<const Field> fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

std::span<const Section> sections() {
  static constexpr std::array<Section, 12> table{{
      {"", "A cluster on one machine."},
      {"devices[]",
       "The devices of the cluster, at least one. `devices: [{kind: cpu, count: 2}]` alone is a whole cluster file.", 1,
       kDevicesMax},
      {"python", "Python kernels: which functions devices may run, and with which Python."},
      {"python.kernels[]",
       "The allow list. A program names operators; which function that is, and where, only this says.", 0,
       kPythonKernelsMax},
      {"operators[]",
       "Shared libraries of operators of your own, which every device loads at its start, in this order. "
       "`callboard status -o json` says which operators each of them brings.",
       0, kOperatorLibrariesMax},
      {"restart",
       "When a device actor's process ends by itself. The coordinator is never started again: its end, like the node "
       "actor's, is the end of the cluster, and every device stops."},
      {"restart.backoff", "The first restart is immediate, later ones wait."},
      {"heartbeat", "How an actor that hangs is noticed."},
      {"limits", "Bounds; everything has one."},
      {"log", "What is written where."},
      {"tracing", "A trace over all processes."},
      {"checks", "What is checked while kernels run."},
  }};
  return table;
}

std::vector<const Field*> fields_of(std::string_view section) {
  std::vector<const Field*> out;
  for (const Field& field : fields()) {
    if (field.section() == section) out.push_back(&field);
  }
  return out;
}

std::vector<const Section*> sections_of(std::string_view parent) {
  std::vector<const Section*> out;
  for (const Section& section : sections()) {
    if (!section.path.empty() && section.parent() == parent) out.push_back(&section);
  }
  return out;
}

std::string write_value(const Field& field, const Value& value) {
  if (const auto* flag_value = std::get_if<bool>(&value)) return *flag_value ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* duration = std::get_if<Millis>(&value)) return write_duration(*duration);
  if (const auto* size = std::get_if<ByteSize>(&value)) return write_size(size->bytes);
  if (const auto* text = std::get_if<std::string>(&value))
    return field.type == FieldType::kEnum ? *text : in_quotes(*text);
  std::string list = "[";
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *texts) list += (list.size() > 1 ? ", " : "") + in_quotes(item);
    return list + "]";
  }
  for (std::uint32_t item : std::get<std::vector<std::uint32_t>>(value)) {
    if (list.size() > 1) list += ", ";
    list += std::to_string(item);
  }
  return list + "]";
}

std::string default_of(const Field& field) {
  if (!field.default_text.empty()) return std::string(field.default_text);
  const Value value = field.get(Draft{});
  const auto* text = std::get_if<std::string>(&value);
  return text ? *text : write_value(field, value);
}

std::string range_of(const Field& field) {
  if (field.type == FieldType::kInt || field.type == FieldType::kIndexes) {
    if (field.min == field.max) return std::to_string(field.min);
    return std::to_string(field.min) + " to " + std::to_string(field.max);
  }
  if (field.type == FieldType::kDuration)
    return write_duration(Millis(field.min)) + " to " + write_duration(Millis(field.max));
  if (field.type == FieldType::kSize) {
    return write_size(static_cast<std::uint64_t>(field.min)) + " to " +
           write_size(static_cast<std::uint64_t>(field.max));
  }
  return {};
}

bool is_cluster_name(std::string_view name) {
  return !name.empty() && name.size() <= 40 && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

bool is_device_name(std::string_view name) {
  return !name.empty() && name.size() <= kDeviceNameMax && is_lower(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '-' || c == '_'; });
}

bool is_python_name(std::string_view text) {
  bool begins = true;  // of a part between dots
  for (const char c : text) {
    const bool letter = is_lower(c) || (c >= 'A' && c <= 'Z') || c == '_';
    if (begins ? !letter : !letter && !is_digit(c) && c != '.') return false;
    begins = c == '.';
  }
  return !begins;
}

bool is_python_target(std::string_view text) {
  const std::size_t colon = text.find(':');
  return colon != std::string_view::npos && is_python_name(text.substr(0, colon)) &&
         is_python_name(text.substr(colon + 1));
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

bool is_gpu_uuid(std::string_view text) {
  if (!text.starts_with("GPU-") && !text.starts_with("MIG-")) return false;
  bool digit_before = false;
  for (const char c : text.substr(4)) {
    const bool digit = is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!digit && (c != '-' || !digit_before)) return false;
    digit_before = digit;
  }
  return digit_before;
}

}  // namespace callboard::config
