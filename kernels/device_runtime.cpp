// DeviceRuntime on LibTorch: which thread does what, and in which order.
//   compute stream      load, run (inputs, kernels, state), export of what needs no large copy
//   communicate stream  large copies of results, so that they overlap with the next run's kernels
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "kernels/broken_copies.h"
#include "kernels/device_exchange.h"
#include "kernels/device_transports.h"
#include "kernels/executor.h"
#include "kernels/fragment_capture.h"
#include "kernels/gil_domain.h"
#include "kernels/kernel_stream.h"
#include "kernels/pending_run.h"
#include "kernels/plugin.h"
#include "kernels/python_kernel.h"
#include "kernels/run_outputs.h"
#include "kernels/runtime.h"
#include "kernels/tensor_export.h"
#include "kernels/tensor_import.h"
#include "messages/base/check.h"

namespace callboard::kernels {

namespace {

/// Copying less than this takes less time than handing the copy to another thread and back.
constexpr std::uint64_t kCopyOnComputeMax = 256u << 10;

using FragmentKey = std::pair<ContentHash, std::uint32_t>;

class Runtime final : public DeviceRuntime {
 public:
  static Result<std::unique_ptr<DeviceRuntime>> create(RuntimeOptions options, Arena* arena, SegmentMap* segments,
                                                       ConstantOpener constants) {
    if (arena == nullptr) return fail(ErrorCode::kInternal, "a device runtime needs an arena");
    CALLBOARD_ASSIGN(std::vector<LoadedLibrary> libraries, load_operator_libraries(options.operators));
    if (comes_by_plugin(options.kind)) CALLBOARD_TRY(load_plugin(options.kind));
    const BackendOptions device{options.self, options.index, options.uuid, options.memory_limit, options.release_lent};
    CALLBOARD_ASSIGN(std::unique_ptr<DeviceBackend> backend, make_backend(options.kind, device));
    std::unique_ptr<Runtime> runtime(
        new Runtime(std::move(options), std::move(backend), arena, segments, std::move(constants)));
    runtime->libraries_ = std::move(libraries);
    CALLBOARD_ASSIGN(runtime->compute_, KernelStream::create(*runtime->backend_, StreamKind::kCompute,
                                                             runtime->options_.threads, runtime->options_.waiting));
    CALLBOARD_ASSIGN(runtime->communicate_, KernelStream::create(*runtime->backend_, StreamKind::kCommunicate, 1));
    if (runtime->options_.python) CALLBOARD_TRY(runtime->start_python(*runtime->options_.python));
    runtime->executor_ = std::make_unique<Executor>(runtime->compute_->context(), runtime->backend_->device(),
                                                    runtime->options_.check_outputs);
    runtime->capture_ =
        std::make_unique<FragmentCapture>(runtime->compute_->context(), *runtime->executor_, runtime->options_.capture);
    runtime->device_constants_ =
        std::make_unique<DeviceConstants>(runtime->backend_->device(), runtime->compute_->context());
    return runtime;
  }

  ~Runtime() override {
    stopping_.store(true, std::memory_order_release);
    if (compute_) compute_->thread().stop();  // hands its last exports over, so it goes first
    if (communicate_) communicate_->thread().stop();
  }

  Status load(Fragment fragment, std::function<void(Result<LoadedInfo>)> done) override {
    std::shared_ptr<FragmentSlot> slot;
    {
      std::lock_guard lock(mutex_);
      std::shared_ptr<FragmentSlot>& place = fragments_[{fragment.program, fragment.index}];
      if (!place) place = std::make_shared<FragmentSlot>();
      slot = place;
    }
    auto owned = std::make_shared<Fragment>(std::move(fragment));
    return posted(compute_->post([this, slot, owned, done = std::move(done)] { done(load_here(owned, *slot)); }));
  }

  void unload(const ContentHash& program) override {
    profile_hook_.end(program);  // who profiled it is gone
    std::vector<std::shared_ptr<FragmentSlot>> gone;
    {
      std::lock_guard lock(mutex_);
      for (auto entry = fragments_.begin(); entry != fragments_.end();) {
        if (entry->first.first != program) {
          ++entry;
          continue;
        }
        gone.push_back(std::move(entry->second));
        entry = fragments_.erase(entry);
      }
    }
    // Unmapping weights takes a while: not on the loop's thread, if the queue has room.
    if (!gone.empty()) compute_->post([gone = std::move(gone)]() mutable { gone.clear(); });
  }

  bool release(LeaseId lease) noexcept override { return exchange_ != nullptr && exchange_->release(lease); }
  void holder_gone(const ActorId& holder) noexcept override {
    transports_.holder_gone(holder);
    if (exchange_ != nullptr) exchange_->holder_gone(holder);
  }
  void owner_gone(const ActorId& owner) noexcept override {
    if (exchange_ != nullptr) exchange_->owner_gone(owner);
  }

  Status offer_transport(const ActorId& reader, std::uint64_t test,
                         std::function<void(Result<CudaIpcBlock>)> done) override {
    CALLBOARD_TRY(transports_.supported(options_.self));
    return posted(communicate_->post([this, reader, test, done = std::move(done)] {
      done(transports_.offer(reader, test, communicate_->context()));
      tell_device_failure();
    }));
  }
  Status answer_transport(TestTransport order, std::function<void(TransportTested)> done) override {
    CALLBOARD_TRY(transports_.supported(options_.self));
    return posted(communicate_->post([this, order = std::move(order), done = std::move(done)] {
      done(transports_.answer(order, communicate_->context()));
      tell_device_failure();
    }));
  }
  Result<TransportChosen> judge_transport(const ActorId& reader, const TransportTested& answer) override {
    CALLBOARD_TRY(transports_.supported(options_.self));
    return transports_.judge(reader, answer);
  }

  Status run(RunOrder order, std::function<void(RunResult)> done) override {
    auto pending = std::make_shared<PendingRun>();
    pending->control = std::make_shared<RunControl>(order.deadline);
    const RunId id = order.run;
    {
      std::lock_guard lock(mutex_);
      const auto found = fragments_.find({order.program, order.fragment});
      if (found == fragments_.end()) {
        return fail(ErrorCode::kProgramUnknown, "fragment " + std::to_string(order.fragment) + " of program " +
                                                    order.program.hex().substr(0, 12) +
                                                    " is not loaded on this device");
      }
      pending->slot = found->second;
      controls_.emplace(id, pending->control);
    }
    pending->order = std::move(order);
    pending->done = std::move(done);
    queued_.fetch_add(1, std::memory_order_relaxed);
    Status queued = posted(compute_->post([this, pending] { run_here(pending); }));
    if (!queued) {
      queued_.fetch_sub(1, std::memory_order_relaxed);
      forget_control(id, pending->control);
    }
    return queued;
  }

  void cancel(RunId run, const Error& reason) override {
    std::lock_guard lock(mutex_);
    const auto [first, last] = controls_.equal_range(run);
    for (auto entry = first; entry != last; ++entry) entry->second->cancel(reason);
  }

  Load load_now() const override {
    return {queued_.load(std::memory_order_relaxed), running_.load(std::memory_order_relaxed),
            finished_.load(std::memory_order_relaxed)};
  }

  void trim() override {
    broken_copies_.sweep();
    if (exchange_ != nullptr) exchange_->trim();
  }

  void set_trace(bool on) override { tracing_.store(on, std::memory_order_relaxed); }
  TraceBatch take_trace(std::size_t bytes_max) override { return trace_.take(bytes_max); }
  Status begin_profile(const ContentHash& program) override { return profile_hook_.begin(program); }
  void end_profile(const ContentHash& program) override { profile_hook_.end(program); }
  Result<ProfileTimes> take_profile(const ContentHash& program, std::size_t first, std::size_t count) const override {
    return profile_hook_.take(program, first, count);
  }
  std::string describe() const override;

 private:
  Runtime(RuntimeOptions options, std::unique_ptr<DeviceBackend> backend, Arena* arena, SegmentMap* segments,
          ConstantOpener constants)
      : options_(std::move(options)),
        backend_(std::move(backend)),
        exchange_(backend_->exchange()),
        transports_(exchange_),
        constants_(std::move(constants)),
        own_(arena, options_.self),
        segments_(segments),
        importer_(own_, segments, *backend_),
        exporter_(own_, *backend_),
        tracing_(options_.trace) {}

  /// Where something else than a run finds it.
  void tell_device_failure() {
    std::optional<Error> none;
    note_device_failure(none);
  }

  Status posted(PushResult result) const {
    if (result == PushResult::kPushed) return {};
    if (result == PushResult::kClosed) return fail(ErrorCode::kActorUnavailable, "the device is shutting down");
    return fail(ErrorCode::kOverloaded,
                "the device's queue is full (" + std::to_string(limits::kStreamQueueMax) + " commands)",
                "submit fewer requests at once");
  }

  Status start_python(const PythonOptions& options);

  // -- compute stream -----------------------------------------------------------------------------------------------
  Result<std::unique_ptr<LoadedFragment>> prepare(const Fragment& fragment);
  Result<LoadedInfo> load_here(const std::shared_ptr<const Fragment>& fragment, FragmentSlot& slot);
  Status renew(FragmentSlot& slot);
  void run_here(const PendingPtr& pending);
  /// What is left to say: an error, success, or nothing since the communicate stream goes on.
  enum class Next { kFinish, kHandedOver };
  Result<Next> run_fragment(const PendingPtr& pending);
  Status commit(PendingRun& run, LoadedFragment& fragment, std::vector<at::Tensor> states);
  std::shared_ptr<const Error> compute(PendingRun& run, LoadedFragment& fragment);
  std::shared_ptr<const Error> import_inputs(PendingRun& run, const LoadedFragment& fragment, Executor::Order& order);
  std::shared_ptr<const Error> execute(PendingRun& run, LoadedFragment& fragment, Executor::Order order);
  OutputReaders readers(const PendingRun& run) const;
  bool belongs_on_communicate(const PendingRun& run) const;
  void note_device_failure(std::optional<Error>& error);
  /// Tells the actor, once.
  void fail_device(const Error& root) {
    if (!device_failed_.exchange(true) && options_.device_failed) options_.device_failed(root);
  }
  Status export_outputs(PendingRun& run, StreamContext& stream);
  Status hand_over(PendingRun& run, StreamContext& stream);
  std::vector<KernelHook*> hooks_now(const ContentHash& program);
  // -- communicate stream -------------------------------------------------------------------------------------------
  void export_here(const PendingPtr& pending);
  // -- either -------------------------------------------------------------------------------------------------------
  void finish(const PendingPtr& pending, std::optional<Error> error);
  void release_leases(RunResult& result);
  void forget_control(RunId run, const std::shared_ptr<RunControl>& control);
  void trace_span(const char* what, RunId run, TimePoint start);

  const RuntimeOptions options_;
  std::vector<LoadedLibrary> libraries_;  // set once, before any stream runs
  const std::unique_ptr<DeviceBackend> backend_;
  DeviceExchange* const exchange_;  // the backend's; nullptr where device memory is host memory
  DeviceTransports transports_;
  const ConstantOpener constants_;
  std::atomic<bool> device_failed_{false};
  BrokenCopies broken_copies_;  // communicate stream's
  OwnBlocks own_;
  SegmentMap* const segments_;
  TensorImporter importer_;
  TensorExporter exporter_;

  TraceRing trace_;
  TraceHook trace_hook_{trace_};
  TimingHook timing_hook_;
  ProfileHook profile_hook_;
  NanCheckHook nan_hook_;
  std::atomic<bool> tracing_;
  std::atomic<bool> stopping_{false};

  std::atomic<std::uint32_t> queued_{0};
  std::atomic<std::uint32_t> running_{0};
  std::atomic<std::uint64_t> finished_{0};

  mutable std::mutex mutex_;
  std::map<FragmentKey, std::shared_ptr<FragmentSlot>> fragments_;  // guarded by mutex_
  std::multimap<RunId, std::shared_ptr<RunControl>> controls_;      // guarded by mutex_

  std::unique_ptr<GilDomain> python_;  // made before the first load; outlives the streams
  std::unique_ptr<KernelStream> communicate_;
  std::unique_ptr<Executor> executor_;                 // compute stream
  std::unique_ptr<FragmentCapture> capture_;           // compute stream
  std::unique_ptr<DeviceConstants> device_constants_;  // compute stream
  std::unique_ptr<KernelStream> compute_;
};

/// The interpreter on this thread, which is main's; the warm-up where the kernels will run.
Status Runtime::start_python(const PythonOptions& options) {
  CALLBOARD_ASSIGN(python_, make_gil_domain(options, backend_->device(), options_.self, options_.threads, own_.arena(),
                                            segments_, memory_of(*backend_, compute_->context())));
  Status warm;
  auto done = std::make_shared<HostEvent>();
  compute_->post([this, &warm] { warm = python_->warm_up(options_.threads); });
  compute_->thread().fence(done);
  done->wait_until(kNever);  // the actor's start has its own deadline, and ends the process
  return warm;
}

Result<std::unique_ptr<LoadedFragment>> Runtime::prepare(const Fragment& fragment) {
  auto* const lasting = exchange_ == nullptr ? nullptr : device_constants_.get();
  // Constants that processes of a GIL domain read where they lie; elsewhere each call would copy them.
  const LendableScope lendable(calls_processes(python_.get(), fragment) ? exchange_ : nullptr);
  const auto once = [&] {
    return load_fragment(fragment, *backend_, options_.memory_limit, constants_, lasting, python_.get());
  };
  auto loaded = once();
  if (loaded || loaded.error().code != ErrorCode::kOutOfMemory || !backend_->release_cached_memory()) return loaded;
  return once();
}

Result<LoadedInfo> Runtime::load_here(const std::shared_ptr<const Fragment>& fragment, FragmentSlot& slot) {
  if (slot.fragment) return slot.fragment->info;
  if (stopping_.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kActorUnavailable, "the device was shut down before the fragment was loaded");
  }
  if (!compute_->context().is_current()) compute_->context().enter();  // as in run_here()
  auto loaded = prepare(*fragment);
  if (loaded) {
    slot.fragment = std::move(*loaded);
    if (!slot.fragment->files.empty()) slot.source = fragment;
    slot.has_state.store(!slot.fragment->states.empty(), std::memory_order_relaxed);
    return slot.fragment->info;
  }
  Error error = std::move(loaded).error();
  error.actor = options_.self.to_string();
  std::lock_guard lock(mutex_);
  const auto place = fragments_.find({fragment->program, fragment->index});
  if (place != fragments_.end() && place->second.get() == &slot) fragments_.erase(place);
  return fail(std::move(error));
}

/// Where a file of weights has changed: with what the node actor has of them by now. A client that loads the program
/// again brings them there, and to the coordinator it is the same program.
Status Runtime::renew(FragmentSlot& slot) {
  Status intact = check_files(slot.fragment->files);
  if (intact || !slot.fragment->states.empty()) return intact;  // a state would be lost in silence
  CALLBOARD_ASSIGN(slot.fragment, prepare(*slot.source));
  return {};
}

void Runtime::run_here(const PendingPtr& pending) {
  queued_.fetch_sub(1, std::memory_order_relaxed);
  running_.fetch_add(1, std::memory_order_relaxed);
  Result<Next> next = Next::kFinish;
  try {
    // A kernel of an earlier run may have left another stream current; inputs are imported before the next kernel.
    if (!compute_->context().is_current()) compute_->context().enter();
    next = run_fragment(pending);
  } catch (const std::exception& thrown) {  // what is no kernel's: the heap, between two kernels
    next = fail(ErrorCode::kInternal, std::string("the run could not be carried on: ") + thrown.what());
  }
  if (!next) return finish(pending, std::move(next).error());
  if (*next == Next::kFinish) finish(pending, std::nullopt);
}

Result<Runtime::Next> Runtime::run_fragment(const PendingPtr& pending) {
  PendingRun& run = *pending;
  if (stopping_.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kActorUnavailable, "the device was shut down before the run began");
  }
  if (auto reason = run.control->stop_reason()) return fail(std::move(*reason));
  if (device_failed_.load(std::memory_order_relaxed)) {
    return fail(ErrorCode::kDeviceFailed, "the device ends: an earlier run has left it unusable");
  }
  if (!run.slot->fragment) return fail(ErrorCode::kProgramUnknown, "the fragment could not be loaded on this device");
  CALLBOARD_TRY(renew(*run.slot));
  LoadedFragment& fragment = *run.slot->fragment;
  const ResetAtEnd reset(fragment);
  if (const auto error = compute(run, fragment)) {
    if (fragment.guard.damaged()) fail_device(*error);
    CALLBOARD_TRY(check_files(fragment.files));  // weights that are gone explain whatever it was
    return fail(*error);
  }
  std::vector<at::Tensor> states;
  CALLBOARD_TRY(take_states(fragment, states));
  collect_outputs(run, fragment, states, readers(run));
  if (!states.empty()) {
    CALLBOARD_TRY(commit(run, fragment, std::move(states)));
    return Next::kFinish;
  }
  if (belongs_on_communicate(run)) {
    run.computed = compute_->context().record();
    fragment.reset();  // before the other thread may finish the run
    if (communicate_->post([this, pending] { export_here(pending); }) == PushResult::kPushed) return Next::kHandedOver;
  }
  CALLBOARD_TRY(hand_over(run, compute_->context()));
  return Next::kFinish;
}

/// The state moves on once the results exist: the next run must not see a state whose results nobody got.
Status Runtime::commit(PendingRun& run, LoadedFragment& fragment, std::vector<at::Tensor> states) {
  CALLBOARD_TRY(hand_over(run, compute_->context()));
  for (std::size_t i = 0; i < states.size(); ++i) fragment.states[i].current = std::move(states[i]);
  run.result.state_version = ++fragment.state_version;
  run.slot->state_version.store(fragment.state_version, std::memory_order_relaxed);
  return {};
}

std::shared_ptr<const Error> Runtime::compute(PendingRun& run, LoadedFragment& fragment) {
  Executor::Order order;
  order.run = run.order.run;
  order.symbols = run.order.symbols;
  order.control = run.control.get();
  const std::vector<KernelHook*> hooks = hooks_now(run.order.program);
  order.hooks = hooks;
  if (auto error = import_inputs(run, fragment, order)) return error;
  const TimePoint start = Clock::now();
  auto error = execute(run, fragment, std::move(order));
  run.result.run_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  return error;
}

std::shared_ptr<const Error> Runtime::import_inputs(PendingRun& run, const LoadedFragment& fragment,
                                                    Executor::Order& order) {
  const LendableScope lendable(exchange_);
  order.inputs.reserve(run.order.inputs.size());
  for (std::size_t i = 0; i < run.order.inputs.size(); ++i) {
    run.imported = i + 1;
    auto value = importer_.import(run.order.inputs[i], &compute_->context());
    if (!value) {
      Error error = std::move(value).error();
      const bool named = i < fragment.inputs.size();
      error.message =
          "input " + std::to_string(i) + (named ? " '" + fragment.inputs[i].name + "'" : "") + ": " + error.message;
      return std::make_shared<const Error>(std::move(error));
    }
    order.inputs.push_back(std::move(*value));
  }
  return nullptr;
}

std::shared_ptr<const Error> Runtime::execute(PendingRun& run, LoadedFragment& fragment, Executor::Order order) {
  if (exchange_ == nullptr) return executor_->run(fragment, std::move(order));
  const auto once = [&](Executor::Order now) {
    const LendableScope lendable(exchange_);
    return capture_->run(fragment, run.slot->capture, std::move(now));
  };
  auto error = once(order);
  if (!error || error->code != ErrorCode::kOutOfMemory || !fragment.info.pure) return error;
  // What other pools and sizes keep free is given back first: then the same may fit.
  fragment.reset();
  return backend_->release_cached_memory() ? once(std::move(order)) : error;
}

OutputReaders Runtime::readers(const PendingRun& run) const {
  if (exchange_ == nullptr || !exchange_->can_lend()) return {};
  return {[this](const ActorId& holder) { return holder == options_.self || transports_.reads_device(holder); },
          options_.results_on_device && run.order.client_reads_device};
}

/// Large copies, so that they overlap with the next run's kernels, and whatever waits for the device, so that the next
/// run's kernels are queued meanwhile.
bool Runtime::belongs_on_communicate(const PendingRun& run) const {
  if (exchange_ != nullptr && reads_memory_of_others(run.order, options_.self)) return true;
  std::uint64_t bytes = 0;
  for (const ExportItem& item : run.items) {
    if (exporter_.waits_for_device(item)) return true;
    bytes += exporter_.bytes_to_copy(item);
  }
  return bytes > kCopyOnComputeMax;
}

Status Runtime::export_outputs(PendingRun& run, StreamContext& stream) {
  const TimePoint start = Clock::now();
  const LendableScope lendable(exchange_);
  for (std::size_t i = 0; i < run.items.size(); ++i) {
    CALLBOARD_ASSIGN(std::vector<WireValue> values, exporter_.export_item(run.items[i], stream, run.order.deadline));
    for (std::size_t k = 0; k < values.size(); ++k) {
      auto& target = run.to_client[i] && k == 0 ? run.result.to_client : run.result.on_edges;
      target.push_back(std::move(values[k]));
    }
  }
  if (tracing_.load(std::memory_order_relaxed)) trace_span("export", run.order.run, start);
  return check_files(run.files);  // last, when nothing is read any more
}

Status Runtime::hand_over(PendingRun& run, StreamContext& stream) {
  CALLBOARD_TRY(export_outputs(run, stream));
  return exchange_ == nullptr ? Status() : await_reads_of_others(run.order, options_.self, *exchange_, stream);
}

std::vector<KernelHook*> Runtime::hooks_now(const ContentHash& program) {
  std::vector<KernelHook*> hooks;
  if (options_.nan_check) hooks.push_back(&nan_hook_);  // first: the others then hear of its refusal as a failure
  if (tracing_.load(std::memory_order_relaxed)) hooks.push_back(&trace_hook_);
  if (options_.timing) hooks.push_back(&timing_hook_);
  if (profile_hook_.wants(program)) hooks.push_back(&profile_hook_);  // last: the others' time is not its
  return hooks;
}

void Runtime::export_here(const PendingPtr& pending) {
  StreamContext& stream = communicate_->context();
  Status status;
  try {
    status = stream.wait(*pending->computed, pending->order.deadline);
    if (status) status = hand_over(*pending, stream);
    // What was copied from here goes back to the compute stream, which does not know of this one's work.
    if (status && exchange_ != nullptr) status = stream.synchronize(pending->order.deadline);
  } catch (const std::exception& thrown) {
    status = fail(ErrorCode::kInternal, std::string("the results could not be handed over: ") + thrown.what());
  }
  if (!status && exchange_ != nullptr) broken_copies_.keep(stream, std::move(pending->items));
  finish(pending, status ? std::nullopt : std::optional(std::move(status).error()));
}

/// Where the device can do nothing more, that is the root of whatever went wrong here; also of a run that seems well.
void Runtime::note_device_failure(std::optional<Error>& error) {
  if (exchange_ == nullptr) return;
  Status health = backend_->health();
  if (health) return;
  Error root = std::move(health).error();
  if (error) {
    root.op = error->op;
    root.node = error->node;
    root.detail = error->detail;
    root.causes.push_back(std::move(*error));
  }
  error = root;
  fail_device(root);
}

void Runtime::finish(const PendingPtr& pending, std::optional<Error> error) {
  PendingRun& run = *pending;
  note_device_failure(error);
  // Before `done`: from then on nothing of the inputs is read or held.
  run.items.clear();
  for (std::size_t i = run.imported; i < run.order.inputs.size(); ++i) importer_.discard(run.order.inputs[i]);
  if (error) {
    release_leases(run.result);
    run.result = RunResult();
    if (error->actor.empty()) error->actor = options_.self.to_string();
    run.result.error = std::move(error);
  }
  forget_control(run.order.run, run.control);
  run.slot.reset();
  running_.fetch_sub(1, std::memory_order_relaxed);
  finished_.fetch_add(1, std::memory_order_relaxed);
  run.done(std::move(run.result));
}

/// Of outputs exported before one that failed: nobody will hear of them.
void Runtime::release_leases(RunResult& result) {
  for (auto* values : {&result.to_client, &result.on_edges}) {
    for (const WireValue& value : *values) {
      const auto* handle = std::get_if<TensorHandle>(&value);
      if (handle == nullptr) continue;
      if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) own_.arena()->release(block->lease);
      if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data)) release(lent->lease);
    }
  }
}

void Runtime::forget_control(RunId run, const std::shared_ptr<RunControl>& control) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = controls_.equal_range(run);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second != control) continue;
    controls_.erase(entry);
    return;
  }
}

void Runtime::trace_span(const char* what, RunId run, TimePoint start) {
  trace_.add({nullptr, what, run, trace_thread(), start, Clock::now() - start, false});
}

std::string Runtime::describe() const {
  nlohmann::json text = {{"backend", backend_->kind()},
                         {"device", backend_->device().str()},
                         {"threads", options_.threads},
                         {"torch", TORCH_VERSION},
                         {"check_outputs", options_.check_outputs},
                         {"tracing", tracing_.load(std::memory_order_relaxed)},
                         {"copied_out_bytes", exporter_.copied_bytes()}};
  if (const std::string own = backend_->describe(); !own.empty()) {
    text["backend_state"] = nlohmann::json::parse(own, nullptr, false);
  }
  if (!libraries_.empty()) text["operator_libraries"] = nlohmann::json::parse(to_json(libraries_));
  if (python_) text["python"] = nlohmann::json::parse(python_->describe(), nullptr, false);
  auto operators = nlohmann::json::object();
  for (const auto& [op, total] : timing_hook_.totals()) {
    operators[op] = {
        {"calls", total.calls}, {"failed", total.failed}, {"total_ns", total.total_ns}, {"max_ns", total.max_ns}};
  }
  if (!operators.empty()) text["operators"] = std::move(operators);
  auto states = nlohmann::json::array();
  auto captures = nlohmann::json::array();
  std::lock_guard lock(mutex_);
  for (const auto& [key, slot] : fragments_) {
    if (exchange_ != nullptr && options_.capture) {
      captures.push_back({{"program", key.first.hex()}, {"fragment", key.second}, {"state", slot->capture.text()}});
    }
    if (!slot->has_state.load(std::memory_order_relaxed)) continue;
    states.push_back({{"program", key.first.hex()},
                      {"fragment", key.second},
                      {"version", slot->state_version.load(std::memory_order_relaxed)}});
  }
  text["states"] = std::move(states);
  if (!captures.empty()) text["captures"] = std::move(captures);
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<DeviceRuntime>> create_device_runtime(RuntimeOptions options, Arena* arena, SegmentMap* segments,
                                                             ConstantOpener constants) {
  return Runtime::create(std::move(options), arena, segments, std::move(constants));
}

}  // namespace callboard::kernels
