// The one table of the cluster file. Parser, JSON Schema, reference page and to_yaml() all walk it: a key that is not
// in it does not exist, and a key that is in it is parsed, documented and written back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "config/cluster_config.h"

namespace callboard::config {

/// An entry of `devices` as it is written: one entry may stand for several devices.
struct DeviceEntry {
  std::string name;  ///< template; empty: "{kind}{i}"
  std::string kind = "cpu";
  std::int64_t count = 1;
  std::vector<std::uint32_t> index;  ///< cuda only
  std::string uuid;                  ///< cuda only
  std::int64_t threads = 1;
  std::uint64_t memory_limit = 0;
  std::string output_device = "cpu";  ///< cuda only; a choice
  std::string cuda_graph = "auto";    ///< cuda only
  std::string python = "auto";
};

/// What the table's setters write to: the cluster, and the entry of a list being read.
struct Draft {
  ClusterConfig config;
  DeviceEntry device;
  PythonKernelConfig kernel;
  OperatorLibraryConfig library;
};

struct ByteSize {
  std::uint64_t bytes = 0;
};
/// What a key can hold. Durations are Millis; names, enums and paths are text.
using Value = std::variant<bool, std::int64_t, std::string, Millis, ByteSize, std::vector<std::uint32_t>,
                           std::vector<std::string>>;

enum class FieldType { kBool, kInt, kEnum, kName, kText, kPath, kPaths, kDuration, kSize, kIndexes };

struct Field {
  std::string_view path;  ///< "heartbeat.interval", "devices[].kind"
  FieldType type = FieldType::kInt;
  std::int64_t min = 0;  ///< of kInt and each of kIndexes; of kDuration in ms; of kSize in bytes. Both inclusive
  std::int64_t max = 0;
  std::vector<std::string_view> choices;  ///< of kEnum
  /// What people write for a choice that is spelled otherwise; only for the hint.
  std::vector<std::pair<std::string_view, std::string_view>> meant;
  std::string_view pattern;       ///< of kName, for people and for the JSON Schema (matches() checks it)
  std::string_view default_text;  ///< where the default is not a fixed value
  std::string_view doc;
  void (*set)(Draft&, const Value&) = nullptr;
  Value (*get)(const Draft&) = nullptr;

  std::string_view key() const;      ///< the last part of the path
  std::string_view section() const;  ///< the rest: "heartbeat", "devices[]", ""
};

struct Section {
  std::string_view path;  ///< "", "devices[]", "restart.backoff"
  std::string_view doc;

  std::int64_t items_min = 0;  ///< of a list
  std::int64_t items_max = 0;

  bool is_list() const { return path.size() > 2 && path.substr(path.size() - 2) == "[]"; }
  std::string_view key() const;  ///< without "[]"
  std::string_view parent() const;
};

constexpr std::int64_t kDevicesMax = 256;
constexpr std::int64_t kPythonKernelsMax = 256;  // a model has tens of different operators
constexpr std::int64_t kOperatorLibrariesMax = 64;
constexpr std::size_t kPathsMax = 64;       // of one list
constexpr std::size_t kTextMax = 4'000;     // of one value
constexpr std::size_t kDeviceNameMax = 20;  // it is part of a socket's path

/// In the order of the reference page; a section's fields stand together.
std::span<const Field> fields();
/// Parents before children; the root is the first.
std::span<const Section> sections();

std::vector<const Field*> fields_of(std::string_view section);
std::vector<const Section*> sections_of(std::string_view parent);

/// A value as the cluster file would have it. Text is quoted where a strict reader would need it.
std::string write_value(const Field& field, const Value& value);
/// The default as text for people: default_text, or the value that an empty Draft has.
std::string default_of(const Field& field);
/// "1 to 256", "10ms to 1min"; empty where there is none.
std::string range_of(const Field& field);

/// Cluster names: they become directory and socket names.
bool is_cluster_name(std::string_view name);
/// Device names, after "{i}" has been filled in.
bool is_device_name(std::string_view name);
/// "module:function", both with dots: "kernels.norm:scale".
bool is_python_target(std::string_view text);
/// "scale", "Model.scale".
bool is_python_name(std::string_view text);
/// 64 hexadecimal digits.
bool is_sha256(std::string_view text);
/// As CUDA and nvidia-smi write them: "GPU-" or "MIG-", then hexadecimal digits in groups.
bool is_gpu_uuid(std::string_view text);

}  // namespace callboard::config
