// The programs of the cluster: planned once, shared by clients, loaded on devices, loaded again after a restart. Pure.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/coordinator/members.h"
#include "actors/coordinator/planner.h"

namespace callboard::actors {

// A fragment on its device:
// from      to        when
// absent    loading   the device is joined: LoadFragment sent
// loading   loaded    FragmentLoaded without error, and no other answer is due
// loading   broken    FragmentLoaded with an error
// any       absent    the device's incarnation ended
enum class FragmentState : std::uint8_t { kAbsent, kLoading, kLoaded, kBroken };

struct FragmentRecord {
  DeviceIndex device = 0;
  FragmentState state = FragmentState::kAbsent;
  std::uint32_t answers_due = 0;              ///< LoadFragments sent to this incarnation and not answered
  std::optional<Error> error;                 ///< of kBroken
  std::uint64_t runs = 0;                     ///< that it finished without an error
  std::int64_t run_ns = 0;                    ///< of all of them together, as the device measured it
  std::vector<std::uint32_t> program_inputs;  ///< the inputs of the program that a run brings, in the fragment's order
};

struct InputSpec {
  std::string name;
  ValueKind kind = ValueKind::kTensor;
};

struct Program {
  ContentHash hash;
  std::string name;
  std::string costs;  ///< where the nodes' costs come from: kCostsAnnotation
  Plan plan;
  std::vector<InputSpec> inputs;
  std::size_t symbols = 0;
  std::size_t outputs = 0;                ///< of its values, as counted in an Outcome
  std::vector<FragmentRecord> fragments;  ///< parallel to plan.fragments
  std::vector<DeviceIndex> devices;       ///< distinct, ascending
  std::vector<std::size_t> fragments_on;  ///< parallel to devices: how many fragments a run brings to each
  bool outputs_repeat = false;            ///< some value is an output of the program more than once
  /// A value that a device keeps until another one has read it.
  struct Edge {
    std::size_t device = 0;  ///< position in `devices`
    std::size_t item_bytes = 0;
    std::vector<Expr> sizes;
  };
  std::vector<Edge> edges;                 ///< those of known rank; their bytes are what a run takes credit for
  std::map<ActorId, std::uint32_t> users;  ///< how often each client has loaded it
  struct Waiter {
    ActorId client;
    RequestSeq request = 0;
    TimePoint deadline = kNever;
  };
  std::vector<Waiter> waiters;  ///< for ProgramLoaded; they count as users already
  bool loaded_once = false;
  std::size_t runs = 0;             ///< entries of the run table; it is kept as long as there is one
  std::size_t runs_sent = 0;        ///< of these, how many are on devices
  std::set<DeviceIndex> to_reset;   ///< devices whose part of the state is to be set back before the next run
  std::optional<Error> state_loss;  ///< for those who were not told yet
  std::set<ActorId> untold;

  /// What a run with these symbols keeps on each of `devices` for other devices, at most. Sizes that depend on data
  /// count as nothing.
  std::vector<std::uint64_t> edge_bytes(std::span<const std::int64_t> bound) const;
  bool usable() const;
  /// Why it will not become usable by waiting, if so.
  const Error* broken() const;
  /// No fragment has state, effects or random numbers, as its device said when it loaded it.
  bool pure() const;
  bool has_state_on(DeviceIndex device) const;
  std::vector<std::string> state_names(std::optional<DeviceIndex> device = {}) const;
};

class Programs {
 public:
  Programs(CoreContext& context, Members& members) : context_(context), members_(members) {}

  void load(const ActorId& client, LoadProgram order, TimePoint now);
  void unload(const ActorId& client, const ContentHash& hash);
  void client_lost(const ActorId& client);
  void fragment_loaded(const ActorId& from, FragmentLoaded answer);
  void device_joined(DeviceIndex device);
  void device_lost(const DeviceLoss& loss);
  /// A LoadFragment that could not be sent.
  void load_refused(DeviceIndex device, const LoadFragment& order, Error why);

  /// The program if this client has loaded it.
  Program* find(const ActorId& client, const ContentHash& hash);
  /// Where the cluster file insists on results that this client cannot open.
  std::optional<Error> unreadable_results(const ClientMember& client, const Program& program) const;
  void run_added(Program& program) { ++program.runs; }
  void run_sent(Program& program) { ++program.runs_sent; }
  /// Sent, and not on any device any more: it waits again.
  void run_withdrawn(Program& program);
  void run_ended(Program& program, bool was_sent);
  /// The loss of state that this client has to be told of, once.
  std::optional<Error> take_state_loss(Program& program, const ActorId& client);

  /// Expired waiters; states to set back; programs that nobody uses. At the end of each step.
  void settle(TimePoint now);
  /// Loads that the device has not answered.
  std::size_t loading_on(DeviceIndex device) const;
  TimePoint next_due() const;
  const std::map<ContentHash, std::unique_ptr<Program>>& all() const { return programs_; }

 private:
  Result<std::unique_ptr<Program>> plan(const LoadProgram& order) const;
  void send_loads(Program& program, DeviceIndex device);
  void send_load(Program& program, std::uint32_t fragment);
  void answer_if_complete(Program& program);
  void answer_waiters(Program& program, const std::optional<Error>& error);
  void refuse(const ActorId& client, RequestSeq request, Error error);
  void lose_state(Program& program, const DeviceLoss& loss);
  void release(Program& program, const ActorId& client, std::uint32_t count);
  void expire_waiters(Program& program, TimePoint now);
  void reset_states(Program& program);
  void erase_if_unused(const ContentHash& hash);
  std::string missing_answers(const Program& program) const;

  CoreContext& context_;
  Members& members_;
  std::map<ContentHash, std::unique_ptr<Program>> programs_;
  std::set<ContentHash> unsettled_;  // look at these in settle()
};

}  // namespace callboard::actors
