// What a node actor tells whoever started it, as lines of JSON on a pipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "messages/base/error.h"
#include "messages/base/fd.h"
#include "messages/protocol.h"

namespace callboard::actors {

struct NodeEvent {
  enum class Kind {
    kStarted,       ///< run directory claimed, all processes spawned; whether they become ready the coordinator knows
    kActorStarted,  ///< `who`, `pid`
    kActorExited,   ///< `exit`, also for a program that could not be started (pid 0)
    kStopping,      ///< `text` says why
    kFailed,        ///< the last event: `error`; `logs` where it is worth looking
    kStopped,       ///< the last event
  };
  explicit NodeEvent(Kind what) : kind(what) {}

  Kind kind;
  ActorId who;
  std::int64_t pid = 0;
  ActorExited exit;
  std::string text;
  std::optional<Error> error;
  std::string run_dir;  ///< kStarted
  std::string logs;     ///< kStarted, kFailed: directory
};

/// "coordinator#1: signal 9 (Killed)": how it ended, for people.
std::string exit_text(const ActorExited& exit);

/// One line without its newline: {"event":"actor_exited","name":"cpu0","incarnation":1,"cause":"exit status 3",…}.
std::string to_json_line(const NodeEvent& event);

/// Never blocks: while the reader is slow lines are kept up to 256 KiB, then the new ones are dropped. A reader that
/// has gone is no error.
class StatusStream {
 public:
  explicit StatusStream(UniqueFd fd);  ///< none: all goes nowhere
  void write(const NodeEvent& event);
  /// Waits at most a moment for the reader.
  void finish();

 private:
  void flush();

  UniqueFd fd_;
  std::string waiting_;
};

}  // namespace callboard::actors
