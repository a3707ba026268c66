#include "actors/client/client_core.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/client/gpu_plugin.h"
#include "messages/base/check.h"
#include "messages/base/log.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// What the coordinator wrote before it ended is read first.
constexpr Duration kDrainAfterEnd = std::chrono::milliseconds(10);
/// The coordinator forgets a client that beat once and is silent for long (a killed one cannot say Bye).
constexpr Duration kBeatInterval = std::chrono::seconds(5);
/// Beyond the session's own word: the loop thread may be late.
constexpr Duration kLoopMargin = std::chrono::seconds(1);
/// A thread that waits beside another one looks so often whether it has become the only one.
constexpr Duration kDriveAgain = std::chrono::milliseconds(50);

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// One context for all clients of the process, as long as there are any.
std::shared_ptr<Messenger> shared_messenger() {
  static std::mutex mutex;
  static std::weak_ptr<Messenger> current;
  static pid_t owner = 0;
  std::lock_guard lock(mutex);
  std::shared_ptr<Messenger> messenger = current.lock();
  if (messenger && owner != ::getpid()) {
    // Forked off: that context has lost its threads. It is left as it is, its sockets are the parent's.
    static_cast<void>(new std::shared_ptr<Messenger>(std::move(messenger)));
    messenger = nullptr;
  }
  if (!messenger) {
    messenger = Messenger::create();
    current = messenger;
    owner = ::getpid();
  }
  return messenger;
}

/// Unique over processes, their forks, and the clients of one process. Fifteen characters: as many as a string holds
/// without a heap block, and the name is in every message.
ActorId new_client_id() {
  std::random_device random;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "client-";
  for (int i = 0; i < 8; ++i) name += kDigits[random() % 16];
  return {std::move(name), 1};
}

Error closed_error() { return Error(ErrorCode::kCancelled, "the client is closed", "connect again"); }

Error mailbox_full() { return Error(ErrorCode::kOverloaded, "the client's mailbox is full", "submit more slowly"); }

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

struct ClientCore::Order {
  std::shared_ptr<FutureState> future;
  std::shared_ptr<const ProgramInfo> program;
  PackedInputs inputs;
  std::vector<std::optional<std::int64_t>> known;
  TimePoint deadline;
};

ClientCore::ClientCore(ClusterRecord record, Client::Options options)
    : record_(std::move(record)),
      options_(std::move(options)),
      self_(new_client_id()),
      pid_(::getpid()),
      messenger_(shared_messenger()),
      loop_(Loop::create()),
      admission_(std::make_shared<Admission>(std::min(record_.requests_per_client, limits::kRequestsPerClientMax))),
      session_(Session::create()) {}

ClientCore::~ClientCore() {
  CALLBOARD_CHECK(!thread_.joinable(), "close() joined the thread before the last owner went");
}

Result<std::shared_ptr<ClientCore>> ClientCore::start(ClusterRecord record, Client::Options options) {
  std::shared_ptr<ClientCore> core(new ClientCore(std::move(record), std::move(options)));
  Status status = core->connect();
  if (!status) {
    core->close();
    return fail(std::move(status).error());
  }
  return core;
}

/// Which GPUs' memory this client can open, for the coordinator to know.
void ClientCore::look_for_gpus() {
  if (!options_.gpu_results || !record_.results_on_gpu) return;
  nlohmann::json text = nlohmann::json::object();
  if (const auto plugin = load_gpu_plugin(options_.plugin_folder); !plugin) {
    text["why_no_gpu"] = plugin.error().to_string();
  } else if (const auto gpus = (*plugin)->gpus(); !gpus) {
    text["why_no_gpu"] = gpus.error().to_string();
  } else {
    gpu_plugin_ = *plugin;
    text["gpus"] = *gpus;
  }
  description_ = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status ClientCore::connect() {
  look_for_gpus();
  const TimePoint until = after(after(Clock::now(), options_.connect_timeout), kLoopMargin);
  thread_ = std::thread([this] { run_on_loop_thread(); });
  CALLBOARD_TRY(wait_interruptibly(connected_, until, options_.interrupted));
  if (!connected_.is_set()) {
    return fail(ErrorCode::kCoordinatorLost,
                "the coordinator of cluster '" + record_.name + "' at " + record_.coordinator_endpoint +
                    " did not answer in time",
                "see `callboard status` and `callboard logs`");
  }
  CALLBOARD_TRY(connected_.value());
  CALLBOARD_ASSIGN(
      std::unique_ptr<ClientMemory> opened,
      ClientMemory::connect({record_.memory_socket, self_, options_.memory_limit, admission_, gpu_plugin_}));
  const std::shared_ptr<ClientMemory> memory = std::move(opened);
  std::lock_guard lock(mutex_);
  memory_ = memory;
  return post_locked([this, memory] {
    loop_memory_ = memory;
    loop_->watch(memory->node_gone_fd(), [this] {
      loop_->unwatch(loop_memory_->node_gone_fd());
      lose_on_loop(Error(ErrorCode::kCoordinatorLost,
                         "the node actor (process " + std::to_string(record_.node_pid) + ") of cluster '" +
                             record_.name + "' ended, and the cluster with it",
                         "start it again with `callboard up`; its logs are in " + record_.run_dir + "/logs"));
    });
  });
}

void ClientCore::close() {
  if (::getpid() != pid_) {
    // A forked child has neither the thread nor the right to the sockets: leave everything as the parent knows it.
    static_cast<void>(new std::shared_ptr<ClientCore>(shared_from_this()));
    return;
  }
  CALLBOARD_CHECK(!loop_->on_loop_thread(), "a client cannot be closed from its own callbacks");
  std::shared_ptr<ClientMemory> memory;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    memory = std::move(memory_);
    const bool posted = loop_->post([this] {
      teardown_on_loop();
      loop_->stop();
    });
    if (!posted) loop_->stop();
  }
  admission_->end(closed_error());
  if (thread_.joinable()) thread_.join();
}

Status ClientCore::check_usable() const {
  if (::getpid() != pid_) {
    return fail(ErrorCode::kEnvironment,
                "this client belongs to process " + std::to_string(pid_) +
                    " and cannot be used in the child that was forked from it",
                "connect in the child");
  }
  if (closed_) return fail(closed_error());
  return {};
}

Status ClientCore::post_locked(std::function<void()> task) {
  CALLBOARD_TRY(check_usable());
  if (loop_->post(std::move(task))) return {};
  return fail(mailbox_full());
}

Result<std::shared_ptr<ClientMemory>> ClientCore::memory() const {
  std::lock_guard lock(mutex_);
  CALLBOARD_TRY(check_usable());
  return memory_;
}

Result<std::shared_ptr<Future>> ClientCore::submit(std::shared_ptr<const ProgramInfo> program, PackedInputs inputs,
                                                   std::vector<std::optional<std::int64_t>> known, TimePoint deadline) {
  auto order = std::make_shared<Order>();
  order->future = std::make_shared<FutureState>(after(deadline, Session::kGiveUpAfter + kLoopMargin), weak_from_this());
  std::shared_ptr<Future> future = order->future;
  order->program = std::move(program);
  order->inputs = std::move(inputs);
  order->known = std::move(known);
  order->deadline = deadline;
  Status sent;
  {
    std::lock_guard lock(mutex_);
    sent = check_usable();
  }
  // Outside the lock: it may run here and now. After close() it ends in a session that has ended.
  if (sent && !loop_->run_soon([this, order] { submit_on_loop(*order); })) sent = fail(mailbox_full());
  if (!sent) {
    admission_->leave();
    return fail(std::move(sent).error());
  }
  return future;
}

void ClientCore::cancel(std::shared_ptr<FutureState> future) {
  std::lock_guard lock(mutex_);
  // A refused post means that the client is closed, which ends the future anyway.
  static_cast<void>(post_locked([this, future] { apply_on_loop(session_->cancel(future->request)); }));
}

template <class Park>
void ClientCore::wait_in_loop(const std::function<bool()>& done, const Park& park, TimePoint until) {
  while (!done()) {
    const TimePoint now = Clock::now();
    if (now >= until) return;
    if (waiters_.load() == 0 && loop_->drive(done, until)) continue;
    waiters_.fetch_add(1);
    loop_->waiter_came();
    park(std::min(until, after(now, kDriveAgain)));
    loop_->waiter_went();
    waiters_.fetch_sub(1);
  }
}

void ClientCore::wait(const OneShot<FutureValue>& value, TimePoint until) {
  if (::getpid() != pid_) return;
  wait_in_loop([&value] { return value.is_set(); }, [&value](TimePoint slice) { value.wait_until(slice); }, until);
}

Status ClientCore::wait_in_line(Admission::Call call) {
  call.wait = [this](const std::function<bool()>& changed, const std::function<void(TimePoint)>& park,
                     TimePoint until) { wait_in_loop(changed, park, until); };
  return admission_->wait_in_line(std::move(call));
}

Result<Message> ClientCore::ask(Message question, TimePoint deadline) {
  auto answer = std::make_shared<Question>();
  auto message = std::make_shared<Message>(std::move(question));
  {
    std::lock_guard lock(mutex_);
    CALLBOARD_TRY(post_locked([this, answer, message, deadline] {
      const RequestSeq request = session_->next_request();
      questions_[request] = answer;
      apply_on_loop(session_->ask(std::move(*message), request, deadline));
    }));
  }
  const TimePoint until = after(deadline, Session::kGiveUpAfter + kLoopMargin);
  CALLBOARD_TRY(wait_interruptibly(*answer, until, options_.interrupted));
  if (!answer->is_set()) return fail(ErrorCode::kDeadlineExceeded, "the coordinator did not answer in time");
  return answer->value();
}

void ClientCore::set_event_callback(std::function<void(const ActorEvent&)> callback) {
  std::lock_guard lock(mutex_);
  on_event_ = std::move(callback);
}

void ClientCore::add_constant_users(const std::vector<ContentHash>& constants) {
  std::lock_guard lock(mutex_);
  for (const auto& hash : constants) ++constant_users_[hash];
}

void ClientCore::unload(const ContentHash& program, const std::vector<ContentHash>& constants) {
  {
    std::lock_guard lock(mutex_);
    // A refused post means that the client is closed, and the coordinator forgets it altogether.
    static_cast<void>(post_locked([this, program] {
      apply_on_loop(session_->ask(UnloadProgram{0, program}, session_->next_request(), kNever));
    }));
  }
  drop_constant_users(constants);
}

void ClientCore::drop_constant_users(const std::vector<ContentHash>& constants) {
  std::lock_guard lock(mutex_);
  std::vector<ContentHash> unused;
  for (const auto& hash : constants) {
    const auto found = constant_users_.find(hash);
    if (found == constant_users_.end() || --found->second > 0) continue;
    constant_users_.erase(found);
    unused.push_back(hash);
  }
  if (!unused.empty() && memory_ && check_usable()) memory_->lane().release_constants(std::move(unused));
}

// -- loop thread
// ------------------------------------------------------------------------------------------------------------

void ClientCore::run_on_loop_thread() {
  block_signals();
  Status opened = open_line_on_loop();
  if (!opened) {
    connected_.set(std::move(opened));
    return;
  }
  loop_->run();
  teardown_on_loop();
}

Status ClientCore::open_line_on_loop() {
  CALLBOARD_TRY(watch_coordinator_on_loop());
  Line::Options options;
  options.hello.role = Role::kClient;
  options.hello.who = self_;
  options.hello.cluster = record_.name;
  options.hello.build = CALLBOARD_VERSION;
  options.hello.pid = record_.foreign_pids ? 0 : pid_;  // 0: our beats alone say that we live
  options.hello.description = description_;
  options.endpoint = record_.coordinator_endpoint;
  options.connect_timeout = options_.connect_timeout;
  Line::Events events;
  events.welcome = [this](const Welcome&) { connected_.set({}); };
  events.message = [this](Message message) {
    apply_on_loop(session_->step(Session::FromCoordinator{std::move(message)}, Clock::now()));
  };
  events.lost = [this](const Error& why) { lose_on_loop(why); };
  CALLBOARD_ASSIGN(line_, Line::connect(*loop_, *messenger_, std::move(options), std::move(events)));
  loop_->in(kBeatInterval, [this] { beat_on_loop(); });
  return {};
}

void ClientCore::beat_on_loop() {
  if (torn_down_ || lost_) return;
  Beat beat;
  beat.count = ++beats_;
  // One that cannot go now says no less than the next one.
  static_cast<void>(line_->send_once(beat));
  if (loop_memory_ && admission_->taken() == 0) loop_memory_->trim();
  loop_->in(kBeatInterval, [this] { beat_on_loop(); });
}

Status ClientCore::watch_coordinator_on_loop() {
  if (record_.coordinator_pid <= 0) return {};
  coordinator_pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, record_.coordinator_pid, 0)));
  if (coordinator_pidfd_) {
    loop_->watch(coordinator_pidfd_.get(), [this] { coordinator_ended_on_loop(); });
    return {};
  }
  if (errno == ESRCH) {
    return fail(ErrorCode::kCoordinatorLost,
                "the coordinator (process " + std::to_string(record_.coordinator_pid) + ") of cluster '" +
                    record_.name + "' is not running",
                "it may be restarting: try again; its logs are in " + record_.run_dir + "/logs");
  }
  log::warning("pidfd_failed", std::string("the coordinator's end will be noticed later: ") + std::strerror(errno));
  return {};
}

void ClientCore::coordinator_ended_on_loop() {
  loop_->unwatch(coordinator_pidfd_.get());
  loop_->in(kDrainAfterEnd, [this] {
    lose_on_loop(Error(ErrorCode::kCoordinatorLost,
                       "the coordinator (process " + std::to_string(record_.coordinator_pid) + ") of cluster '" +
                           record_.name + "' ended",
                       "the cluster ends with its coordinator; start it again with `callboard up`; its logs are in " +
                           record_.run_dir + "/logs"));
  });
}

void ClientCore::lose_on_loop(Error why) {
  connected_.set(fail(why));
  lost_ = true;
  apply_on_loop(session_->step(Session::Lost{std::move(why)}, Clock::now()));
  line_.reset();  // or it would go on looking for the coordinator
}

void ClientCore::teardown_on_loop() {
  if (torn_down_) return;
  torn_down_ = true;
  apply_on_loop(session_->step(Session::Lost{closed_error()}, Clock::now()));
  if (timer_ != 0) loop_->cancel(timer_);
  line_.reset();
  if (loop_memory_) loop_->unwatch(loop_memory_->node_gone_fd());
  if (coordinator_pidfd_) loop_->unwatch(coordinator_pidfd_.get());
  loop_memory_.reset();
}

void ClientCore::submit_on_loop(Order& order) {
  const RequestSeq request = session_->next_request();
  order.future->request = request;
  Submit message;
  message.request = request;
  message.program = order.program->id;
  message.inputs = std::move(order.inputs.values);
  message.symbols = std::move(order.inputs.symbols);
  requests_.emplace(request, Pending{std::move(order.future), std::move(order.program), std::move(order.known),
                                     std::move(order.inputs.holds)});
  apply_on_loop(session_->submit(std::move(message), order.deadline, Clock::now()));
}

void ClientCore::apply_on_loop(Session::Actions actions) {
  for (auto& action : actions) {
    std::visit(Overloaded{
                   [this](Session::SendOut& send) { send_on_loop(std::move(send.message)); },
                   [this](Session::Completed& done) { complete_on_loop(done.request, std::move(done.outcome)); },
                   [this](Session::Answered& answered) { answer_on_loop(std::move(answered)); },
                   [this](Session::InputsFree& free) {
                     if (requests_.erase(free.request) > 0) admission_->leave();
                   },
                   [this](Session::Notify& notify) {
                     std::function<void(const ActorEvent&)> callback;
                     {
                       std::lock_guard lock(mutex_);
                       callback = on_event_;
                     }
                     const CallbackScope scope;
                     if (callback) callback(notify.event);
                   },
                   [this](Session::Discard& discard) { discard_on_loop(discard.values); },
               },
               action);
  }
  arm_timer_on_loop();
}

/// What could not be sent ends as if the coordinator had refused it.
void ClientCore::send_on_loop(Message message) {
  Status sent = line_ ? line_->send(message) : fail(closed_error());
  if (sent) return;
  Message refusal = Bye{};
  if (const auto* submit = std::get_if<Submit>(&message)) {
    Outcome outcome;
    outcome.request = submit->request;
    outcome.status = OutcomeStatus::kFailed;
    outcome.error = std::move(sent).error();
    refusal = std::move(outcome);
  } else if (const auto* load = std::get_if<LoadProgram>(&message)) {
    refusal = ProgramLoaded{load->request, std::move(sent).error(), {}, {}};
  } else if (const auto* operation = std::get_if<Operation>(&message)) {
    refusal = OperationResult{operation->request, std::move(sent).error(), {}};
  } else {
    log::debug("not_sent", std::string(message_name(message)) + ": " + sent.error().message);
    return;
  }
  apply_on_loop(session_->step(Session::FromCoordinator{std::move(refusal)}, Clock::now()));
}

void ClientCore::complete_on_loop(RequestSeq request, Outcome outcome) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return discard_on_loop(outcome.outputs);
  const std::shared_ptr<FutureState> future = std::move(found->second.future);
  // Nobody can get hold of a future that only we have.
  if (!future || (future.use_count() == 1 && !future->has_callbacks())) return discard_on_loop(outcome.outputs);
  future->set(result_on_loop(found->second, std::move(outcome)));
}

FutureValue ClientCore::result_on_loop(const Pending& pending, Outcome outcome) {
  if (outcome.status != OutcomeStatus::kOk) {
    discard_on_loop(outcome.outputs);
    if (outcome.error) return fail(std::move(*outcome.error));
    return fail(ErrorCode::kInternal, "the coordinator ended the request without a result and without a reason");
  }
  auto result = std::make_shared<RequestResult>();
  result->state_version = outcome.state_version;
  const auto& outputs = pending.program->graph.outputs;
  result->outputs.reserve(outputs.size());
  const auto wanted = static_cast<std::size_t>(std::count_if(outputs.begin(), outputs.end(), [](const auto& output) {
    return std::holds_alternative<ArgValue>(output.source);
  }));
  if (wanted != outcome.outputs.size()) {
    discard_on_loop(outcome.outputs);
    return fail(ErrorCode::kInternal, "the coordinator sent " + std::to_string(outcome.outputs.size()) +
                                          " results, program '" + pending.program->graph.name + "' has " +
                                          std::to_string(wanted));
  }
  std::map<std::pair<ActorId, LeaseId>, TensorRef> by_lease;
  std::size_t next = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ClientValue value;
    if (std::holds_alternative<ArgValue>(outputs[i].source)) {
      WireValue& wire = outcome.outputs[next++];
      if (auto* handle = std::get_if<TensorHandle>(&wire)) {
        // A value that is an output twice comes twice under one lease, which must end with the last of them.
        std::pair<ActorId, LeaseId> lease;
        if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) lease = {block->owner, block->lease};
        if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data)) lease = {lent->owner, lent->lease};
        if (const auto same = by_lease.find(lease); lease.second != 0 && same != by_lease.end()) {
          TensorRef again = same->second;
          again.meta = std::move(handle->meta);
          result->outputs.push_back(std::move(again));
          continue;
        }
        auto opened = loop_memory_->open(std::move(*handle));
        if (opened && lease.second != 0) by_lease.emplace(lease, *opened);
        if (!opened) {
          discard_on_loop({outcome.outputs.begin() + static_cast<std::ptrdiff_t>(next), outcome.outputs.end()});
          Error error = std::move(opened).error();
          error.message = "output '" + outputs[i].name + "': " + error.message;
          return fail(std::move(error));
        }
        value = std::move(*opened);
      } else {
        std::visit(Overloaded{[](TensorHandle&) {}, [&](auto& plain) { value = plain; }}, wire);
      }
    } else if (pending.known[i]) {
      value = *pending.known[i];
    } else {
      std::visit(Overloaded{[&](bool plain) { value = plain; }, [&](std::int64_t plain) { value = plain; },
                            [&](double plain) { value = plain; }, [](const auto&) {}},
                 outputs[i].source);
    }
    result->outputs.push_back(std::move(value));
  }
  return result;
}

void ClientCore::answer_on_loop(Session::Answered answered) {
  auto* loaded = std::get_if<ProgramLoaded>(&answered.message);
  if (answered.late) {
    // A program that came when its caller had given up: away with it. Another caller's load of it is counted by itself.
    if (loaded == nullptr || loaded->error) return;
    send_on_loop(UnloadProgram{session_->next_request(), loaded->program});
    return;
  }
  const auto found = questions_.find(answered.request);
  if (found == questions_.end()) return;
  const std::shared_ptr<Question> question = std::move(found->second);
  questions_.erase(found);
  if (loaded != nullptr && loaded->error) {
    question->set(fail(std::move(*loaded->error)));
  } else if (auto* result = std::get_if<OperationResult>(&answered.message); result != nullptr && result->error) {
    question->set(fail(std::move(*result->error)));
  } else {
    question->set(std::move(answered.message));
  }
}

void ClientCore::discard_on_loop(const std::vector<WireValue>& values) {
  if (!loop_memory_) return;
  for (const auto& value : values) loop_memory_->release(value);
}

void ClientCore::arm_timer_on_loop() {
  const TimePoint next = session_->next_tick();
  // A timer that comes too early does no harm: it only looks. So a later deadline leaves the armed one alone.
  if (torn_down_ || next >= timer_at_) return;
  if (timer_ != 0) loop_->cancel(timer_);
  timer_at_ = next;
  timer_ = loop_->at(next, [this] {
    timer_ = 0;
    timer_at_ = kNever;
    apply_on_loop(session_->step(Session::Tick{}, Clock::now()));
  });
}

}  // namespace callboard::actors
