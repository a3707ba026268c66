#include "tests/simulation/simulator.h"

#include <csignal>
#include <utility>

#include <nlohmann/json.hpp>

#include "tests/simulation/sim_client.h"
#include "tests/simulation/sim_device.h"

namespace callboard::simulation {

using namespace std::chrono_literals;
using actors::CoordinatorCore;
using actors::Supervisor;

namespace {

const ActorId kCoordinator{"coordinator", 1};
const ActorId kNode{"node", 1};
constexpr std::size_t kRequestsPerClient = 24;
constexpr std::size_t kRunsPerDevice = 8;

Faults draw_faults(World& world) {
  Faults faults;
  const auto some = [&](double most) {
    return world.chance(0.5) ? most * static_cast<double>(world.random.below(100)) / 100 : 0;
  };
  faults.network.loss = some(0.05);
  faults.network.duplicate = some(0.1);
  faults.network.slow = some(0.1);
  faults.runtime.fails = some(0.3);
  faults.runtime.slowest = world.chance(0.2) ? Duration(400ms) : Duration(5ms);
  faults.kills_per_second = some(1.0);
  faults.stops_per_second = some(0.3);
  faults.cuts_per_second = some(0.3);
  faults.client_deaths_per_second = some(0.3);
  faults.dies_at_start = some(0.3);
  return faults;
}

}  // namespace

Simulator::Simulator(SimulationOptions options)
    : options_(options), world_(options.seed, options.verbose), memory_(world_), faults_(draw_faults(world_)) {
  for (std::size_t i = 0; i <= world_.random.below(4); ++i) device_names_.push_back("cpu" + std::to_string(i));
  actors::CoordinatorOptions core;
  core.self = kCoordinator;
  core.cluster = "simulated";
  for (const std::string& name : device_names_) core.devices.push_back({name, 0});
  core.requests_per_client = kRequestsPerClient;
  core.runs_per_device = kRunsPerDevice;
  core.retry_pure = world_.chance(0.7);
  core.attempts_max = 1 + static_cast<std::uint32_t>(world_.random.below(4));
  coordinator_ = CoordinatorCore::create(core);
  coordinator_alarm_ = std::make_unique<Alarm>(world_, [this] { coordinator_step(CoordinatorCore::Tick{}); });
  actors::SupervisorOptions node;
  node.devices = device_names_;
  node.restarts_max = world_.chance(0.2) ? 3 : 1'000;
  node.seed = options.seed;
  supervisor_ = Supervisor::create(node);
  supervisor_alarm_ = std::make_unique<Alarm>(world_, [this] { node_step(Supervisor::Tick{}); });
}

Simulator::~Simulator() = default;

bool Simulator::run() {
  start();
  const TimePoint calm_at = world_.now() + options_.faults_for;
  while (world_.now() < calm_at && !world_.broken()) {
    world_.run_until(world_.now() + 100ms);
    if (!world_.broken()) cause_fault();
    check_bounds();
  }
  if (world_.broken()) return false;
  world_.note("---- faults end");
  calm_ = true;
  faults_.network = {};
  faults_.runtime.fails = 0;
  // Deadlines are at most 20 s; then whoever is left lets go. Links that lost a frame before this take a while to
  // notice.
  for (int i = 0; i < 450 && world_.run_until(world_.now() + 100ms); ++i) check_bounds();
  for (auto& [id, client] : clients_) client->close();
  world_.run_until(world_.now() + 80s);
  if (!world_.broken()) check_end();
  return !world_.broken();
}

void Simulator::start() {
  Hello hello;
  hello.role = Role::kNode;
  hello.who = kNode;
  Ends ends;
  ends.message = [this](const Message& message) { node_message(message); };
  ends.lost = [this](const Error& why) { world_.violation("the node actor lost the coordinator: " + why.message); };
  ends.stopped = [] { return false; };
  node_channel_ = connect_coordinator(hello, std::move(ends));
  node_step(Supervisor::Start{});
  for (std::size_t i = 0; i <= world_.random.below(3); ++i) add_client();
}

void Simulator::add_client() {
  const ActorId id{"client" + std::to_string(clients_.size()), 1};
  clients_[id] = std::make_unique<SimClient>(*this, id);
  clients_[id]->start();
}

// -- the coordinator's shell ------------------------------------------------------------------------------------------

std::shared_ptr<Channel> Simulator::connect_coordinator(Hello hello, Ends ends) {
  if (Status let_in = coordinator_->admit(hello); !let_in) {
    world_.note(hello.who.to_string() + " is refused: " + let_in.error().message);
    return nullptr;
  }
  const ActorId who = hello.who;
  Ends mine;
  mine.message = [this, who](Message message) {
    coordinator_step(CoordinatorCore::MessageFrom{who, std::move(message)});
  };
  mine.lost = [this, who](Error why) {
    peers_.erase(who);
    coordinator_step(CoordinatorCore::PeerLost{who, std::move(why)});
  };
  mine.stopped = [] { return false; };
  auto channel = Channel::make(world_, faults_.network, who, kCoordinator, std::move(ends), std::move(mine));
  channel->open(0);
  channel->open(1);
  peers_[who] = channel;
  coordinator_step(CoordinatorCore::PeerJoined{std::move(hello)});
  return channel;
}

void Simulator::coordinator_step(CoordinatorCore::Event event) {
  for (auto& action : coordinator_->step(std::move(event), world_.now())) {
    if (auto* send = std::get_if<CoordinatorCore::Send>(&action)) {
      check_sent(send->to, send->message);
      if (const auto peer = peers_.find(send->to); peer != peers_.end()) peer->second->send(1, send->message);
    } else if (const auto* forget = std::get_if<CoordinatorCore::Forget>(&action)) {
      if (const auto peer = peers_.find(forget->peer); peer != peers_.end()) {
        peer->second->forget(1);
        peers_.erase(peer);
      }
    } else if (const auto* line = std::get_if<CoordinatorCore::LogLine>(&action)) {
      world_.note("coordinator: " + line->event + " " + line->text);
    }
  }
  coordinator_alarm_->set(coordinator_->next_tick());
}

void Simulator::check_sent(const ActorId& to, const Message& message) {
  if (const auto* outcome = std::get_if<Outcome>(&message)) {
    if (!outcomes_.insert({to, outcome->request}).second) {
      world_.violation("CO-1: two outcomes for request " + std::to_string(outcome->request) + " of " + to.to_string());
    }
  } else if (const auto* run = std::get_if<RunFragment>(&message)) {
    if (run->attempt > 1) return;  // it started in order the first time
    RunId& last = last_started_[{run->client, to.name}];
    if (run->run < last) {
      world_.violation("CO-4: run " + std::to_string(run->run) + " starts after run " + std::to_string(last));
    }
    last = run->run;
  }
}

// -- the node actor's shell -------------------------------------------------------------------------------------------

void Simulator::node_step(const Supervisor::Event& event) {
  for (auto& action : supervisor_->step(event, world_.now())) {
    if (const auto* order = std::get_if<Supervisor::Spawn>(&action)) {
      world_.in(0ms, [this, who = order->who] { spawn(who); });
    } else if (const auto* kill = std::get_if<Supervisor::Signal>(&action)) {
      world_.in(1ms, [this, who = kill->who, number = kill->signal] { signal(who, number); });
    } else if (const auto* report = std::get_if<Supervisor::Report>(&action)) {
      node_channel_->send(0, report->message);
    }
  }
  supervisor_alarm_->set(supervisor_->next_tick());
}

void Simulator::spawn(const ActorId& who) {
  const std::int64_t pid = next_pid_++;
  if (who.name != kCoordinator.name) {
    for (const auto& [id, device] : devices_) {
      if (id.name == who.name && device->alive())
        world_.violation("SV-1: two incarnations of " + who.name + " at once");
    }
    if (who.incarnation > 1) ++tally_.restarts;
    devices_[who] = std::make_unique<SimDevice>(*this, who, pid);
    devices_[who]->start();
  }
  node_step(Supervisor::Spawned{who, pid});
}

void Simulator::signal(const ActorId& who, int number) {
  if (SimDevice* target = device(who)) target->kill(number);
}

void Simulator::node_message(const Message& message) {
  if (const auto* stop = std::get_if<StopActor>(&message)) {
    node_step(Supervisor::StopOne{stop->who, stop->kill, stop->restart});
  }
}

SimDevice* Simulator::device(const ActorId& who) {
  const auto found = devices_.find(who);
  return found == devices_.end() ? nullptr : found->second.get();
}

void Simulator::device_ended(const ActorId& who, bool signalled, int code) {
  memory_.owner_gone(who);
  holder_gone(who);
  world_.in(world_.between(10us, 2ms), [this, who, signalled, code] {
    ActorExited report;
    report.who = who;
    report.signalled = signalled;
    report.code = code;
    node_step(Supervisor::Exited{who, report});
  });
}

void Simulator::client_ended(const ActorId& who) {
  memory_.owner_gone(who);
  holder_gone(who);
}

/// The node actor tells every owner when a holder's process has ended.
void Simulator::holder_gone(const ActorId& who) {
  world_.in(world_.between(10us, 2ms), [this, who] {
    for (const auto& [id, device] : devices_) {
      if (device->alive()) memory_.holder_gone(id, who);
    }
  });
}

void Simulator::release(const ActorId& owner, LeaseId lease) {
  world_.in(world_.between(10us, 6ms), [this, owner, lease] { memory_.release(owner, lease); });
}

// -- faults -----------------------------------------------------------------------------------------------------------

/// Called ten times a second.
void Simulator::cause_fault() {
  const auto happens = [&](double per_second) { return world_.chance(per_second / 10); };
  std::vector<SimDevice*> living;
  for (auto& [id, device] : devices_) {
    if (device->alive()) living.push_back(device.get());
  }
  if (!living.empty() && happens(faults_.kills_per_second)) {
    ++tally_.kills;
    living[world_.random.below(living.size())]->kill(world_.chance(0.5) ? SIGKILL : SIGSEGV);
  }
  if (!living.empty() && happens(faults_.stops_per_second)) {
    ++tally_.stops;
    living[world_.random.below(living.size())]->stop_for(world_.between(100ms, 8s));
  }
  if (!living.empty() && happens(faults_.cuts_per_second)) {
    ++tally_.cuts;
    SimDevice& device = *living[world_.random.below(living.size())];
    const TimePoint until = world_.now() + world_.between(100ms, 6s);
    if (device.coordinator()) device.coordinator()->cut_until(until);
    for (auto& [peer, line] : device.peers()) {
      if (world_.chance(0.5)) line->cut_until(until);
    }
  }
  if (happens(faults_.client_deaths_per_second)) {
    ++tally_.client_deaths;
    auto client = clients_.begin();
    std::advance(client, static_cast<std::ptrdiff_t>(world_.random.below(clients_.size())));
    client->second->die();
    if (clients_.size() < 8) add_client();
  }
}

// -- checks -----------------------------------------------------------------------------------------------------------

void Simulator::check_bounds() {
  for (auto& [id, client] : clients_) {
    if (client->alive()) client->check_hung();
  }
  if (world_.random.below(10) != 0) return;  // the status is dear
  const auto status = nlohmann::json::parse(coordinator_->status_json(world_.now()));
  for (const auto& client : status["clients"]) {
    if (client["requests"] > kRequestsPerClient) world_.violation("CO-5: too many requests of one client");
  }
  for (const auto& actor : status["actors"]) {
    if (actor["role"] == "device" && actor["in_flight"] > kRunsPerDevice)
      world_.violation("CO-5: too many runs on a device");
  }
}

void Simulator::check_end() {
  for (const auto& [id, client] : clients_) {
    if (std::string left = client->leftovers(); !left.empty() && !client->died()) {
      world_.violation(id.to_string() + " at the end:" + left);
    }
    if (!client->died() && memory_.inputs(id) != 0)
      world_.violation(id.to_string() + " never gets all its inputs back");
  }
  for (const auto& [id, device] : devices_) {
    if (!device->alive()) continue;
    if (std::string left = device->leftovers(); !left.empty()) world_.violation(id.to_string() + " at the end:" + left);
    if (memory_.leases(id) != 0) {
      world_.violation("DC-3: leases of " + id.to_string() + " are left:" + memory_.leases_text(id));
    }
  }
  const auto status = nlohmann::json::parse(coordinator_->status_json(world_.now()));
  tally_.retried = status["counters"]["retried"].get<std::uint64_t>();
  if (status["requests"]["waiting"] != 0 || status["requests"]["running"] != 0) {
    world_.violation("the coordinator still knows requests: " + status["requests"].dump());
  }
  if (!status["programs"].empty())
    world_.violation("the coordinator still knows programs: " + status["programs"].dump());
  if (!status["clients"].empty()) world_.violation("the coordinator still knows clients: " + status["clients"].dump());
}

std::string Simulator::report() const {
  std::string text = "seed " + std::to_string(options_.seed) + ": " +
                     (world_.broken() ? world_.violation_text() : std::string("all invariants held")) + "\n";
  if (world_.broken()) {
    for (const std::string& line : world_.log()) text += line + "\n";
  }
  return text;
}

}  // namespace callboard::simulation
