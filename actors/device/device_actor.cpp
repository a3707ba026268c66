#include "actors/device/device_actor.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/core/alarm.h"
#include "actors/core/inside_cluster.h"
#include "actors/core/loop.h"
#include "actors/core/memory_lane.h"
#include "actors/core/run_dir.h"
#include "actors/core/stepper.h"
#include "actors/core/transport.h"
#include "actors/device/constant_store.h"
#include "actors/device/device_core.h"
#include "actors/device/device_queries.h"
#include "actors/device/helper_spawner.h"
#include "actors/device/runtime_options.h"
#include "kernels/runtime.h"
#include "messages/base/check.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

constexpr Duration kTrimInterval = std::chrono::seconds(5);
constexpr Duration kResendInterval = std::chrono::milliseconds(5);
constexpr Duration kLastWords = std::chrono::milliseconds(200);  // for answers on their way when the device has failed
constexpr int kExitDeviceFailed = 70;

/// Ends this process if it is not ready in time, whatever holds it up. The node actor starts it again or gives it up,
/// as after any other end of its own.
class StartWatch {
 public:
  explicit StartWatch(Duration timeout)
      : thread_([this, timeout] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, timeout, [this] { return over_; })) return;
          const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
          log::error("start_failed", "not ready within limits.start_timeout of " + std::to_string(milliseconds) +
                                         " ms" + (step_.empty() ? "" : ", while " + step_));
          ::_exit(1);
        }) {}
  ~StartWatch() {
    ready();
    thread_.join();
  }
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;
  void ready() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  /// What comes next, "importing the module 'my_kernels'"; any thread. It is in the log before it is begun, too, since
  /// a crash says nothing.
  void begins(std::string_view step) {
    std::lock_guard lock(mutex_);
    step_ = step;
    if (!over_) log::info("starting", step);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::string step_;   // guarded by mutex_
  std::thread thread_;
};

/// Owned by run_device; everything but the constructor, start_memory() and request_stop() runs on the loop's thread.
class DeviceActor {
 public:
  DeviceActor(const DeviceProcessOptions& options, const config::DeviceConfig& device)
      : options_(options), device_(device), self_{options.name, options.incarnation}, loop_(Loop::create()) {
    DeviceCoreOptions core;
    core.self = self_;
    for (const config::DeviceConfig& other : options_.config.devices) {
      const bool has_own_memory = device_.kind != "cpu" && other.kind == device_.kind;
      if (has_own_memory && other.name != device_.name) core.tests_transport_to.insert(other.name);
    }
    core_ = DeviceCore::create(core);
  }

  ~DeviceActor() {
    peers_.clear();
    coordinator_.reset();
    hub_.reset();
    show_lane(nullptr, nullptr);
    spawner_.close();
    runtime_.reset();  // joins the streams: nothing calls back after this
    segments_.reset();
    constants_.reset();
    lane_.reset();
  }

  /// Arena and allocator first, before anything of ATen has allocated.
  Status start_memory();
  Status start_runtime();
  /// Binds, connects and runs until the loop is stopped. True after an orderly stop.
  bool run();
  void request_stop() { loop_->stop(); }

 private:
  Status connect();
  void step(DeviceCore::Event&& event);
  void act(DeviceCore::Action&& action);
  void send_coordinator(Message message);
  void flush_coordinator();
  void send_peer(const PeerAddress& peer, const Message& message);
  void offer_transport(const DeviceCore::OfferTransport& order);
  void answer_transport(DeviceCore::AnswerTransport asked);
  void run_order(kernels::RunOrder order);
  void release_handle(const WireValue& value);
  void release_own(LeaseId lease);
  void end_holder(const ActorId& holder);
  void show_lane(kernels::DeviceRuntime* lender, kernels::SegmentMap* mapped) {
    std::lock_guard lock(lane_mutex_);
    lender_ = lender;
    mapped_ = mapped;
  }
  void end_failed_device();
  void answer(const DeviceQuery& query);
  void beat();
  void trim();
  std::string description() const;
  std::string endpoint_path() const {
    return options_.run_dir + "/" + self_.name + "." + std::to_string(self_.incarnation);
  }

  const DeviceProcessOptions options_;
  const config::DeviceConfig device_;
  const ActorId self_;
  HelperSpawner spawner_;
  std::unique_ptr<Loop> loop_;
  Alarm tick_{*loop_, [this] { step(DeviceCore::Tick{}); }};
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<DeviceCore> core_;
  kernels::Arena* arena_ = nullptr;  // lives as long as the process
  std::unique_ptr<MemoryLane> lane_;
  std::unique_ptr<ConstantStore> constants_;
  std::unique_ptr<kernels::SegmentMap> segments_;
  std::unique_ptr<kernels::DeviceRuntime> runtime_;
  std::mutex lane_mutex_;  // what the lane's thread asks, too, while it lives: runtime_ and segments_
  kernels::DeviceRuntime* lender_ = nullptr;
  kernels::SegmentMap* mapped_ = nullptr;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Line> coordinator_;
  std::map<ActorId, std::unique_ptr<Line>> peers_;
  std::deque<Message> backlog_;  // for the coordinator, when its link's window is full
  Stepper<DeviceCore> stepper_;
  std::uint64_t beats_ = 0;
  std::uint64_t finished_at_trim_ = 0;
  bool failed_ = false;
  StartWatch start_watch_{options_.config.limits.start_timeout};
};

Status DeviceActor::start_memory() {
  kernels::ArenaOptions arena;
  arena.owner = self_;
  arena.memory_limit = device_.memory_limit;
  kernels::SegmentObserver observer;
  observer.added = [this](SegmentId segment, UniqueFd fd, std::uint64_t bytes) -> Status {
    if (!lane_) return fail(ErrorCode::kNotReady, "the memory lane is not connected yet");
    return lane_->add_segment(segment, std::move(fd), bytes);
  };
  observer.dropped = [this](SegmentId segment) {
    if (lane_) lane_->drop_segment(segment);
  };
  CALLBOARD_ASSIGN(arena_, kernels::Arena::create(std::move(arena), std::move(observer)));
  kernels::install_arena_allocator(arena_);

  MemoryLane::Events events;
  events.holder_gone = [this](const ActorId& holder) { end_holder(holder); };
  events.lease_released = [this](LeaseId lease) { release_own(lease); };
  events.owner_gone = [this](const ActorId& owner) {
    std::lock_guard lock(lane_mutex_);
    if (lender_ != nullptr) lender_->owner_gone(owner);
    if (mapped_ == nullptr) return;
    mapped_->drop_owner(owner);
    lane_->report_held(owner, mapped_->held_segments(owner));
  };
  events.node_gone = [this] {
    log::error("node_gone", "the node actor ended; so does this device");
    loop_->stop();
  };
  CALLBOARD_ASSIGN(lane_,
                   MemoryLane::connect(options_.run_dir + "/memory.sock", Role::kDevice, self_, std::move(events)));
  constants_ = std::make_unique<ConstantStore>(*lane_);
  segments_ = kernels::SegmentMap::create(
      [this](const ActorId& owner, SegmentId segment) { return lane_->open_segment(owner, segment); },
      [this](const ActorId& owner, LeaseId lease) {
        if (lease != 0) lane_->release(owner, lease);
      });
  show_lane(nullptr, segments_.get());
  return {};
}

Status DeviceActor::start_runtime() {
  kernels::RuntimeOptions runtime;
  runtime.self = self_;
  runtime.kind = device_.kind;
  runtime.index = device_.index;
  runtime.uuid = device_.uuid;
  runtime.threads = device_.threads;
  runtime.memory_limit = device_.memory_limit;
  runtime.check_outputs = options_.config.checks.outputs;
  runtime.nan_check = options_.config.checks.nan;
  runtime.trace = options_.config.tracing.enabled;
  runtime.results_on_device = device_.output_device != "cpu";
  runtime.capture = device_.cuda_graph == "auto";
  runtime.release_lent = [this](const ActorId& owner, LeaseId lease) { lane_->release(owner, lease); };
  runtime.device_failed = [this](const Error& error) {
    log::error("device_failed", error.to_string());
    // Behind the answer that the run which found it is about to post.
    loop_->post([this] { loop_->in(kLastWords, [this] { end_failed_device(); }); });
  };
  CALLBOARD_ASSIGN(runtime.operators, operator_libraries(options_.config.operators));
  if (device_.python != "none") {
    runtime.python = python_options(options_.config.python, [this] { return loop_->on_loop_thread(); });
    runtime.python->step = [this](std::string_view step) { start_watch_.begins(step); };
  }
  if (device_.python == "process") {
    kernels::DomainProcesses processes = domain_processes(options_.config.python);
    processes.spawn = [this](const HelperSpawner::Fds& fds) { return spawner_.spawn(fds); };
    processes.open_segment = [this](const ActorId& owner, SegmentId id) { return lane_->open_segment(owner, id); };
    processes.find_constant = [this](const void* pointer) { return constants_->find(pointer); };
    processes.open_constant = [this](SegmentId segment) { return constants_->descriptor(segment); };
    runtime.python->processes = std::move(processes);
  }
  runtime.waiting.idle = [this](const std::function<bool()>& has_work) { return loop_->drive(has_work, kNever); };
  runtime.waiting.wake = [this] { loop_->post([] {}); };
  CALLBOARD_ASSIGN(runtime_, kernels::create_device_runtime(std::move(runtime), arena_, segments_.get(),
                                                            [this](const ContentHash& hash, std::uint64_t bytes) {
                                                              return constants_->open(hash, bytes);
                                                            }));
  show_lane(runtime_.get(), segments_.get());
  return {};
}

Status DeviceActor::connect() {
  messenger_ = Messenger::create();
  CALLBOARD_ASSIGN(const std::string endpoint, ipc_endpoint(endpoint_path()));
  Hub::Options hub;
  hub.self = self_;
  hub.endpoint = endpoint;
  hub.cluster = options_.config.name;
  Hub::Events hub_events;
  hub_events.hello = [](const Hello& hello) -> Status {
    if (hello.role == Role::kDevice) return {};
    return fail(ErrorCode::kUnexpectedMessage,
                "a device actor talks to devices here, not to a " + std::string(role_name(hello.role)));
  };
  hub_events.message = [this](const ActorId& from, Message message) {
    step(DeviceCore::FromPeer{from, std::move(message)});
  };
  hub_events.lost = [this](const ActorId& peer, const Error&) { step(DeviceCore::PeerGone{peer}); };
  CALLBOARD_ASSIGN(hub_, Hub::bind(*loop_, *messenger_, std::move(hub), std::move(hub_events)));

  CALLBOARD_ASSIGN(const std::string coordinator, ipc_endpoint(options_.run_dir + "/coordinator.sock"));
  Line::Options line;
  line.hello.role = Role::kDevice;
  line.hello.who = self_;
  line.hello.cluster = options_.config.name;
  line.hello.pid = ::getpid();
  line.hello.endpoint = endpoint;
  line.hello.description = description();
  line.endpoint = coordinator;
  line.connect_timeout = options_.config.limits.start_timeout;
  Line::Events events;
  events.welcome = [this](const Welcome& welcome) {
    log::info("ready", "epoch=" + std::to_string(welcome.epoch));
    start_watch_.ready();
    step(DeviceCore::FromCoordinator{welcome});
  };
  events.message = [this](Message message) { step(DeviceCore::FromCoordinator{std::move(message)}); };
  events.lost = [this](const Error& why) {
    log::error("coordinator_lost", why.to_string());
    failed_ = true;
    loop_->stop();
  };
  CALLBOARD_ASSIGN(coordinator_, Line::connect(*loop_, *messenger_, std::move(line), std::move(events)));
  return {};
}

bool DeviceActor::run() {
  start_watch_.begins("joining the coordinator");
  bool ok = false;
  std::thread thread([this, &ok] {
    ::pthread_setname_np(::pthread_self(), "device/loop");
    if (Status connected = connect(); !connected) {
      log::error("start_failed", connected.error().to_string());
    } else {
      loop_->in(options_.config.heartbeat.interval, [this] { beat(); });
      loop_->in(kTrimInterval, [this] { trim(); });
      loop_->run();
      ok = !failed_;
    }
    peers_.clear();
    coordinator_.reset();
    hub_.reset();
    ::kill(::getpid(), SIGTERM);  // wakes the main thread
  });
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  spawner_.serve_until(signals);
  loop_->stop();
  thread.join();
  return ok;
}

void DeviceActor::step(DeviceCore::Event&& event) {
  const auto carry_out = [this](DeviceCore::Action&& action) { act(std::move(action)); };
  if (!stepper_.step(*core_, std::move(event), carry_out)) return;
  // A tick that comes too early only looks; moving the timer at every step would cost more.
  tick_.no_later_than(core_->next_tick());
}

void DeviceActor::act(DeviceCore::Action&& action) {
  if (auto* send = std::get_if<DeviceCore::SendCoordinator>(&action)) {
    send_coordinator(std::move(send->message));
  } else if (auto* peer = std::get_if<DeviceCore::SendPeer>(&action)) {
    send_peer(peer->peer, peer->message);
  } else if (auto* run = std::get_if<DeviceCore::Run>(&action)) {
    run_order(std::move(run->order));
  } else if (auto* load = std::get_if<DeviceCore::Load>(&action)) {
    const ContentHash program = load->fragment.program;
    const std::uint32_t fragment = load->fragment.index;
    auto done = [this, program, fragment](Result<kernels::LoadedInfo> info) {
      loop_->post([this, program, fragment, info = std::move(info)]() mutable {
        step(DeviceCore::Loaded{program, fragment, std::move(info)});
      });
    };
    if (Status status = runtime_->load(std::move(load->fragment), std::move(done)); !status) {
      step(DeviceCore::Loaded{program, fragment, fail(std::move(status).error())});
    }
  } else if (auto* unload = std::get_if<DeviceCore::Unload>(&action)) {
    runtime_->unload(unload->program);
  } else if (auto* cancel = std::get_if<DeviceCore::Cancel>(&action)) {
    runtime_->cancel(cancel->run, cancel->reason);
  } else if (auto* release = std::get_if<DeviceCore::Release>(&action)) {
    const auto& handle = std::get<TensorHandle>(release->value);
    if (const auto* block = std::get_if<ArenaBlock>(&handle.data)) lane_->release(block->owner, block->lease);
    if (const auto* lent = std::get_if<CudaIpcBlock>(&handle.data)) lane_->release(lent->owner, lent->lease);
  } else if (auto* own = std::get_if<DeviceCore::ReleaseOwn>(&action)) {
    for (LeaseId lease : own->leases) release_own(lease);
  } else if (auto* holder = std::get_if<DeviceCore::EndHolder>(&action)) {
    end_holder(holder->holder);
  } else if (auto* query = std::get_if<DeviceCore::Query>(&action)) {
    answer(query->query);
  } else if (auto* reply = std::get_if<DeviceCore::AnswerPeer>(&action)) {
    // Who asked and is gone needs no answer: its own wait ends the test.
    if (Status sent = hub_->send(reply->peer, reply->message); !sent) {
      log::warning("answer_not_sent", reply->peer.to_string() + ": " + sent.error().to_string());
    }
  } else if (auto* offer = std::get_if<DeviceCore::OfferTransport>(&action)) {
    offer_transport(*offer);
  } else if (auto* asked = std::get_if<DeviceCore::AnswerTransport>(&action)) {
    answer_transport(std::move(*asked));
  } else if (auto* judge = std::get_if<DeviceCore::JudgeTransport>(&action)) {
    auto chosen = runtime_->judge_transport(judge->reader, judge->answer);
    if (!chosen) chosen = TransportChosen{judge->reader, TransportPath::kHostCopy, chosen.error().to_string()};
    step(DeviceCore::TransportJudged{judge->answer.test, std::move(*chosen)});
  } else if (auto* line = std::get_if<DeviceCore::LogLine>(&action)) {
    log::write(line->level, line->event, line->text);
  }
}

void DeviceActor::offer_transport(const DeviceCore::OfferTransport& order) {
  auto done = [this, order](Result<CudaIpcBlock> block) {
    loop_->post([this, order, block = std::move(block)]() mutable {
      step(DeviceCore::TransportOffered{order.reader, order.test, std::move(block)});
    });
  };
  if (Status status = runtime_->offer_transport(order.reader, order.test, std::move(done)); !status) {
    step(DeviceCore::TransportOffered{order.reader, order.test, fail(std::move(status).error())});
  }
}

void DeviceActor::answer_transport(DeviceCore::AnswerTransport asked) {
  const ActorId exporter = asked.exporter;
  const std::uint64_t test = asked.order.test;
  auto done = [this, exporter](TransportTested answer) {
    loop_->post([this, exporter, answer = std::move(answer)]() mutable {
      step(DeviceCore::TransportAnswered{exporter, std::move(answer)});
    });
  };
  if (Status status = runtime_->answer_transport(std::move(asked.order), std::move(done)); !status) {
    step(DeviceCore::TransportAnswered{
        exporter, TransportTested{test, TransportPath::kHostCopy, {}, status.error().to_string()}});
  }
}

void DeviceActor::run_order(kernels::RunOrder order) {
  const RunId run = order.run;
  const Attempt attempt = order.attempt;
  const std::uint32_t fragment = order.fragment;
  auto done = [this, run, attempt, fragment](kernels::RunResult result) {
    // The mailbox cannot be full: the core holds at most kRunsPerDeviceMax runs, each of which posts once.
    auto shared = std::make_shared<kernels::RunResult>(std::move(result));
    auto task = [this, run, attempt, fragment, shared] {
      step(DeviceCore::Finished{run, attempt, fragment, std::move(*shared)});
    };
    // With nothing else to run, the stream's own thread sends the answer and saves a wake-up; else it goes on.
    if (runtime_->load_now().queued == 0) {
      loop_->run_soon(std::move(task));
    } else {
      loop_->post_lazily(std::move(task));
    }
  };
  if (Status status = runtime_->run(std::move(order), std::move(done)); !status) {
    kernels::RunResult refused;
    refused.error = std::move(status).error();
    step(DeviceCore::Finished{run, attempt, fragment, std::move(refused)});
  }
}

void DeviceActor::send_coordinator(Message message) {
  if (!coordinator_) return;
  if (backlog_.empty()) {
    const Status status = coordinator_->send(message);
    if (status) return;
    if (status.error().code == ErrorCode::kTooLarge && std::holds_alternative<FragmentFinished>(message)) {
      // The answer must arrive, if only to say that the result cannot: its handles are the reader's no more.
      auto& finished = std::get<FragmentFinished>(message);
      for (const WireValue& value : finished.outputs) release_handle(value);
      finished.outputs.clear();
      finished.error = status.error();
    } else if (status.error().code != ErrorCode::kOverloaded) {
      log::error("send_failed", std::string(message_name(message)) + ": " + status.error().to_string());
      return;
    }
  }
  backlog_.push_back(std::move(message));
  if (backlog_.size() == 1) loop_->in(kResendInterval, [this] { flush_coordinator(); });
}

void DeviceActor::flush_coordinator() {
  while (!backlog_.empty() && coordinator_ && coordinator_->send(backlog_.front())) backlog_.pop_front();
  if (!backlog_.empty()) loop_->in(kResendInterval, [this] { flush_coordinator(); });
}

void DeviceActor::send_peer(const PeerAddress& peer, const Message& message) {
  auto& line = peers_[peer.who];
  if (!line) {
    Line::Options options;
    options.hello.role = Role::kDevice;
    options.hello.who = self_;
    options.hello.cluster = options_.config.name;
    options.hello.pid = ::getpid();
    options.endpoint = peer.endpoint;
    Line::Events events;
    events.message = [this, who = peer.who](Message answer) { step(DeviceCore::FromPeer{who, std::move(answer)}); };
    events.lost = [this, who = peer.who](const Error& why) {
      log::warning("peer_lost", who.to_string() + ": " + why.to_string());
      loop_->post([this, who] { peers_.erase(who); });
      step(DeviceCore::PeerGone{who});
    };
    auto connected = Line::connect(*loop_, *messenger_, std::move(options), std::move(events));
    if (!connected) {
      log::error("peer_unreachable", peer.who.to_string() + ": " + connected.error().to_string());
      peers_.erase(peer.who);
      return;
    }
    line = std::move(*connected);
  }
  // On a full window the consumer's deadline ends the run with its cause; the link's loss is reported by itself.
  if (Status status = line->send(message); !status) {
    log::error("edge_not_sent", peer.who.to_string() + ": " + status.error().to_string());
    if (const auto* edge = std::get_if<EdgeValues>(&message)) {
      for (const auto& [id, value] : edge->values) release_handle(value);
    }
  }
}

/// A handle of ours that nobody will hear of.
void DeviceActor::release_handle(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return;
  if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) release_own(block->lease);
  if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data)) release_own(lent->lease);
}

/// On the arena or, where it knows no such lease, on the device's own memory. The loop's or the lane's thread.
void DeviceActor::release_own(LeaseId lease) {
  if (arena_->release(lease)) return;
  std::lock_guard lock(lane_mutex_);
  if (lender_ != nullptr) lender_->release(lease);
}

void DeviceActor::end_holder(const ActorId& holder) {
  arena_->holder_gone(holder);
  std::lock_guard lock(lane_mutex_);
  if (lender_ != nullptr) lender_->holder_gone(holder);
}

/// At once: destroying what is left of a device that failed may hang.
void DeviceActor::end_failed_device() {
  log::error("ended", "the device can run nothing more; the node actor starts this actor anew");
  ::_exit(kExitDeviceFailed);
}

void DeviceActor::answer(const DeviceQuery& query) {
  DeviceReply reply;
  reply.query = query.query;
  Result<std::string> text = answer_query(query, *runtime_, *arena_, *segments_);
  if (text) {
    reply.result = std::move(*text);
  } else {
    reply.error = std::move(text).error();
    reply.error->actor = self_.to_string();
  }
  send_coordinator(std::move(reply));
}

void DeviceActor::beat() {
  const kernels::DeviceRuntime::Load load = runtime_->load_now();
  Beat beat;
  beat.count = ++beats_;
  beat.finished = load.finished;
  beat.queued = load.queued;
  beat.running = load.running;
  beat.memory_bytes = arena_->stats().in_use_bytes;
  if (coordinator_->connected()) coordinator_->send_once(beat);  // losing one does no harm
  loop_->in(options_.config.heartbeat.interval, [this] { this->beat(); });
}

void DeviceActor::trim() {
  // All only after a whole interval without work: between two requests, warm pages are worth more than free ones.
  const std::uint64_t finished = runtime_->load_now().finished;
  if (finished == finished_at_trim_) {
    arena_->trim();
    runtime_->trim();
  } else {
    arena_->trim_unused();
  }
  finished_at_trim_ = finished;
  loop_->in(kTrimInterval, [this] { trim(); });
}

std::string DeviceActor::description() const {
  const nlohmann::json runtime = nlohmann::json::parse(runtime_->describe(), nullptr, false);
  nlohmann::json text = {{"kind", device_.kind},
                         {"threads", device_.threads},
                         {"memory_limit", device_.memory_limit},
                         {"runtime", runtime}};
  // By it the coordinator knows which clients can open this device's memory.
  if (const auto state = runtime.find("backend_state"); state != runtime.end() && state->is_object()) {
    text["gpu"] = state->value("uuid", "");
  }
  return text.dump();
}

}  // namespace

int run_device(const DeviceProcessOptions& options) {
  const config::DeviceConfig* device = nullptr;
  for (const config::DeviceConfig& candidate : options.config.devices) {
    if (candidate.name == options.name) device = &candidate;
  }
  if (device == nullptr) {
    log::error("start_failed", "no device '" + options.name + "' in the cluster file");
    return 1;
  }
  mark_inside_cluster(options.run_dir);
  // SIGTERM is taken by serve_until() below; a terminal's Ctrl-C is the node actor's business, which ends us in order.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);

  DeviceActor actor(options, *device);
  if (Status memory = actor.start_memory(); !memory) {
    log::error("start_failed", memory.error().to_string());
    return 1;
  }
  if (Status runtime = actor.start_runtime(); !runtime) {
    log::error("start_failed", runtime.error().to_string());
    return 1;
  }
  return actor.run() ? 0 : 1;
}

}  // namespace callboard::actors
