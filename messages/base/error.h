// Errors are values that travel: the same type inside a process, on the wire, in the command line's JSON and in Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

namespace callboard {

/// Numbers never change their meaning and are never reused. A block of a hundred per area; the hundred decides the
/// class of a failure (what may be retried): see error_class().
enum class ErrorCode : std::uint16_t {
  kOk = 0,
  // 1xx bytes and messages: the peer sent what we cannot read.
  kTruncated = 100,
  kCorrupted = 101,
  kTooLarge = 102,
  kTooDeep = 103,
  kMalformed = 104,
  kVersionMismatch = 105,
  kUnexpectedMessage = 106,
  kUnknownPeer = 107,
  kStaleIncarnation = 108,
  // 2xx cluster file and command line.
  kConfigSyntax = 200,
  kConfigUnknownKey = 201,
  kConfigDuplicateKey = 202,
  kConfigWrongType = 203,
  kConfigOutOfRange = 204,
  kConfigBadUnit = 205,
  kConfigConflict = 206,
  kConfigMissing = 207,
  kUsage = 210,
  kFileNotFound = 211,
  kFileUnreadable = 212,
  // 3xx programs and fragments: refused before anything runs.
  kBadGraph = 300,
  kUnknownOperator = 301,
  kBadArgument = 302,
  kLiteralDevice = 303,
  kCycle = 304,
  kUseBeforeDefinition = 305,
  kBadPlacement = 306,
  kDoesNotFit = 307,
  kConstantMissing = 308,
  kUnsupported = 309,
  kProgramUnknown = 310,
  kExportFailed = 311,
  // 4xx a request: wrong input, or it failed by itself. Never retried.
  kBadInput = 400,
  kKernelFailed = 401,
  kOutOfMemory = 402,
  kOutputMismatch = 403,
  kCancelled = 404,
  kDeadlineExceeded = 405,
  kOverloaded = 406,
  kPythonFailed = 407,
  kNanFound = 408,
  // 5xx an actor or a device was lost.
  kActorDied = 500,
  kActorUnavailable = 501,
  kTensorLost = 502,
  kStateLost = 503,
  kDeviceFailed = 504,
  kCoordinatorLost = 505,
  kPeerLost = 506,
  kQuarantined = 507,
  // 6xx the surroundings: limits of the machine, permissions, addresses, files that somebody else writes to.
  kResourceExhausted = 600,
  kAddressInUse = 601,
  kPermission = 602,
  kEnvironment = 603,
  kStartFailed = 604,
  kNotReady = 605,
  kClusterNotFound = 606,
  kFileChanged = 607,  // of weights, while they were in use
  // 9xx our own fault.
  kInternal = 900,
};

/// Stable identifier in SCREAMING-free snake case, for example "unknown_operator". Unknown numbers give
/// "unknown_error".
std::string_view error_name(ErrorCode code);

/// What may be done about a failure; derived from the code alone.
enum class ErrorClass : std::uint8_t { kMessage, kConfig, kProgram, kRequest, kActor, kEnvironment, kInternal };
ErrorClass error_class(ErrorCode code);

/// A failure: what, where, why, and what to do. Plain data, safe to move between threads and processes.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;        ///< what happened and where, one sentence, no trailing newline
  std::string hint;           ///< what to do about it; may be empty
  std::string actor;          ///< "cpu0#1" (name#incarnation) of the actor that found it; may be empty
  std::string op;             ///< operator, "aten::add.Tensor"; may be empty
  std::int64_t node = -1;     ///< index of the node in its program, -1 if none
  std::string detail;         ///< longer text: shapes and dtypes, a traceback, the last lines of a log; may be empty
  std::vector<Error> causes;  ///< more findings of the same kind, or what this one follows from (at most 64, 4 deep)

  Error() = default;
  Error(ErrorCode c, std::string m, std::string h = {}) : code(c), message(std::move(m)), hint(std::move(h)) {}

  /// One or more lines for a person: "unknown_operator [E301]: … (cpu0#1, aten::ad.Tensor, node 3)\n  hint: …".
  std::string to_string() const;

  bool operator==(const Error& other) const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

/// Shorthand for returning a failure from a function that returns Result or Status.
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string hint = {}) {
  return tl::unexpected<Error>(Error(code, std::move(message), std::move(hint)));
}

}  // namespace callboard

/// Returns the failure of a Result or Status expression from the enclosing function.
#define CALLBOARD_TRY(expression)                                     \
  do {                                                                \
    if (auto callboard_status_ = (expression); !callboard_status_)    \
      return ::callboard::fail(std::move(callboard_status_).error()); \
  } while (false)

#define CALLBOARD_CONCAT_INNER(a, b) a##b
#define CALLBOARD_CONCAT(a, b) CALLBOARD_CONCAT_INNER(a, b)
/// CALLBOARD_ASSIGN(auto x, f()): x is the value, or the failure is returned.
#define CALLBOARD_ASSIGN(declaration, expression)                                               \
  auto CALLBOARD_CONCAT(callboard_result_, __LINE__) = (expression);                            \
  if (!CALLBOARD_CONCAT(callboard_result_, __LINE__))                                           \
    return ::callboard::fail(std::move(CALLBOARD_CONCAT(callboard_result_, __LINE__)).error()); \
  declaration = std::move(*CALLBOARD_CONCAT(callboard_result_, __LINE__))
