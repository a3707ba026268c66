// A whole cluster in one thread: the product's CoordinatorCore, DeviceCore, Session, Supervisor and Link with virtual
// time, faults from a seed, and fake kernels. Checks while it runs:
//   CO-1 one Outcome per request · CO-4 order per client and device · CO-5 bounds · CO-6/CS-2 nothing is read after it
//   was given back · CS-1 every request ends in time · DC-1 one answer per RunFragment · DC-3 no lease is forgotten ·
//   the value is what the oracle says · lost state is said before it is seen · at the end every table is empty.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/coordinator/coordinator_core.h"
#include "actors/node/supervisor.h"
#include "tests/simulation/fake_runtime.h"
#include "tests/simulation/memory.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace callboard::simulation {

struct Faults {
  NetworkFaults network;
  RuntimeFaults runtime;
  double kills_per_second = 0;        ///< of devices
  double stops_per_second = 0;        ///< SIGSTOP of devices
  double cuts_per_second = 0;         ///< of links
  double client_deaths_per_second = 0;
  double dies_at_start = 0;           ///< share of device starts
};

struct SimulationOptions {
  std::uint64_t seed = 1;
  bool verbose = false;
  Duration faults_for = std::chrono::seconds(12);
};

/// How much of what was meant to happen did: a run in which nothing happened proves nothing.
struct Tally {
  std::uint64_t submitted = 0, ok = 0, failed = 0, cancelled = 0, expired = 0, state_losses = 0;
  std::uint64_t retried = 0, kills = 0, stops = 0, cuts = 0, client_deaths = 0, restarts = 0, loads = 0;
};

class SimDevice;
class SimClient;

class Simulator {
 public:
  explicit Simulator(SimulationOptions options);
  ~Simulator();
  /// True if every invariant held. Then the log is of no interest.
  bool run();

  World& world() { return world_; }
  Memory& memory() { return memory_; }
  Faults& faults() { return faults_; }
  Tally& tally() { return tally_; }
  std::string report() const;

  // -- for the simulated processes
  std::shared_ptr<Channel> connect_coordinator(Hello hello, Ends ends);
  SimDevice* device(const ActorId& who);
  void device_ended(const ActorId& who, bool signalled, int code);
  void client_ended(const ActorId& who);
  void release(const ActorId& owner, LeaseId lease);
  const std::vector<std::string>& device_names() const { return device_names_; }
  bool calm() const { return calm_; }

 private:
  void start();
  void coordinator_step(actors::CoordinatorCore::Event event);
  void check_sent(const ActorId& to, const Message& message);
  void coordinator_forget(const ActorId& peer);
  void node_step(const actors::Supervisor::Event& event);
  void node_message(const Message& message);
  void spawn(const ActorId& who);
  void signal(const ActorId& who, int signal);
  void holder_gone(const ActorId& who);
  void cause_fault();
  void check_bounds();
  void check_end();
  void add_client();

  const SimulationOptions options_;
  World world_;
  Memory memory_;
  Faults faults_;
  Tally tally_;
  bool calm_ = false;  // faults are over
  std::vector<std::string> device_names_;
  std::unique_ptr<actors::CoordinatorCore> coordinator_;
  std::unique_ptr<Alarm> coordinator_alarm_;
  std::map<ActorId, std::shared_ptr<Channel>> peers_;  // the coordinator's, side 1
  std::unique_ptr<actors::Supervisor> supervisor_;
  std::unique_ptr<Alarm> supervisor_alarm_;
  std::shared_ptr<Channel> node_channel_;
  std::map<ActorId, std::unique_ptr<SimDevice>> devices_;
  std::map<ActorId, std::unique_ptr<SimClient>> clients_;
  std::int64_t next_pid_ = 100;
  std::set<std::pair<ActorId, RequestSeq>> outcomes_;
  std::map<std::pair<ActorId, std::string>, RunId> last_started_;  // by client and device
};

}  // namespace callboard::simulation
