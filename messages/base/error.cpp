#include "messages/base/error.h"

#include <algorithm>
#include <array>

namespace callboard {
namespace {

struct CodeName {
  ErrorCode code;
  std::string_view name;
};

constexpr std::array kCodeNames{
    CodeName{ErrorCode::kOk, "ok"},
    CodeName{ErrorCode::kTruncated, "truncated"},
    CodeName{ErrorCode::kCorrupted, "corrupted"},
    CodeName{ErrorCode::kTooLarge, "too_large"},
    CodeName{ErrorCode::kTooDeep, "too_deep"},
    CodeName{ErrorCode::kMalformed, "malformed"},
    CodeName{ErrorCode::kVersionMismatch, "version_mismatch"},
    CodeName{ErrorCode::kUnexpectedMessage, "unexpected_message"},
    CodeName{ErrorCode::kUnknownPeer, "unknown_peer"},
    CodeName{ErrorCode::kStaleIncarnation, "stale_incarnation"},
    CodeName{ErrorCode::kConfigSyntax, "config_syntax"},
    CodeName{ErrorCode::kConfigUnknownKey, "config_unknown_key"},
    CodeName{ErrorCode::kConfigDuplicateKey, "config_duplicate_key"},
    CodeName{ErrorCode::kConfigWrongType, "config_wrong_type"},
    CodeName{ErrorCode::kConfigOutOfRange, "config_out_of_range"},
    CodeName{ErrorCode::kConfigBadUnit, "config_bad_unit"},
    CodeName{ErrorCode::kConfigConflict, "config_conflict"},
    CodeName{ErrorCode::kConfigMissing, "config_missing"},
    CodeName{ErrorCode::kUsage, "usage"},
    CodeName{ErrorCode::kFileNotFound, "file_not_found"},
    CodeName{ErrorCode::kFileUnreadable, "file_unreadable"},
    CodeName{ErrorCode::kBadGraph, "bad_graph"},
    CodeName{ErrorCode::kUnknownOperator, "unknown_operator"},
    CodeName{ErrorCode::kBadArgument, "bad_argument"},
    CodeName{ErrorCode::kLiteralDevice, "literal_device"},
    CodeName{ErrorCode::kCycle, "cycle"},
    CodeName{ErrorCode::kUseBeforeDefinition, "use_before_definition"},
    CodeName{ErrorCode::kBadPlacement, "bad_placement"},
    CodeName{ErrorCode::kDoesNotFit, "does_not_fit"},
    CodeName{ErrorCode::kConstantMissing, "constant_missing"},
    CodeName{ErrorCode::kUnsupported, "unsupported"},
    CodeName{ErrorCode::kProgramUnknown, "program_unknown"},
    CodeName{ErrorCode::kExportFailed, "export_failed"},
    CodeName{ErrorCode::kBadInput, "bad_input"},
    CodeName{ErrorCode::kKernelFailed, "kernel_failed"},
    CodeName{ErrorCode::kOutOfMemory, "out_of_memory"},
    CodeName{ErrorCode::kOutputMismatch, "output_mismatch"},
    CodeName{ErrorCode::kCancelled, "cancelled"},
    CodeName{ErrorCode::kDeadlineExceeded, "deadline_exceeded"},
    CodeName{ErrorCode::kOverloaded, "overloaded"},
    CodeName{ErrorCode::kPythonFailed, "python_failed"},
    CodeName{ErrorCode::kNanFound, "nan_found"},
    CodeName{ErrorCode::kActorDied, "actor_died"},
    CodeName{ErrorCode::kActorUnavailable, "actor_unavailable"},
    CodeName{ErrorCode::kTensorLost, "tensor_lost"},
    CodeName{ErrorCode::kStateLost, "state_lost"},
    CodeName{ErrorCode::kDeviceFailed, "device_failed"},
    CodeName{ErrorCode::kCoordinatorLost, "coordinator_lost"},
    CodeName{ErrorCode::kPeerLost, "peer_lost"},
    CodeName{ErrorCode::kQuarantined, "quarantined"},
    CodeName{ErrorCode::kResourceExhausted, "resource_exhausted"},
    CodeName{ErrorCode::kAddressInUse, "address_in_use"},
    CodeName{ErrorCode::kPermission, "permission"},
    CodeName{ErrorCode::kEnvironment, "environment"},
    CodeName{ErrorCode::kStartFailed, "start_failed"},
    CodeName{ErrorCode::kNotReady, "not_ready"},
    CodeName{ErrorCode::kClusterNotFound, "cluster_not_found"},
    CodeName{ErrorCode::kFileChanged, "file_changed"},
    CodeName{ErrorCode::kInternal, "internal"},
};

void append_indented(std::string& out, std::string_view text, std::size_t indent) {
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) {
      out.append("\n").append(indent, ' ').append(text.substr(begin, end - begin));
    }
    begin = end + 1;
  }
}

void append_error(std::string& out, const Error& error, std::size_t indent, std::size_t depth);

void append_causes(std::string& out, const Error& error, std::size_t indent, std::size_t depth) {
  // An Error from the wire is at most kErrorDepthMax deep; one built here could be deeper by mistake.
  constexpr std::size_t kDepthShown = 8;
  if (error.causes.empty()) return;
  if (depth >= kDepthShown) {
    out.append("\n").append(indent, ' ').append("- …");
    return;
  }
  for (const Error& cause : error.causes) {
    out.append("\n").append(indent, ' ').append("- ");
    append_error(out, cause, indent + 2, depth + 1);
  }
}

void append_error(std::string& out, const Error& error, std::size_t indent, std::size_t depth) {
  out.append(error_name(error.code)).append(" [E").append(std::to_string(static_cast<int>(error.code))).append("]: ");
  out.append(error.message);
  std::string where = error.actor;
  const auto add = [&where](const std::string& part) { where.append(where.empty() ? "" : ", ").append(part); };
  if (!error.op.empty()) add(error.op);
  if (error.node >= 0) add("node " + std::to_string(error.node));
  if (!where.empty()) out.append(" (").append(where).append(")");
  append_indented(out, error.detail, indent + 2);
  if (!error.hint.empty()) append_indented(out, "hint: " + error.hint, indent + 2);
  append_causes(out, error, indent + 2, depth);
}

}  // namespace

std::string_view error_name(ErrorCode code) {
  for (const CodeName& entry : kCodeNames) {
    if (entry.code == code) return entry.name;
  }
  return "unknown_error";
}

ErrorClass error_class(ErrorCode code) {
  switch (static_cast<unsigned>(code) / 100) {
    case 1: return ErrorClass::kMessage;
    case 2: return ErrorClass::kConfig;
    case 3: return ErrorClass::kProgram;
    case 4: return ErrorClass::kRequest;
    case 5: return ErrorClass::kActor;
    case 6: return ErrorClass::kEnvironment;
    default: return ErrorClass::kInternal;
  }
}

std::string Error::to_string() const {
  std::string out;
  append_error(out, *this, 0, 0);
  return out;
}

bool Error::operator==(const Error& other) const {
  return code == other.code && message == other.message && hint == other.hint && actor == other.actor &&
         op == other.op && node == other.node && detail == other.detail && causes == other.causes;
}

}  // namespace callboard
