#include "actors/coordinator/coordinator_actor.h"

#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "actors/coordinator/coordinator_core.h"
#include "actors/core/alarm.h"
#include "actors/core/loop.h"
#include "actors/core/stepper.h"
#include "actors/core/transport.h"
#include "messages/base/fd.h"
#include "messages/base/log.h"

namespace callboard::actors {
namespace {

constexpr Duration kFlushInterval = std::chrono::milliseconds(5);
constexpr Duration kParentInterval = std::chrono::seconds(1);
constexpr std::size_t kBacklogMax =
    8'192;  // messages for one peer beyond its link's window; the core's tables bound it lower

CoordinatorOptions core_options(const CoordinatorProcessOptions& options) {
  const config::ClusterConfig& config = options.config;
  CoordinatorOptions core;
  core.self = ActorId{"coordinator", options.epoch};
  core.cluster = config.name;
  core.epoch = options.epoch;
  for (const config::DeviceConfig& device : config.devices) {
    core.devices.push_back({device.name, device.memory_limit, device.kind != "cpu", device.output_device != "cpu",
                            device.output_device == "cuda_only"});
  }
  core.default_deadline = config.limits.deadline;
  core.beat_interval = config.heartbeat.interval;
  core.beat_dead = config.heartbeat.dead;
  core.retry_pure = config.retry == "pure";
  core.attempts_max = config.limits.attempts;
  core.requests_per_client = config.limits.requests_per_client;
  core.clients_max = config.limits.clients;
  core.runs_per_device = config.limits.device_fragments;
  core.edge_bytes = config.limits.edge_bytes;
  return core;
}

/// Lives in run_coordinator(); everything runs on the loop's thread.
class CoordinatorActor {
 public:
  explicit CoordinatorActor(CoordinatorProcessOptions options)
      : options_(std::move(options)),
        parent_(::getppid()),
        loop_(Loop::create()),
        core_(CoordinatorCore::create(core_options(options_))) {}

  ~CoordinatorActor() { hub_.reset(); }

  Status start();
  void run() { loop_->run(); }

 private:
  Status watch_signals();
  Status greet(const Hello& hello);
  void watch_client(const Hello& hello);
  void unwatch_client(const ActorId& client);
  void step(CoordinatorCore::Event&& event);
  void act(CoordinatorCore::Action&& action);
  void send(const ActorId& to, Message&& message);
  /// False: the link has no room; the message is untouched.
  bool hand_over(const ActorId& to, Message& message);
  void flush();
  void arm_flush();
  void watch_parent();

  const CoordinatorProcessOptions options_;
  const pid_t parent_;
  std::unique_ptr<Loop> loop_;
  Alarm tick_{*loop_, [this] { step(CoordinatorCore::Tick{}); }};
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<CoordinatorCore> core_;
  std::unique_ptr<Hub> hub_;
  UniqueFd signals_;
  Stepper<CoordinatorCore> stepper_;
  std::map<ActorId, UniqueFd> clients_;             // a pidfd for each client process, readable when it ends
  std::map<ActorId, std::deque<Message>> backlog_;  // what a peer's link has no room for yet
  bool flush_armed_ = false;
};

Status CoordinatorActor::start() {
  CALLBOARD_TRY(watch_signals());
  messenger_ = Messenger::create();
  Hub::Options hub;
  hub.self = ActorId{"coordinator", options_.epoch};
  hub.epoch = options_.epoch;
  hub.cluster = options_.config.name;
  // Everybody, the node actor, and one client too many: the core refuses that one, and says by which limit.
  hub.peers_max = options_.config.limits.clients + options_.config.devices.size() + 1 + 1;
  CALLBOARD_ASSIGN(hub.endpoint, ipc_endpoint(options_.run_dir + "/coordinator.sock"));
  Hub::Events events;
  events.hello = [this](const Hello& hello) { return greet(hello); };
  events.message = [this](const ActorId& from, Message message) {
    step(CoordinatorCore::MessageFrom{from, std::move(message)});
  };
  events.lost = [this](const ActorId& peer, const Error& why) {
    backlog_.erase(peer);
    unwatch_client(peer);
    step(CoordinatorCore::PeerLost{peer, why});
  };
  CALLBOARD_ASSIGN(hub_, Hub::bind(*loop_, *messenger_, std::move(hub), std::move(events)));
  log::info("listening", options_.run_dir + "/coordinator.sock epoch=" + std::to_string(options_.epoch));
  step(CoordinatorCore::Tick{});
  watch_parent();
  return {};
}

Status CoordinatorActor::watch_signals() {
  // Blocked before any other thread exists, so that all of them inherit it. A terminal's Ctrl-C is the node actor's
  // business.
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return fail(ErrorCode::kEnvironment, std::string("signalfd: ") + std::strerror(errno));
  loop_->watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    log::info("stopping", "signal " + std::to_string(info.ssi_signo) + " from pid " + std::to_string(info.ssi_pid));
    loop_->stop();
  });
  return {};
}

Status CoordinatorActor::greet(const Hello& hello) {
  CALLBOARD_TRY(core_->admit(hello));
  step(CoordinatorCore::PeerJoined{hello});
  if (hello.role == Role::kClient) watch_client(hello);
  return {};
}

// ZeroMQ does not tell that a peer's process was killed; waiting for its beats would keep its calls running for long.
void CoordinatorActor::watch_client(const Hello& hello) {
  if (hello.pid <= 0 || clients_.count(hello.who) != 0) return;
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(hello.pid), 0)));
  if (!pidfd) return;  // another pid namespace: its beats must do
  loop_->watch(pidfd.get(), [this, who = hello.who, fd = pidfd.get()] {
    loop_->unwatch(fd);
    loop_->post([this, who] {
      unwatch_client(who);
      backlog_.erase(who);
      hub_->forget(who);
      step(CoordinatorCore::PeerLost{who, Error(ErrorCode::kPeerLost, "the client's process ended")});
    });
  });
  clients_.emplace(hello.who, std::move(pidfd));
}

void CoordinatorActor::unwatch_client(const ActorId& client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  loop_->unwatch(found->second.get());
  clients_.erase(found);
}

void CoordinatorActor::step(CoordinatorCore::Event&& event) {
  const auto carry_out = [this](CoordinatorCore::Action&& action) { act(std::move(action)); };
  if (!stepper_.step(*core_, std::move(event), carry_out)) return;
  // A tick that comes too early only looks; moving the timer at every step would cost more.
  tick_.no_later_than(core_->next_tick());
}

void CoordinatorActor::act(CoordinatorCore::Action&& action) {
  if (auto* out = std::get_if<CoordinatorCore::Send>(&action)) {
    send(out->to, std::move(out->message));
  } else if (const auto* forget = std::get_if<CoordinatorCore::Forget>(&action)) {
    backlog_.erase(forget->peer);
    unwatch_client(forget->peer);
    hub_->forget(forget->peer);
  } else if (const auto* line = std::get_if<CoordinatorCore::LogLine>(&action)) {
    log::write(line->level, line->event, line->text);
  } else if (const auto* level = std::get_if<CoordinatorCore::SetLogLevel>(&action)) {
    log::start(ActorId{"coordinator", options_.epoch}.to_string(), level->level);
  }
}

void CoordinatorActor::send(const ActorId& to, Message&& message) {
  if (std::holds_alternative<Beat>(message)) {
    if (Status status = hub_->send_once(to, message); !status) log::debug("beat_not_sent", status.error().message);
    return;
  }
  const auto waiting = backlog_.find(to);
  if (waiting == backlog_.end() && hand_over(to, message)) return;
  std::deque<Message>& queue = backlog_[to];
  queue.push_back(std::move(message));
  if (queue.size() > kBacklogMax) {
    backlog_.erase(to);
    hub_->forget(to);
    step(CoordinatorCore::PeerLost{to, Error(ErrorCode::kOverloaded, "it does not take its messages")});
    return;
  }
  arm_flush();
}

bool CoordinatorActor::hand_over(const ActorId& to, Message& message) {
  const Status status = hub_->send(to, message);
  if (status) return true;
  if (status.error().code == ErrorCode::kOverloaded) return false;
  if (status.error().code == ErrorCode::kTooLarge) {
    step(CoordinatorCore::SendRefused{to, std::move(message), status.error()});
  } else {
    // The peer is gone; PeerLost says so, or has said so.
    log::debug("not_sent",
               std::string(message_name(message)) + " to " + to.to_string() + ": " + status.error().message);
  }
  return true;
}

void CoordinatorActor::flush() {
  flush_armed_ = false;
  std::vector<ActorId> peers;
  for (const auto& [peer, queue] : backlog_) peers.push_back(peer);
  for (const ActorId& peer : peers) {
    // hand_over() may step the core, whose actions may add to or end any backlog.
    for (auto found = backlog_.find(peer); found != backlog_.end(); found = backlog_.find(peer)) {
      if (found->second.empty()) {
        backlog_.erase(found);
        break;
      }
      Message message = std::move(found->second.front());
      found->second.pop_front();
      if (hand_over(peer, message)) continue;
      backlog_[peer].push_front(std::move(message));
      break;
    }
  }
  if (!backlog_.empty()) arm_flush();
}

void CoordinatorActor::arm_flush() {
  if (flush_armed_) return;
  flush_armed_ = true;
  loop_->in(kFlushInterval, [this] { flush(); });
}

void CoordinatorActor::watch_parent() {
  loop_->in(kParentInterval, [this] {
    // The parent-death signal is the first guard; this one also holds where the spawner did not set it.
    if (::getppid() != parent_) {
      log::error("parent_gone", "the node actor ended; so does the coordinator");
      loop_->stop();
      return;
    }
    watch_parent();
  });
}

}  // namespace

int run_coordinator(CoordinatorProcessOptions options) {
  CoordinatorActor actor(std::move(options));
  if (Status started = actor.start(); !started) {
    log::error("start_failed", started.error().to_string());
    return 1;
  }
  actor.run();
  return 0;
}

}  // namespace callboard::actors
