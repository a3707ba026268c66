#include "actors/node/node_actor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "actors/core/loop.h"
#include "actors/core/process.h"
#include "actors/core/run_dir.h"
#include "actors/core/transport.h"
#include "actors/node/memory_broker.h"
#include "actors/node/supervisor.h"
#include "messages/base/log.h"

namespace callboard::actors {
namespace {

constexpr Epoch kFirstEpoch = 1;
constexpr int kDeviceOomScore = 500;                      // the kernel takes a device before the coordinator or us
constexpr Duration kStopSlack = std::chrono::seconds(2);  // beyond the grace time; then what hangs is left behind
constexpr Duration kExitReportWait =
    std::chrono::seconds(1);  // a lost coordinator may be one whose end is not reported yet
constexpr Duration kOrphanWait = std::chrono::seconds(1);

Status write_private_file(const std::string& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return fail(ErrorCode::kEnvironment, "'" + path + "' cannot be written: " + ::strerror(errno));
}

SupervisorOptions supervisor_options(const config::ClusterConfig& config) {
  SupervisorOptions options;
  for (const config::DeviceConfig& device : config.devices) options.devices.push_back(device.name);
  options.restart = config.restart.policy != "never";
  options.restarts_max = config.restart.max;
  options.window = config.restart.window;
  options.backoff_min = config.restart.backoff_min;
  options.backoff_max = config.restart.backoff_max;
  options.stop_grace = config.limits.stop_grace;
  options.seed = static_cast<std::uint64_t>(::getpid());
  return options;
}

class NodeActor {
 public:
  explicit NodeActor(NodeOptions options)
      : options_(std::move(options)),
        lifeline_(options_.lifeline_fd),
        status_(UniqueFd(options_.status_fd)),
        loop_(Loop::create()),
        messenger_(Messenger::create()),
        supervisor_(Supervisor::create(supervisor_options(options_.config))) {}

  int run();

 private:
  Status prepare();
  Status prepare_directory();
  Status prepare_signals();
  Status connect_coordinator();
  int end();

  void emit(NodeEvent event);
  void on_signal();
  void on_lifeline();
  void on_coordinator(const Message& message);
  void on_coordinator_lost(const Error& why);
  void on_process_ended(const ActorId& who);
  void stop(const std::string& why, bool force);
  void stop_failed(Error why);

  void step(Supervisor::Event event);
  void perform(Supervisor::Action& action);
  void perform_spawn(const ActorId& who);
  void perform_signal(const Supervisor::Signal& signal);
  void perform_report(Message message);
  void perform_finished(const Supervisor::Finished& finished);
  SpawnOptions spawn_options(const ActorId& who) const;
  void record_coordinator(std::int64_t pid);
  void set_tick();

  void on_broker_ready(int fd);
  void watch_broker();
  std::vector<std::int64_t> known_pids() const;

  NodeOptions options_;
  UniqueFd lifeline_;
  StatusStream status_;
  RunDir run_dir_;
  std::string logs_;
  std::vector<std::string> swept_;  // what clusters left that were killed
  ClusterRecord record_;
  UniqueFd signals_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<MemoryBroker> broker_;
  std::set<int> broker_fds_;  // those that the loop watches
  TimerId broker_timer_ = 0;
  std::unique_ptr<Supervisor> supervisor_;
  std::deque<Supervisor::Event> events_;  // not stepped yet
  bool stepping_ = false;
  TimerId tick_timer_ = 0;
  std::map<ActorId, Process> processes_;
  std::unique_ptr<Line> line_;
  bool stopping_ = false;
  std::optional<Error> failure_;  // the first one
};

int NodeActor::run() {
  if (const Status ready = prepare(); !ready) {
    failure_ = ready.error();
    return end();
  }
  step(Supervisor::Start{});
  NodeEvent started{NodeEvent::Kind::kStarted};
  started.pid = ::getpid();
  started.run_dir = run_dir_.path;
  started.logs = logs_;
  emit(std::move(started));
  // Only now the log has its place.
  for (const std::string& line : swept_) log::info("run_dir_removed", line);
  loop_->run();
  return end();
}

Status NodeActor::prepare() {
  CALLBOARD_TRY(prepare_signals());
  CALLBOARD_TRY(become_subreaper());
  CALLBOARD_TRY(prepare_directory());
  CALLBOARD_ASSIGN(broker_, MemoryBroker::create(record_.memory_socket));
  watch_broker();
  CALLBOARD_TRY(write_record(record_));
  if (lifeline_) {
    ::fcntl(lifeline_.get(), F_SETFD, FD_CLOEXEC);
    loop_->watch(lifeline_.get(), [this] { on_lifeline(); });
  }
  return connect_coordinator();
}

Status NodeActor::prepare_directory() {
  const config::ClusterConfig& config = options_.config;
  CALLBOARD_ASSIGN(run_dir_, claim_run_dir(config.name));
  swept_ = sweep_dead_run_dirs();
  logs_ = config.log.dir.empty() ? run_dir_.path + "/logs" : config.log.dir;
  std::error_code error;
  std::filesystem::create_directories(logs_, error);
  if (error) {
    return fail(ErrorCode::kEnvironment, "the log directory '" + logs_ + "' cannot be made: " + error.message(),
                "check log.dir in the cluster file");
  }
  CALLBOARD_TRY(write_private_file(run_dir_.path + "/cluster.yaml", config::to_yaml(config)));
  record_.name = config.name;
  record_.run_dir = run_dir_.path;
  record_.node_pid = ::getpid();
  record_.epoch = kFirstEpoch;
  CALLBOARD_ASSIGN(record_.coordinator_endpoint, ipc_endpoint(run_dir_.path + "/coordinator.sock"));
  record_.memory_socket = run_dir_.path + "/memory.sock";
  record_.version = options_.version;
  record_.requests_per_client = config.limits.requests_per_client;
  record_.results_on_gpu = std::any_of(config.devices.begin(), config.devices.end(),
                                       [](const auto& device) { return device.output_device != "cpu"; });
  return {};
}

Status NodeActor::prepare_signals() {
  ::signal(SIGPIPE, SIG_IGN);  // readers of the status stream and peers of sockets may go
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&set, number);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) {
    return fail(ErrorCode::kEnvironment, "signals cannot be blocked");
  }
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return fail(ErrorCode::kResourceExhausted, std::string("no signalfd: ") + ::strerror(errno));
  loop_->watch(signals_.get(), [this] { on_signal(); });
  return {};
}

Status NodeActor::connect_coordinator() {
  Line::Options options;
  options.hello.role = Role::kNode;
  options.hello.who = {"node", 1};
  options.hello.cluster = options_.config.name;
  options.hello.build = options_.version;
  options.hello.pid = ::getpid();
  options.endpoint = record_.coordinator_endpoint;
  options.connect_timeout = options_.config.limits.start_timeout;
  Line::Events events;
  events.message = [this](const Message& message) { on_coordinator(message); };
  events.lost = [this](const Error& why) { on_coordinator_lost(why); };
  CALLBOARD_ASSIGN(line_, Line::connect(*loop_, *messenger_, std::move(options), std::move(events)));
  return {};
}

int NodeActor::end() {
  line_.reset();
  processes_.clear();  // kills what did not end in time
  kill_all_children(after(Clock::now(), kOrphanWait));
  broker_.reset();
  if (run_dir_.lock) {
    const bool logs_inside = logs_ == run_dir_.path + "/logs";
    remove_run_dir(run_dir_, failure_ && logs_inside);
  }
  NodeEvent last{failure_ ? NodeEvent::Kind::kFailed : NodeEvent::Kind::kStopped};
  if (failure_) {
    log::error("cluster_failed", failure_->to_string() + (logs_.empty() ? "" : "; logs: " + logs_));
    last.error = *failure_;
    last.logs = logs_;
  }
  emit(std::move(last));
  status_.finish();
  return failure_ ? kNodeFailedExit : kNodeStoppedExit;
}

void NodeActor::emit(NodeEvent event) {
  status_.write(event);
  if (options_.on_event) options_.on_event(event);
}

// -- what comes from outside
// ----------------------------------------------------------------------------------------------

void NodeActor::on_signal() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) {
      reap_orphans(known_pids());
      continue;
    }
    const char* name = ::strsignal(static_cast<int>(info.ssi_signo));
    stop(std::string("signal ") + (name != nullptr ? name : "unknown"), stopping_);
  }
}

void NodeActor::on_lifeline() {
  char bytes[256];
  const auto got = ::read(lifeline_.get(), bytes, sizeof bytes);
  if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
  loop_->unwatch(lifeline_.get());
  stop("whoever started the cluster has ended", false);
}

void NodeActor::on_coordinator(const Message& message) {
  if (const auto* order = std::get_if<ShutDown>(&message)) {
    stop("the coordinator says: " + order->reason, order->force);
  } else if (const auto* one = std::get_if<StopActor>(&message)) {
    step(Supervisor::StopOne{one->who, one->kill, one->restart});
  } else {
    log::warning("unexpected_message", std::string(message_name(message)) + " from the coordinator");
  }
}

void NodeActor::on_coordinator_lost(const Error& why) {
  if (stopping_) return;
  if (why.code != ErrorCode::kPeerLost) return stop_failed(why);
  // Its own end tells more than the silence that follows it.
  loop_->in(kExitReportWait, [this, why] {
    if (!stopping_) stop_failed(why);
  });
}

void NodeActor::on_process_ended(const ActorId& who) {
  const auto found = processes_.find(who);
  if (found == processes_.end()) return;
  const std::optional<ProcessExit> exit = found->second.try_reap();
  if (!exit) return;
  loop_->unwatch(found->second.pidfd());
  Supervisor::Exited event{who, {}};
  event.report.who = who;
  event.report.pid = found->second.pid();
  event.report.signalled = exit->signalled;
  event.report.code = exit->code;
  event.report.core_dumped = exit->core_dumped;
  event.report.log_tail = found->second.log_tail(40);  // a crash tells frames of Python and of C++
  processes_.erase(found);
  reap_orphans(known_pids());
  step(std::move(event));
}

void NodeActor::stop(const std::string& why, bool force) {
  log::info("stopping", why + (force ? " (at once)" : ""));
  if (!std::exchange(stopping_, true)) {
    NodeEvent event{NodeEvent::Kind::kStopping};
    event.text = why;
    emit(std::move(event));
    loop_->in(options_.config.limits.stop_grace + kStopSlack, [this] {
      if (!failure_) failure_ = Error(ErrorCode::kInternal, "some processes did not end after SIGKILL");
      loop_->stop();
    });
  }
  step(Supervisor::Stop{force});
}

void NodeActor::stop_failed(Error why) {
  if (!failure_) failure_ = why;
  stop(why.message, false);
}

// -- what the supervisor decides
// ------------------------------------------------------------------------------------------

void NodeActor::step(Supervisor::Event event) {
  events_.push_back(std::move(event));
  if (std::exchange(stepping_, true)) return;  // an action led to an event: the loop below takes it
  while (!events_.empty()) {
    const Supervisor::Event next = std::move(events_.front());
    events_.pop_front();
    for (Supervisor::Action& action : supervisor_->step(next, Clock::now())) perform(action);
  }
  stepping_ = false;
  set_tick();
}

void NodeActor::set_tick() {
  if (tick_timer_ != 0) loop_->cancel(tick_timer_);
  tick_timer_ = 0;
  const TimePoint next = supervisor_->next_tick();
  if (next == kNever) return;
  tick_timer_ = loop_->at(next, [this] {
    tick_timer_ = 0;
    step(Supervisor::Tick{});
  });
}

void NodeActor::perform(Supervisor::Action& action) {
  if (const auto* spawn = std::get_if<Supervisor::Spawn>(&action)) return perform_spawn(spawn->who);
  if (const auto* signal = std::get_if<Supervisor::Signal>(&action)) return perform_signal(*signal);
  if (auto* report = std::get_if<Supervisor::Report>(&action)) return perform_report(std::move(report->message));
  if (const auto* finished = std::get_if<Supervisor::Finished>(&action)) return perform_finished(*finished);
  if (const auto* line = std::get_if<Supervisor::LogLine>(&action)) log::write(line->level, line->event, line->text);
}

SpawnOptions NodeActor::spawn_options(const ActorId& who) const {
  SpawnOptions options;
  const std::vector<std::string> common{"--run-dir", run_dir_.path, "--config", run_dir_.path + "/cluster.yaml"};
  if (who.name == kCoordinatorName) {
    options.program = options_.binary_callboard;
    options.arguments = {"coordinator", "--epoch", std::to_string(who.incarnation)};
  } else {
    options.program = options_.binary_device;
    options.arguments = {"--name", who.name, "--incarnation", std::to_string(who.incarnation)};
    options.oom_score_adj = kDeviceOomScore;
  }
  options.arguments.insert(options.arguments.end(), common.begin(), common.end());
  options.environment = environment_with({});
  options.log_file = logs_ + "/" + who.name + ".log";
  return options;
}

void NodeActor::perform_spawn(const ActorId& who) {
  Result<Process> process = Process::spawn(spawn_options(who));
  if (!process) return step(Supervisor::SpawnFailed{who, process.error()});
  const std::int64_t pid = process->pid();
  loop_->watch(process->pidfd(), [this, who] { on_process_ended(who); });
  processes_.emplace(who, std::move(*process));
  if (who.name == kCoordinatorName) record_coordinator(pid);
  step(Supervisor::Spawned{who, pid});
}

void NodeActor::record_coordinator(std::int64_t pid) {
  record_.coordinator_pid = pid;
  if (const Status written = write_record(record_); !written)
    log::warning("record_not_written", written.error().message);
}

void NodeActor::perform_signal(const Supervisor::Signal& signal) {
  const auto found = processes_.find(signal.who);
  if (found == processes_.end()) return;
  // An orderly stop is the process's own business; a kill is for its helpers too.
  if (signal.signal == SIGKILL) {
    found->second.signal_group(SIGKILL);
  } else {
    found->second.signal(signal.signal);
  }
}

void NodeActor::perform_report(Message message) {
  if (const auto* started = std::get_if<ActorStarted>(&message)) {
    log::info("actor_started", started->who.to_string() + " pid=" + std::to_string(started->pid));
    NodeEvent event{NodeEvent::Kind::kActorStarted};
    event.who = started->who;
    event.pid = started->pid;
    emit(std::move(event));
  } else if (const auto* exited = std::get_if<ActorExited>(&message)) {
    log::info("actor_exited", exit_text(*exited));
    NodeEvent event{NodeEvent::Kind::kActorExited};
    event.who = exited->who;
    event.pid = exited->pid;
    event.exit = *exited;
    emit(std::move(event));
  }
  // Before the Welcome the link keeps it. Without a coordinator there is nobody to tell.
  const Status sent = line_ ? line_->send(message) : Status();
  if (!sent && !stopping_) log::warning("report_not_sent", sent.error().message);
}

void NodeActor::perform_finished(const Supervisor::Finished& finished) {
  if (finished.failed && !failure_) {
    failure_ = Error(ErrorCode::kCoordinatorLost, "the cluster ended because " + finished.why);
  }
  loop_->stop();
}

// -- memory
// -----------------------------------------------------------------------------------------------------------------

void NodeActor::on_broker_ready(int fd) {
  broker_->on_readable(fd, Clock::now());
  watch_broker();
}

/// Connections come and go inside the broker: brings what the loop watches, and when it wakes, up to date.
void NodeActor::watch_broker() {
  const std::vector<int> listed = broker_->fds();
  const std::set<int> wanted(listed.begin(), listed.end());
  for (const int fd : broker_fds_) {
    if (!wanted.contains(fd)) loop_->unwatch(fd);
  }
  for (const int fd : wanted) {
    if (!broker_fds_.contains(fd)) loop_->watch(fd, [this, fd] { on_broker_ready(fd); });
  }
  broker_fds_ = wanted;
  if (broker_timer_ != 0) loop_->cancel(broker_timer_);
  broker_timer_ = 0;
  const TimePoint next = broker_->next_tick();
  if (next == kNever) return;
  broker_timer_ = loop_->at(next, [this] {
    broker_timer_ = 0;
    broker_->on_tick(Clock::now());
    watch_broker();
  });
}

std::vector<std::int64_t> NodeActor::known_pids() const {
  std::vector<std::int64_t> pids;
  for (const auto& [who, process] : processes_) pids.push_back(process.pid());
  return pids;
}

}  // namespace

int run_node(NodeOptions options) { return NodeActor(std::move(options)).run(); }

}  // namespace callboard::actors
