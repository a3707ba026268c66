// A device actor's process: the product's DeviceCore in the shell that the simulation gives it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "actors/device/device_core.h"
#include "tests/simulation/fake_runtime.h"
#include "tests/simulation/network.h"

namespace callboard::simulation {

class Simulator;

class SimDevice {
 public:
  SimDevice(Simulator& simulator, ActorId self, std::int64_t pid);
  void start();
  void kill(int signal);
  void stop_for(Duration time);  ///< SIGSTOP, and SIGCONT later
  bool alive() const { return alive_; }
  bool stopped() const;
  const ActorId& self() const { return self_; }
  std::int64_t pid() const { return pid_; }
  const std::shared_ptr<Channel>& coordinator() const { return coordinator_; }
  std::map<ActorId, std::shared_ptr<Channel>>& peers() { return peers_; }
  /// Another device's line has come here.
  Ends peer_ends(const ActorId& from);
  void hold(const ActorId& from, std::shared_ptr<Channel> channel) { incoming_[from] = std::move(channel); }
  /// Runs, answers and edges that are left over when all is quiet.
  std::string leftovers() const;

 private:
  void connect();
  void end(bool signalled, int code);
  void step(actors::DeviceCore::Event event);
  void act(actors::DeviceCore::Action action);
  void send_peer(const PeerAddress& peer, Message message);
  void run(kernels::RunOrder order);
  void beat();
  void from_coordinator(Message message);

  Simulator& sim_;
  World& world_;
  const ActorId self_;
  const std::int64_t pid_;
  bool alive_ = true;
  TimePoint stopped_until_;
  std::unique_ptr<actors::DeviceCore> core_;
  FakeRuntime runtime_;
  Alarm alarm_;
  std::shared_ptr<Channel> coordinator_;
  std::map<ActorId, std::shared_ptr<Channel>> peers_;     // lines that we opened, side 0
  std::map<ActorId, std::shared_ptr<Channel>> incoming_;  // side 1
  std::set<std::tuple<RunId, std::uint32_t, Attempt>> unanswered_;  // DC-1
  std::deque<actors::DeviceCore::Event> events_;
  bool stepping_ = false;
};

}  // namespace callboard::simulation
