#include "actors/node/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

namespace callboard::actors {
namespace {

constexpr std::int32_t kSpawnFailedCode = 127;  // what a shell says of a program that it cannot start

enum class State { kIdle, kStarting, kRunning, kBackoff, kFailed };

struct Actor {
  Actor(std::string actor_name, bool is_essential) : name(std::move(actor_name)), essential(is_essential) {}

  std::string name;
  bool essential;  // the cluster ends with it
  State state = State::kIdle;
  Incarnation incarnation = 0;
  std::int64_t pid = 0;
  TimePoint due = kNever;          // kBackoff: of the restart; else of the SIGKILL after StopOne
  int signalled = 0;               // the strongest signal that we sent to this incarnation
  bool stop_asked = false;         // this incarnation ends because we want it
  bool start_again = false;        // after such an end
  std::deque<TimePoint> restarts;  // charged ones, within the window

  ActorId id() const { return {name, incarnation}; }
  bool alive() const { return state == State::kStarting || state == State::kRunning; }
};

std::string end_text(const ActorExited& report) {
  if (report.pid == 0) return "could not be started";
  return report.signalled ? "ended by signal " + std::to_string(report.code)
                          : "ended with exit status " + std::to_string(report.code);
}

class StepSupervisor final : public Supervisor {
 public:
  explicit StepSupervisor(SupervisorOptions options) : options_(std::move(options)), random_(options_.seed) {
    actors_.reserve(1 + options_.devices.size());
    actors_.emplace_back(kCoordinatorName, true);
    for (const std::string& name : options_.devices) actors_.emplace_back(name, false);
  }

  Actions step(const Event& event, TimePoint now) override {
    actions_.clear();
    std::visit([&](const auto& e) { on(e, now); }, event);
    if (stopping_) advance_stop(now);
    return std::exchange(actions_, {});
  }

  TimePoint next_tick() const override {
    TimePoint next = kNever;
    for (const Actor& actor : actors_) {
      if (stopping_ ? actor.alive() && actor.signalled != SIGKILL : true) next = std::min(next, due_of(actor));
    }
    return next;
  }

 private:
  void on(const Start&, TimePoint now);
  void on(const Spawned& event, TimePoint now);
  void on(const SpawnFailed& event, TimePoint now);
  void on(const Exited& event, TimePoint now);
  void on(const Stop& event, TimePoint now);
  void on(const StopOne& event, TimePoint now);
  void on(const Tick&, TimePoint now);

  Actor* current(const ActorId& who, const char* what);
  TimePoint due_of(const Actor& actor) const;
  void start(Actor& actor);
  void send_signal(Actor& actor, int signal);
  void ended(Actor& actor, ActorExited report, bool may_help, TimePoint now);
  Duration plan_restart(Actor& actor, bool may_help, TimePoint now);
  Duration backoff(std::size_t restarts);
  void begin_stop(TimePoint now);
  void advance_stop(TimePoint now);
  void say(log::Level level, std::string event, std::string text) {
    actions_.push_back(LogLine{level, std::move(event), std::move(text)});
  }

  SupervisorOptions options_;
  std::mt19937_64 random_;
  std::vector<Actor> actors_;  // the coordinator first
  Actions actions_;            // of the step at hand
  bool started_ = false;
  bool stopping_ = false;
  bool finished_ = false;
  TimePoint devices_until_ = kNever;      // then the devices that still live are killed
  TimePoint coordinator_until_ = kNever;  // then everything is
  bool failed_ = false;
  std::string why_;
};

void StepSupervisor::on(const Start&, TimePoint) {
  if (std::exchange(started_, true) || stopping_) return;
  for (Actor& actor : actors_) start(actor);
}

void StepSupervisor::on(const Spawned& event, TimePoint now) {
  Actor* actor = current(event.who, "spawned");
  if (actor == nullptr || actor->state != State::kStarting) return;
  actor->state = State::kRunning;
  actor->pid = event.pid;
  actions_.push_back(Report{ActorStarted{event.who, event.pid}});
  // It was to be ended before it had a pid: the time for the SIGKILL runs from now.
  if (actor->stop_asked && !stopping_) send_signal(*actor, actor->due <= now ? SIGKILL : SIGTERM);
}

void StepSupervisor::on(const SpawnFailed& event, TimePoint now) {
  Actor* actor = current(event.who, "spawn_failed");
  if (actor == nullptr || actor->state != State::kStarting) return;
  ActorExited report;
  report.who = event.who;
  report.code = kSpawnFailedCode;
  report.log_tail = event.error.to_string();
  ended(*actor, std::move(report), event.error.code == ErrorCode::kResourceExhausted, now);
}

void StepSupervisor::on(const Exited& event, TimePoint now) {
  Actor* actor = current(event.who, "exited");
  if (actor == nullptr || !actor->alive()) return;
  ended(*actor, event.report, true, now);
}

void StepSupervisor::on(const Stop& event, TimePoint now) {
  begin_stop(now);
  if (event.force) devices_until_ = coordinator_until_ = now;
}

void StepSupervisor::on(const StopOne& event, TimePoint now) {
  const auto actor =
      std::find_if(actors_.begin(), actors_.end(), [&](const Actor& a) { return a.name == event.who.name; });
  const bool is_current =
      actor != actors_.end() && (event.who.incarnation == 0 || event.who.incarnation == actor->incarnation);
  if (stopping_ || !is_current || actor->essential) {
    return say(log::Level::kWarning, "stop_ignored",
               event.who.to_string() + " is not an actor that can be stopped alone");
  }
  if (actor->alive()) {
    actor->stop_asked = true;
    actor->start_again = event.restart;
    actor->due = std::min(actor->due, event.kill ? now : after(now, options_.stop_grace));
    if (actor->state == State::kRunning) send_signal(*actor, event.kill ? SIGKILL : SIGTERM);
  } else if (event.restart) {
    actor->restarts.clear();
    start(*actor);
  } else {
    actor->state = State::kIdle;
    actor->due = kNever;
  }
}

void StepSupervisor::on(const Tick&, TimePoint now) {
  if (stopping_) return;
  for (Actor& actor : actors_) {
    if (actor.due > now) continue;
    if (actor.state == State::kBackoff) {
      start(actor);
    } else if (actor.state == State::kRunning) {
      actor.due = kNever;
      send_signal(actor, SIGKILL);
    }
  }
}

Actor* StepSupervisor::current(const ActorId& who, const char* what) {
  for (Actor& actor : actors_) {
    if (actor.id() == who) return &actor;
  }
  say(log::Level::kWarning, "stale_event", std::string(what) + " of " + who.to_string() + ", which is not current");
  return nullptr;
}

TimePoint StepSupervisor::due_of(const Actor& actor) const {
  // While its start is under way there is no pid to signal; Spawned sees to it.
  if (actor.state == State::kStarting) return kNever;
  if (!stopping_) return actor.due;
  return actor.essential ? coordinator_until_ : devices_until_;
}

void StepSupervisor::start(Actor& actor) {
  ++actor.incarnation;
  actor.state = State::kStarting;
  actor.pid = 0;
  actor.due = kNever;
  actor.signalled = 0;
  actor.stop_asked = false;
  actor.start_again = false;
  actions_.push_back(Spawn{actor.id()});
}

void StepSupervisor::send_signal(Actor& actor, int signal) {
  if (actor.signalled == signal || actor.signalled == SIGKILL) return;
  actor.signalled = signal;
  actions_.push_back(Signal{actor.id(), actor.pid, signal});
}

void StepSupervisor::ended(Actor& actor, ActorExited report, bool may_help, TimePoint now) {
  report.who = actor.id();
  report.stopped_by_us = actor.stop_asked;
  const Duration wait = plan_restart(actor, may_help, now);
  const bool again = wait != Duration::max();
  report.restart_in_ms = again ? std::chrono::duration_cast<std::chrono::milliseconds>(wait).count() : -1;
  const std::string text = actor.id().to_string() + " " + end_text(report);
  if (!report.stopped_by_us) {
    say(log::Level::kWarning, "actor_ended",
        text + (!again                     ? "; is not started again"
                : wait == Duration::zero() ? "; starts again at once"
                                           : "; starts again in " + std::to_string(report.restart_in_ms) + " ms"));
  }
  const bool fatal = actor.essential && !stopping_;
  if (fatal) {
    failed_ = true;
    why_ = text + (report.log_tail.empty() ? "" : "; it said last: " + report.log_tail);
  }
  actions_.push_back(Report{std::move(report)});
  if (fatal) begin_stop(now);
  if (!again) return;
  actor.state = State::kBackoff;
  actor.due = after(now, wait);
  if (wait == Duration::zero()) start(actor);
}

/// How long until it is started again; Duration::max() for never. Charges the budget and sets the state.
Duration StepSupervisor::plan_restart(Actor& actor, bool may_help, TimePoint now) {
  const bool asked = actor.stop_asked;
  actor.state = State::kIdle;
  actor.pid = 0;
  actor.due = kNever;
  if (stopping_ || actor.essential) return Duration::max();
  if (asked) return actor.start_again ? Duration::zero() : Duration::max();
  actor.state = State::kFailed;
  if (!options_.restart || !may_help) return Duration::max();
  while (!actor.restarts.empty() && now - actor.restarts.front() >= options_.window) actor.restarts.pop_front();
  if (actor.restarts.size() >= options_.restarts_max) {
    say(log::Level::kError, "actor_failed",
        actor.name + " was restarted " + std::to_string(actor.restarts.size()) + " times within " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.window).count()) +
            " s; it stays down until it is restarted by hand");
    return Duration::max();
  }
  const Duration wait = backoff(actor.restarts.size());
  actor.restarts.push_back(now);
  return wait;
}

/// The first restart is immediate, later ones back off: most deaths do not repeat.
Duration StepSupervisor::backoff(std::size_t restarts) {
  if (restarts == 0) return Duration::zero();
  Duration wait = options_.backoff_min;
  for (std::size_t i = 1; i < restarts && wait < options_.backoff_max; ++i) wait *= 2;
  wait = std::min(wait, options_.backoff_max);
  std::uniform_real_distribution<double> jitter(0.8, 1.2);
  return std::chrono::duration_cast<Duration>(wait * jitter(random_));
}

void StepSupervisor::begin_stop(TimePoint now) {
  if (std::exchange(stopping_, true)) return;
  devices_until_ = after(now, options_.stop_grace * 4 / 5);
  coordinator_until_ = after(now, options_.stop_grace);
  for (Actor& actor : actors_) {
    if (actor.state == State::kBackoff) actor.state = State::kIdle;
    actor.due = kNever;
    actor.stop_asked = actor.stop_asked || actor.alive();
    actor.start_again = false;
  }
}

void StepSupervisor::advance_stop(TimePoint now) {
  if (finished_) return;
  bool devices_alive = false;
  for (std::size_t i = 1; i < actors_.size(); ++i) {
    Actor& device = actors_[i];
    devices_alive = devices_alive || device.alive();
    if (device.state == State::kRunning) send_signal(device, now >= devices_until_ ? SIGKILL : SIGTERM);
  }
  Actor& coordinator = actors_.front();
  if (coordinator.state == State::kRunning) {
    if (now >= coordinator_until_) {
      send_signal(coordinator, SIGKILL);
    } else if (!devices_alive) {
      send_signal(coordinator, SIGTERM);
    }
  }
  if (devices_alive || coordinator.alive()) return;
  finished_ = true;
  actions_.push_back(Finished{failed_, why_});
}

}  // namespace

std::unique_ptr<Supervisor> Supervisor::create(SupervisorOptions options) {
  return std::make_unique<StepSupervisor>(std::move(options));
}

}  // namespace callboard::actors
