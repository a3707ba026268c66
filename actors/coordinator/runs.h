// Requests on their way: accepted, sent to devices, gathered, ended once. Pure.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/coordinator/members.h"
#include "actors/coordinator/programs.h"
#include "actors/coordinator/quarantine.h"

namespace callboard::actors {

// from      to        when                                              what goes out
// waiting   running   its devices are ready, have room and credit, and  RunFragment to each fragment's device
//                     no earlier request of its client waits for one
//                     of them
// waiting   gone      cancel, deadline, device failed, client lost,     Outcome (quiesced)
//                     state lost (the first of its client and program)
// running   gone      the last fragment finished without error          Outcome kOk (quiesced)
// running   ending    first error, cancel, deadline, device lost        Outcome (not quiesced), CancelRun to the others
// running   gone      the same, and no device is left that might read   Outcome (quiesced)
// running   retrying  device lost that will be started again, program   CancelRun to the others
//                     pure, attempts left
// retrying  waiting   the last device has answered or its process ended nothing: it is first in its queue again
// retrying  ending,   cancel, deadline, client lost, a device failed    as from running
//           gone
// ending    gone      the last device has answered or its process ended Quiesced
enum class RunPhase : std::uint8_t { kWaiting, kRunning, kRetrying, kEnding };

/// One fragment of a run at its device.
enum class SlotState : std::uint8_t {
  kPending,   ///< sent, not answered
  kFinished,  ///< answered
  kCutOff,    ///< its device's link is lost: no answer will come, but the process may still read
  kEnded,     ///< its device's process ended
};

struct RunSlot {
  ActorId sent_to;
  SlotState state = SlotState::kPending;
  std::vector<WireValue> outputs;
};

struct Run {
  RunId id = 0;
  Attempt attempt = 1;
  ActorId client;
  RequestSeq request = 0;
  Program* program = nullptr;  ///< kept by its run count
  RunPhase phase = RunPhase::kWaiting;
  std::vector<WireValue> inputs;  ///< until they are sent for the last time
  std::vector<std::int64_t> symbols;
  TimePoint accepted;
  TimePoint deadline = kNever;
  std::vector<RunSlot> slots;  ///< parallel to the program's fragments, once sent
  std::uint64_t state_version = 0;
  std::vector<std::uint64_t> edge_bytes;  ///< credit that it takes, by the program's devices; empty: none
  std::vector<ActorId> credited;          ///< the devices that it was taken from, once sent
  /// An error that is likely to follow from a device's death which is not reported yet: it waits for the root cause.
  std::optional<Error> suspicion;
  bool runs_alone = false;  ///< one of several that may have ended a device: nothing beside it until it has ended
};

class Runs {
 public:
  Runs(CoreContext& context, Members& members, Programs& programs)
      : context_(context), members_(members), programs_(programs) {}

  void submit(const ActorId& client, Submit order, TimePoint now);
  void cancel(const ActorId& client, RequestSeq request);
  void finished(const ActorId& from, FragmentFinished report, TimePoint now);
  /// CO-2. `loss.ended` also frees what this incarnation was still reading. After Programs::device_lost.
  void device_lost(const DeviceLoss& loss);
  void client_lost(const ClientMember& client);
  /// Ends what waits for programs that could not be loaded again after a restart.
  void refuse_broken();
  /// Everything that has not been sent ends: the cluster stops.
  void refuse_waiting(const Error& why);
  /// A RunFragment or Outcome that could not be sent.
  void run_refused(const ActorId& device, const RunFragment& order, Error why, TimePoint now);
  void outcome_refused(const ActorId& client, const Outcome& outcome, Error why);

  void on_time(TimePoint now);
  /// Starts what can be started: in turn by client, in order of submission within a client (CO-4).
  void start_waiting(TimePoint now);
  TimePoint next_due() const;

  const std::map<RunId, Run>& all() const { return runs_; }
  Quarantine& quarantine() { return quarantine_; }
  const Quarantine& quarantine() const { return quarantine_; }
  std::size_t waiting() const;

 private:
  /// The waiting requests of one client, by program: requests for one program use the same devices, so only the first
  /// of each can start.
  using Queues = std::map<const Program*, std::deque<RunId>>;

  static Error broken_error(const Program& program, const Error& why);
  std::optional<Error> objection(const ClientMember& client, const Program* program, const Submit& order) const;
  void reject(const ActorId& client, RequestSeq request, Error error);
  bool start_one(Queues& queues, TimePoint now);
  bool has_room(const Run& run) const;
  void take_credit(Run& run);
  void return_credit(const Run& run);
  void send(Run& run, TimePoint now);
  void complete(Run& run);
  /// The one place where an Outcome other than kOk leaves.
  void end(RunId id, OutcomeStatus status, Error error);
  /// Its devices are to stop, what they have made is dropped.
  void withdraw(Run& run, const Error& why);
  /// Nobody saw anything of it, and what it computes again is the same.
  bool may_run_again(const Run& run) const;
  void run_again(RunId id, const Error& why);
  void requeue(Run& run);
  /// What makes it run alone there does not count any more.
  void leave_devices(const Run& run);
  static bool keeps_distance(const Run& run, const Device& device);
  /// Who was there when a process ended by itself.
  void blame(const DeviceLoss& loss, const std::vector<RunId>& pending);
  /// A run that ends or is to run again, if no device may read its inputs any more.
  void quiesce_if_done(RunId id);
  void tell_state_losses();
  void erase(RunId id);
  void remove_waiting(const Run& run);
  void drop_values(const std::vector<WireValue>& values);
  void count(OutcomeStatus status);
  std::string waiting_text(const Run& run) const;
  std::string running_text(const Run& run) const;

  CoreContext& context_;
  Members& members_;
  Programs& programs_;
  Quarantine quarantine_;
  std::map<RunId, Run> runs_;
  std::map<ActorId, Queues> waiting_;
  ActorId last_served_;
  std::set<std::pair<TimePoint, RunId>> deadlines_;  // of waiting and running ones
  std::set<std::pair<TimePoint, RunId>> suspicions_;
  RunId next_run_ = 1;
};

}  // namespace callboard::actors
