// The one table of operations: what a person or a program can ask of a running cluster. The command line, the clients
// and the REST port all read it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "messages/base/error.h"

namespace callboard::actors {

enum class OperationId : std::uint8_t {
  kStatus,
  kActors,
  kPrograms,
  kRequests,
  kCancel,
  kWaitReady,
  kRestartActor,
  kShutdown,
  kTrace,
  kDeviceQuery,
  kLogLevel,
  kQuarantine,
  kQuarantineRelease,
};

enum class ArgumentKind : std::uint8_t { kText, kInteger, kFlag };

struct OperationArgument {
  std::string_view name;
  ArgumentKind kind = ArgumentKind::kText;
  bool required = false;
  std::string_view meaning;
  std::string_view choices;  ///< for a text: "on off take"; empty is "any"
};

struct OperationSpec {
  OperationId id;
  std::string_view name;
  bool changes = false;  ///< it changes something (REST: never by GET)
  std::string_view description;
  std::span<const OperationArgument> arguments;
};

std::span<const OperationSpec> operation_table();

/// A checked call of an operation.
class OperationCall {
 public:
  using Value = std::variant<std::string, std::int64_t, bool>;
  OperationCall(OperationId id, std::map<std::string, Value> values) : id_(id), values_(std::move(values)) {}

  OperationId id() const { return id_; }
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  std::string text(const std::string& name, std::string otherwise = {}) const;
  std::int64_t integer(const std::string& name, std::int64_t otherwise) const;
  bool flag(const std::string& name) const;

 private:
  OperationId id_;
  std::map<std::string, Value> values_;
};

/// kUsage for an unknown operation (nearest name), arguments that are not a JSON object, unknown, missing or mistyped
/// ones.
Result<OperationCall> parse_operation(std::string_view name, std::string_view arguments_json);

}  // namespace callboard::actors
