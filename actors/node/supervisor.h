// Which processes of a host should run, without spawning any: starts, restarts with budget and backoff, ordered stop.
// Pure.
//
//   SV-1  At most one process per actor name is alive; its incarnation is larger than every one before.
//   SV-2  Each start ends in exactly one ActorExited.
//   SV-3  More than `max` restarts within `window` end the restarts of that actor ("failed"), with the last cause.
//   SV-4  Stop ends everything: devices first, then the coordinator; SIGTERM, then SIGKILL after the grace time.
//         Devices have four fifths of it, so that the coordinator has its turn and all is over within the whole.
//
// The coordinator is supervised like a device but for its policy: its end is the end of the cluster (Finished, failed).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "messages/base/clock.h"
#include "messages/base/log.h"
#include "messages/protocol.h"

namespace callboard::actors {

struct SupervisorOptions {
  std::vector<std::string> devices;
  bool restart = true;
  std::uint32_t restarts_max = 5;
  Duration window = std::chrono::seconds(60);
  Duration backoff_min = std::chrono::milliseconds(200);
  Duration backoff_max = std::chrono::seconds(30);
  Duration stop_grace = std::chrono::seconds(5);
  std::uint64_t seed = 1;  ///< of the backoff's jitter (20 %)
};

/// The coordinator's name; its incarnation is the cluster's epoch.
constexpr const char* kCoordinatorName = "coordinator";

class Supervisor {
 public:
  struct Start {};
  struct Spawned { ActorId who; std::int64_t pid = 0; };
  /// Tried again only where the machine was short of something (kResourceExhausted).
  struct SpawnFailed { ActorId who; Error error; };
  struct Exited { ActorId who; ActorExited report; };            ///< restart_in_ms is filled in by step()
  struct Stop { bool force = false; };                            ///< force: SIGKILL at once
  /// Not charged to the budget. A failed or stopped actor is started anew where `restart`. Incarnation 0: the current.
  struct StopOne { ActorId who; bool kill = false; bool restart = true; };
  struct Tick {};
  using Event = std::variant<Start, Spawned, SpawnFailed, Exited, Stop, StopOne, Tick>;

  struct Spawn { ActorId who; };
  struct Signal { ActorId who; std::int64_t pid = 0; int signal = 0; };
  /// ActorStarted, ActorExited: to the coordinator (kept by the shell's link while it is away).
  struct Report { Message message; };
  /// Everything has ended; failed: because the coordinator could not be kept alive.
  struct Finished { bool failed = false; std::string why; };
  struct LogLine { log::Level level; std::string event; std::string text; };
  using Action = std::variant<Spawn, Signal, Report, Finished, LogLine>;
  using Actions = std::vector<Action>;

  virtual ~Supervisor() = default;
  static std::unique_ptr<Supervisor> create(SupervisorOptions options);
  virtual Actions step(const Event& event, TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;
};

}  // namespace callboard::actors
