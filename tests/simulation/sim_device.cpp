#include "tests/simulation/sim_device.h"

#include <csignal>
#include <utility>

#include "tests/simulation/simulator.h"

namespace callboard::simulation {

using namespace std::chrono_literals;
using actors::DeviceCore;

SimDevice::SimDevice(Simulator& simulator, ActorId self, std::int64_t pid)
    : sim_(simulator), world_(simulator.world()), self_(std::move(self)), pid_(pid),
      core_(DeviceCore::create(actors::DeviceCoreOptions{self_})),
      runtime_(world_, simulator.memory(), simulator.faults().runtime, self_),
      alarm_(world_, [this] {
        if (alive_) step(DeviceCore::Tick{});
      }) {
  runtime_.on_release = [this](const ActorId& owner, LeaseId lease) { sim_.release(owner, lease); };
}

void SimDevice::start() {
  world_.in(world_.between(100ms, 900ms), [this] {
    if (!alive_) return;
    if (!sim_.calm() && world_.chance(sim_.faults().dies_at_start)) return end(true, SIGABRT);
    connect();
  });
}

void SimDevice::connect() {
  Hello hello;
  hello.role = Role::kDevice;
  hello.who = self_;
  hello.pid = pid_;
  hello.endpoint = "sim://" + self_.to_string();
  Ends ends;
  ends.message = [this](Message message) { from_coordinator(std::move(message)); };
  ends.lost = [this](const Error& why) {
    world_.note(self_.to_string() + " lost the coordinator: " + why.message);
    if (alive_) end(false, 1);
  };
  ends.stopped = [this] { return stopped(); };
  coordinator_ = sim_.connect_coordinator(hello, std::move(ends));
  if (!coordinator_) return end(false, 1);
  step(DeviceCore::FromCoordinator{Welcome{1, ActorId{"coordinator", 1}}});
  beat();
}

void SimDevice::beat() {
  if (!alive_) return;
  if (!stopped()) coordinator_->send(0, Beat{});
  world_.in(500ms, [this] { beat(); });
}

bool SimDevice::stopped() const { return world_.now() < stopped_until_; }

void SimDevice::stop_for(Duration time) {
  world_.note("SIGSTOP " + self_.to_string());
  stopped_until_ = world_.now() + time;
  runtime_.pause_until(stopped_until_);
}

void SimDevice::kill(int signal) {
  if (alive_) end(true, signal);
}

void SimDevice::end(bool signalled, int code) {
  world_.note(self_.to_string() + " ends: " + (signalled ? "signal " : "exit ") + std::to_string(code));
  alive_ = false;
  runtime_.stop();
  alarm_.set(kNever);
  if (coordinator_) coordinator_->die(0);
  for (auto& [peer, channel] : peers_) channel->die(0);
  for (auto& [peer, channel] : incoming_) channel->die(1);
  sim_.device_ended(self_, signalled, code);
}

void SimDevice::from_coordinator(Message message) {
  if (!alive_) return;
  if (const auto* run = std::get_if<RunFragment>(&message)) {
    unanswered_.insert({run->run, run->fragment, run->attempt});
  }
  step(DeviceCore::FromCoordinator{std::move(message)});
}

Ends SimDevice::peer_ends(const ActorId& from) {
  Ends ends;
  ends.message = [this, from](Message message) {
    if (alive_) step(DeviceCore::FromPeer{from, std::move(message)});
  };
  ends.lost = [this, from](const Error&) {
    if (alive_) step(DeviceCore::PeerGone{from});
  };
  ends.stopped = [this] { return stopped(); };
  return ends;
}

void SimDevice::step(DeviceCore::Event event) {
  if (stopped()) {
    auto later = std::make_shared<DeviceCore::Event>(std::move(event));
    world_.at(stopped_until_, [this, later] {
      if (alive_) step(std::move(*later));
    });
    return;
  }
  events_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  while (!events_.empty() && alive_) {
    DeviceCore::Event next = std::move(events_.front());
    events_.pop_front();
    for (auto& action : core_->step(std::move(next), world_.now())) act(std::move(action));
  }
  stepping_ = false;
  if (alive_) alarm_.set(core_->next_tick());
}

void SimDevice::act(DeviceCore::Action action) {
  if (auto* send = std::get_if<DeviceCore::SendCoordinator>(&action)) {
    if (const auto* done = std::get_if<FragmentFinished>(&send->message)) {
      world_.note(self_.to_string() + " finished run " + std::to_string(done->run) + "." +
                  std::to_string(done->fragment) + (done->error ? ": " + done->error->message : ""));
      if (unanswered_.erase({done->run, done->fragment, done->attempt}) == 0) {
        world_.violation("DC-1: " + self_.to_string() + " answers run " + std::to_string(done->run) + " twice");
      }
    }
    if (coordinator_) coordinator_->send(0, send->message);
  } else if (auto* peer = std::get_if<DeviceCore::SendPeer>(&action)) {
    send_peer(peer->peer, std::move(peer->message));
  } else if (auto* load = std::get_if<DeviceCore::Load>(&action)) {
    runtime_.load(load->fragment);
    ++sim_.tally().loads;
    kernels::LoadedInfo info;
    info.pure = load->fragment.states.empty();
    world_.in(world_.between(1ms, 50ms), [this, info, program = load->fragment.program, index = load->fragment.index] {
      if (alive_) step(DeviceCore::Loaded{program, index, info});
    });
  } else if (auto* unload = std::get_if<DeviceCore::Unload>(&action)) {
    runtime_.unload(unload->program);
  } else if (auto* order = std::get_if<DeviceCore::Run>(&action)) {
    run(std::move(order->order));
  } else if (auto* cancel = std::get_if<DeviceCore::Cancel>(&action)) {
    runtime_.cancel(cancel->run, cancel->reason);
  } else if (auto* foreign = std::get_if<DeviceCore::Release>(&action)) {
    const auto& block = std::get<ArenaBlock>(std::get<TensorHandle>(foreign->value).data);
    sim_.release(block.owner, block.lease);
  } else if (auto* own = std::get_if<DeviceCore::ReleaseOwn>(&action)) {
    for (LeaseId lease : own->leases) sim_.memory().release(self_, lease);
  } else if (auto* holder = std::get_if<DeviceCore::EndHolder>(&action)) {
    sim_.memory().holder_gone(self_, holder->holder);
  }
}

void SimDevice::run(kernels::RunOrder order) {
  const RunId id = order.run;
  const Attempt attempt = order.attempt;
  const std::uint32_t fragment = order.fragment;
  for (const ActorId& holder : order.edge_holders) {
    if (holder.incarnation == 0) world_.violation(self_.to_string() + " does not know the holder of an edge");
  }
  runtime_.run(std::move(order), [this, id, attempt, fragment](kernels::RunResult result) {
    if (alive_) step(DeviceCore::Finished{id, attempt, fragment, std::move(result)});
  });
}

void SimDevice::send_peer(const PeerAddress& peer, Message message) {
  auto& line = peers_[peer.who];
  if (!line) {
    Ends mine;
    mine.message = [](const Message&) {};
    mine.lost = [this, who = peer.who](const Error&) {
      if (!alive_) return;
      world_.in(0ms, [this, who] { peers_.erase(who); });
      step(DeviceCore::PeerGone{who});
    };
    mine.stopped = [this] { return stopped(); };
    SimDevice* other = sim_.device(peer.who);
    const bool there = other != nullptr && other->alive();
    Ends theirs =
        there ? other->peer_ends(self_) : Ends{[](const Message&) {}, [](const Error&) {}, [] { return false; }};
    line = Channel::make(world_, sim_.faults().network, self_, peer.who, std::move(mine), std::move(theirs));
    line->open(0);
    if (there) {
      line->open(1);
      other->hold(self_, line);
    }
  }
  line->send(0, message);
}

std::string SimDevice::leftovers() const {
  std::string text;
  if (!unanswered_.empty()) text += " " + std::to_string(unanswered_.size()) + " runs are not answered (DC-1);";
  if (core_->next_tick() != kNever) text += " its core still waits for something;";
  return text;
}

}  // namespace callboard::simulation
