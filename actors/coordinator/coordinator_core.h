// What a coordinator decides, without clock, sockets or threads: members, programs, requests. The same object runs in
// the coordinator process and in the simulator.
//
//   CO-1  A request that was accepted has exactly one Outcome (ok, failed, cancelled, expired), whatever dies.
//   CO-2  Nobody waits on a dead actor: in the step that takes its exit report (or, without one, the loss of its link),
//         its runs fail with that as cause, or are withdrawn and wait for its next incarnation (CO-7).
//   CO-3  A FragmentFinished counts only if run, attempt and sender's incarnation are current; others are dropped and
//         counted.
//   CO-4  Requests of one client that use the same devices start in the order in which they were submitted.
//   CO-5  Every table has the bound that limits.h names; what does not fit is refused with kOverloaded.
//   CO-6  Inputs of a request are not reported as quiesced while a device that was sent them is alive and has not
//         answered.
//   CO-7  With retry_pure, a run of a pure program whose device dies runs again, at most attempts_max times in all and
//         within its deadline, when no device holds anything of the attempt before. It keeps its place before later
//         requests of its client. Nothing else runs twice.
//
// State of a program (buffers that it changes) lives on its devices. When such a device dies, all states of the program
// are set back to their initial values, on every device of it, before the next run. Each client that uses the program
// is told once: the first of its requests that had not started at the loss, or else the next one that it submits, fails
// with kStateLost and does not run; every client gets the actor event "state_lost".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "messages/base/clock.h"
#include "messages/base/log.h"
#include "messages/limits.h"
#include "messages/protocol.h"

namespace callboard::actors {

struct CoordinatorOptions {
  ActorId self;
  std::string cluster;
  Epoch epoch = 1;
  struct Device {
    std::string name;
    std::uint64_t memory_limit = 0;  ///< 0: unknown
    /// Not the host's: devices that have such find out the way to each other before the first program needs it.
    bool own_memory = false;
    /// Results for clients lie on its GPU where the client sees it, and with the second nowhere else.
    bool results_on_gpu = false;
    bool results_on_gpu_only = false;
  };
  std::vector<Device> devices;  ///< expected; the cluster is ready when all are
  Duration default_deadline = std::chrono::seconds(120);
  Duration beat_dead = std::chrono::seconds(3);
  Duration beat_interval = limits::kBeatInterval;   ///< our own beats to every peer
  Duration client_dead = std::chrono::seconds(30);  ///< a client that used to beat and is silent so long is gone
  /// A lost link waits so long for the exit report, to name the real cause.
  Duration exit_report_wait = std::chrono::seconds(1);
  bool retry_pure = false;         ///< CO-7
  std::uint32_t attempts_max = 3;  ///< of a run, the first included
  std::size_t requests_per_client = limits::kRequestsPerClientMax;
  std::size_t clients_max = limits::kClientsMax;
  /// Fragments sent to a device and not answered; the rest waits here, fairly by client.
  std::size_t runs_per_device = 256;
  /// What the runs on a device may keep there for other devices, in bytes; further ones wait here. 0: a quarter of the
  /// device's memory_limit, or limits::kEdgeBytes without one.
  std::uint64_t edge_bytes = 0;
};

class CoordinatorCore {
 public:
  // -- events
  struct PeerJoined {
    Hello hello;
  };
  struct MessageFrom {
    ActorId from;
    Message message;
  };
  struct PeerLost {
    ActorId peer;
    Error why;
  };
  /// A Send that the transport will never bring (kTooLarge).
  struct SendRefused {
    ActorId to;
    Message message;
    Error why;
  };
  struct Tick {};
  using Event = std::variant<PeerJoined, MessageFrom, PeerLost, SendRefused, Tick>;

  // -- actions
  struct Send {
    ActorId to;
    Message message;
  };  ///< a Beat goes unnumbered, everything else numbered
  struct Forget {
    ActorId peer;
  };  ///< fence: later frames of it are refused
  struct LogLine {
    log::Level level;
    std::string event;
    std::string text;
  };
  struct SetLogLevel {
    log::Level level;
  };
  using Action = std::variant<Send, Forget, LogLine, SetLogLevel>;
  using Actions = std::vector<Action>;

  virtual ~CoordinatorCore() = default;
  static std::unique_ptr<CoordinatorCore> create(CoordinatorOptions options);

  /// Would this peer be let in? (Hub::Events::hello; PeerJoined follows if so.) Refuses unknown devices, old
  /// incarnations, too many clients.
  virtual Status admit(const Hello& hello) const = 0;
  virtual Actions step(Event event, TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;
  /// The state as JSON, for `callboard status` (name, epoch, ready, actors, programs, requests, clients, counters).
  virtual std::string status_json(TimePoint now) const = 0;
};

}  // namespace callboard::actors
