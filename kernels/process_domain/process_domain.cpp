#include "kernels/process_domain/process_domain.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "kernels/gil_board_json.h"
#include "kernels/kernel_failure.h"
#include "kernels/process_domain/call_packer.h"
#include "kernels/process_domain/domain_child.h"
#include "messages/base/log.h"

namespace callboard::kernels {

namespace {

constexpr std::chrono::milliseconds kLookForChild{20};   // of a call that waits for a child
constexpr std::chrono::milliseconds kFirstBackoff{500};  // after a start that failed; doubled
constexpr std::chrono::seconds kLastBackoff{30};
constexpr int kFailuresMax = 4;  // in a row, before calls are refused at once
constexpr int kTriesMax = 3;     // of a call whose child had ended before it

/// What a child brings must be what the first one brought: loaded programs are bound to it.
bool same_operators(const DomainReady& a, const DomainReady& b) {
  return std::ranges::equal(a.operators, b.operators, [](const DomainOperator& x, const DomainOperator& y) {
    return x.op == y.op && x.schema == y.schema && x.random == y.random && x.target == y.target;
  });
}

class ProcessDomain final : public GilDomain {
 public:
  ProcessDomain(const PythonOptions& options, const ActorId& device, int threads, Arena* arena, SegmentMap* segments,
                const DomainDeviceMemory& memory)
      : options_(options), threads_(threads), log_(options.log), host_{device,
                                                                       arena,
                                                                       segments,
                                                                       memory,
                                                                       *options.processes,
                                                                       options.step} {}
  ~ProcessDomain() override;
  ProcessDomain(const ProcessDomain&) = delete;
  ProcessDomain& operator=(const ProcessDomain&) = delete;

  /// Main thread.
  Status begin();

  std::string_view kind() const override { return "process"; }
  const std::vector<PythonOperator>& operators() const override { return operators_; }
  std::string why_not(std::string_view op) const override;
  Status warm_up(int /*threads*/) override { return {}; }  // each child has been, before it was ready
  void call(const PythonOperator& op, torch::jit::Stack& stack, std::vector<Undeclared>& undeclared,
            const StopSignal* stop) override {
    begin(op, stack, stop)->finish(stack, undeclared);
  }
  std::size_t parallel() const override { return host_.processes.count; }
  std::unique_ptr<Call> begin(const PythonOperator& op, const torch::jit::Stack& stack,
                              const StopSignal* stop) override;
  bool has_room() const override {
    std::lock_guard lock(mutex_);
    return !idle_.empty();
  }
  void look_after() override { step_all(Duration::zero()); }
  std::optional<c10::Storage> memory_to_write(const c10::Storage& like) override {
    return packer_.memory_to_write(like);
  }
  bool writes_in_place(const c10::Storage& storage) const override { return packer_.writes_in_place(storage); }
  std::string describe() const override;

 private:
  using ChildPtr = std::unique_ptr<DomainChild>;
  class Begun;

  DomainStart start_of(std::uint32_t number) const;
  Result<ChildPtr> start_one(std::uint32_t number);
  Status take_operators(DomainReady ready);
  // -- the starter's thread
  void keep_children();
  void start_missing(std::unique_lock<std::mutex>& lock);
  std::vector<ChildPtr> take_dead_locked();
  void wake();
  // -- calls
  ChildPtr acquire(const StopSignal* stop);
  void give_back(ChildPtr child);
  void note_end(const DomainChild& child);
  void step_all(Duration wait);
  std::size_t wanted() const { return host_.processes.count + host_.processes.spare; }

  const PythonOptions options_;
  const int threads_;
  const std::function<void(std::string_view event, std::string_view text)> log_;
  const DomainHost host_;
  const CallPacker packer_{host_};
  std::vector<PythonOperator> operators_;  // fixed once begun, like the next two
  DomainReady first_;
  nlohmann::json report_;
  std::vector<Begun*> under_way_;     // the compute stream's thread
  UniqueFd wake_;                     // an eventfd
  std::atomic<bool> closing_{false};  // for a start under way

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ChildPtr> idle_;  // all below guarded by mutex_
  std::map<std::uint32_t, DomainChild*> busy_;
  std::size_t starting_ = 0;
  std::uint32_t last_number_ = 0;
  std::uint64_t ended_ = 0;           // children that ended, whatever ended them
  std::uint64_t calls_ended_ = 0;     // of those
  GilBoard counted_;                  // by those
  std::optional<Error> start_error_;  // of the last start, if it failed
  int failures_ = 0;                  // starts in a row that failed
  Duration backoff_ = kFirstBackoff;
  TimePoint next_start_;
  bool ending_ = false;
  std::thread starter_;
};

ProcessDomain::~ProcessDomain() {
  closing_.store(true);
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  changed_.notify_all();
  if (starter_.joinable()) starter_.join();
}

DomainStart ProcessDomain::start_of(std::uint32_t number) const {
  DomainStart start;
  start.device = host_.device;
  start.number = number;
  start.threads = static_cast<std::uint32_t>(std::max(threads_, 1));
  start.executable = options_.executable;
  start.path = options_.path;
  start.kind = host_.memory.kind;
  if (host_.memory.exchange != nullptr) start.uuid = host_.memory.exchange->device_uuid();
  for (const PythonKernelEntry& kernel : options_.kernels) {
    start.kernels.push_back({kernel.target, kernel.schema, kernel.random, kernel.warm_up});
  }
  return start;
}

Status ProcessDomain::take_operators(DomainReady ready) {
  for (const DomainOperator& brought : ready.operators) {
    try {
      operators_.push_back({brought.op, brought.target,
                            torch::jit::parseSchema(brought.schema, /*allow_typevars=*/false), brought.random,
                            static_cast<std::uint32_t>(operators_.size())});
    } catch (const std::exception& thrown) {
      return fail(ErrorCode::kInternal, "the schema '" + brought.schema + "' cannot be read again: " + thrown.what());
    }
  }
  report_ = nlohmann::json::parse(ready.report, nullptr, false);
  first_ = std::move(ready);
  return {};
}

/// All at once, so that their imports overlap.
Status ProcessDomain::begin() {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return fail(ErrorCode::kResourceExhausted, "no eventfd for the GIL domain");
  std::vector<ChildPtr> children;
  for (std::size_t i = 0; i < wanted(); ++i) {
    CALLBOARD_ASSIGN(ChildPtr child, DomainChild::spawn(host_, start_of(++last_number_)));
    children.push_back(std::move(child));
  }
  const TimePoint deadline = after(Clock::now(), host_.processes.start_timeout);
  for (ChildPtr& child : children) {
    CALLBOARD_ASSIGN(DomainReady ready, child->await_ready(deadline));
    if (first_.report.empty()) {
      CALLBOARD_TRY(take_operators(std::move(ready)));
    } else if (!same_operators(ready, first_)) {
      return fail(ErrorCode::kStartFailed, "two processes of the GIL domain import different operators",
                  "were the modules changed while the device started?");
    }
    idle_.push_back(std::move(child));
  }
  log_("python_started", "domain=process children=" + std::to_string(idle_.size()) + " report=" + first_.report +
                             " operators=" + std::to_string(operators_.size()));
  starter_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "python/starter");
    keep_children();
  });
  return {};
}

std::string ProcessDomain::why_not(std::string_view op) const {
  const auto found = first_.declared.find(std::string(op));
  if (found == first_.declared.end()) return {};
  return "the operator '" + found->first + "' is the Python kernel '" + found->second +
         "', which python.kernels of the cluster file does not name";
}

// -- children
// ----------------------------------------------------------------------------------------------------------

void ProcessDomain::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

/// Looks after idle children, too: one that ends between calls is replaced before the next call comes.
void ProcessDomain::keep_children() {
  for (;;) {
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
    int timeout = -1;
    std::vector<ChildPtr> dead;
    {
      std::unique_lock lock(mutex_);
      if (ending_) return;
      dead = take_dead_locked();
      start_missing(lock);
      if (ending_) return;
      for (const ChildPtr& child : idle_) watched.push_back({child->pidfd(), POLLIN, 0});
      // They may be idle when they end; one that ends in a call is the call's.
      for (const auto& [number, child] : busy_) {
        if (child->alive()) watched.push_back({child->pidfd(), POLLIN, 0});
      }
      if (idle_.size() + busy_.size() + starting_ < wanted()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_start_ - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<std::int64_t>(left, 1, 60'000));
      }
    }
    dead.clear();
    ::poll(watched.data(), watched.size(), timeout);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
}

std::vector<ProcessDomain::ChildPtr> ProcessDomain::take_dead_locked() {
  std::vector<ChildPtr> dead;
  for (auto child = idle_.begin(); child != idle_.end();) {
    if ((*child)->alive()) {
      ++child;
      continue;
    }
    log::warning("domain_ended", "pid=" + std::to_string((*child)->pid()) + " between calls");
    ++ended_;
    calls_ended_ += (*child)->calls();
    counted_.ledger.add((*child)->board().gil.ledger);
    counted_.conversions.add((*child)->board().gil.conversions);
    dead.push_back(std::move(*child));
    child = idle_.erase(child);
  }
  return dead;
}

/// Unlocked while a child starts.
void ProcessDomain::start_missing(std::unique_lock<std::mutex>& lock) {
  while (!ending_ && idle_.size() + busy_.size() < wanted() && Clock::now() >= next_start_) {
    ++starting_;
    const std::uint32_t number = ++last_number_;
    lock.unlock();
    Result<ChildPtr> child = start_one(number);
    lock.lock();
    --starting_;
    if (child) {
      start_error_.reset();
      failures_ = 0;
      backoff_ = kFirstBackoff;
      next_start_ = {};
      idle_.push_back(std::move(*child));
    } else {
      log::error("domain_not_started", child.error().to_string());
      start_error_ = std::move(child).error();
      ++failures_;
      next_start_ = after(Clock::now(), backoff_);
      backoff_ = std::min<Duration>(backoff_ * 2, kLastBackoff);
    }
    changed_.notify_all();
  }
}

Result<ProcessDomain::ChildPtr> ProcessDomain::start_one(std::uint32_t number) {
  CALLBOARD_ASSIGN(ChildPtr child, DomainChild::spawn(host_, start_of(number)));
  const TimePoint deadline = after(Clock::now(), host_.processes.start_timeout);
  CALLBOARD_ASSIGN(DomainReady ready, child->await_ready(deadline, &closing_));
  if (same_operators(ready, first_)) return child;
  return fail(ErrorCode::kStartFailed,
              "a new process of the GIL domain imports other operators than the ones that programs are loaded with",
              "restart the device to take changed modules up: callboard down, callboard up");
}

ProcessDomain::ChildPtr ProcessDomain::acquire(const StopSignal* stop) {
  const TimePoint until = after(Clock::now(), host_.processes.start_timeout);
  std::unique_lock lock(mutex_);
  bool asked = false;
  for (;;) {
    if (std::vector<ChildPtr> dead = take_dead_locked(); !dead.empty()) {
      lock.unlock();
      dead.clear();  // waits for their end
      wake();
      lock.lock();
    }
    if (!idle_.empty()) {
      ChildPtr child = std::move(idle_.front());
      idle_.pop_front();
      busy_[child->number()] = child.get();
      return child;
    }
    if (ending_) give_up(Error(ErrorCode::kActorUnavailable, "the GIL domain is ending"));
    // One that fails once may have been killed like the one that it was to replace.
    if (failures_ >= kFailuresMax && starting_ == 0 && Clock::now() < next_start_) {
      Error error(ErrorCode::kPythonFailed, "the GIL domain has no process, and a new one does not start",
                  "the device tries again by itself; its log says more");
      if (start_error_) error.causes.push_back(*start_error_);
      give_up(std::move(error));
    }
    if (!std::exchange(asked, true)) wake();
    changed_.wait_for(lock, kLookForChild);
    lock.unlock();
    look_after();  // calls under way may have questions
    lock.lock();
    if (stop != nullptr) {
      if (auto reason = stop->stop_reason()) give_up(std::move(*reason));
    }
    if (Clock::now() >= until) {
      give_up(Error(ErrorCode::kPythonFailed, "no process of the GIL domain was ready in time",
                    "raise python.start_timeout in the cluster file"));
    }
  }
}

void ProcessDomain::give_back(ChildPtr child) {
  std::lock_guard lock(mutex_);
  busy_.erase(child->number());
  idle_.push_front(std::move(child));  // the warmest serves next
  changed_.notify_one();
}

/// It is not destroyed under the lock: that waits for its end.
void ProcessDomain::note_end(const DomainChild& child) {
  {
    std::lock_guard lock(mutex_);
    busy_.erase(child.number());
    ++ended_;
    calls_ended_ += child.calls();
    counted_.ledger.add(child.board().gil.ledger);
    counted_.conversions.add(child.board().gil.conversions);
  }
  wake();
}

// -- calls
// -------------------------------------------------------------------------------------------------------------

/// One call, whatever becomes of the children that it meets.
class ProcessDomain::Begun final : public GilDomain::Call {
 public:
  Begun(ProcessDomain& domain, const PythonOperator& op, const torch::jit::Stack& stack, const StopSignal* stop)
      : domain_(domain),
        op_(op),
        arguments_(stack),
        packed_(domain.packer_.pack(op, stack, given_, lendable_)),
        stop_(stop) {
    send();
    domain_.under_way_.push_back(this);
  }
  ~Begun() override {
    std::erase(domain_.under_way_, this);
    if (!child_) return;
    // Nobody waits for it: its answer would come into the next call's.
    domain_.note_end(*child_);
  }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

  void abandon(const Error& reason) override {
    if (child_ && !outcome_) child_->abandon(reason);
  }
  int socket() const { return child_ && !outcome_ ? child_->socket() : -1; }
  void step(TimePoint until) {
    if (!child_ || outcome_) return;
    outcome_ = child_->step(until);
    if (!outcome_ || outcome_->result) return;
    domain_.note_end(*child_);
    child_.reset();
  }

  void finish(torch::jit::Stack& stack, std::vector<Undeclared>& undeclared) override {
    for (;;) {
      while (!outcome_) domain_.step_all(kLookForChild);
      if (outcome_->result) break;
      if (outcome_->begun || tries_ >= kTriesMax) give_up(std::move(outcome_->error));
      outcome_.reset();
      send();  // it had ended before the call
    }
    const DomainResult& result = *outcome_->result;
    child_->free(result.freed);
    if (Status ended = child_->end_call(result); !ended) give_up(result.error ? *result.error : ended.error());
    for (const std::uint32_t argument : result.undeclared) {
      if (argument >= arguments_.size()) continue;
      note_undeclared(argument, undeclared);
    }
    // A failure says what cannot be: then the child is not to be trusted with another call, and ends with this.
    if (!result.error && undeclared.empty()) domain_.packer_.unpack(op_, *child_, result, given_, stack);
    domain_.give_back(std::move(child_));
    if (result.error) give_up(*result.error);
  }

 private:
  void send() {
    ++tries_;
    DomainCall call = packed_;
    child_ = domain_.acquire(stop_);
    if (stop_ != nullptr && stop_->deadline() != kNever) {
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(stop_->deadline() - Clock::now());
      call.time_left_ns = std::max<std::int64_t>(0, left.count());
    }
    try {
      domain_.packer_.lend(*child_, call, lendable_);
    } catch (...) {  // some may be lent
      domain_.note_end(*child_);
      child_.reset();
      throw;
    }
    child_->begin(std::move(call), op_.target, stop_);
  }

  /// Host memory is mapped privately, so the write stayed there; on a device it went to the argument itself.
  void note_undeclared(std::uint32_t argument, std::vector<Undeclared>& undeclared) const {
    const c10::IValue& value = arguments_[argument];
    const auto note = [&](const at::Tensor& tensor) {
      undeclared.push_back({argument, tensor, tensor.defined() && !tensor.is_cpu()});
    };
    if (!value.isList()) return note(value.isTensor() ? value.toTensor() : at::Tensor());
    for (const c10::IValue& item : value.toListRef()) note(item.isTensor() ? item.toTensor() : at::Tensor());
  }

  ProcessDomain& domain_;
  const PythonOperator& op_;
  const torch::jit::Stack arguments_;  // keeps what the child reads
  std::vector<c10::Storage> given_;    // by number of the message's storage, like the next
  std::vector<c10::Storage> lendable_;
  const DomainCall packed_;
  const StopSignal* const stop_;
  ChildPtr child_;
  std::optional<DomainChild::Outcome> outcome_;
  int tries_ = 0;
};

std::unique_ptr<GilDomain::Call> ProcessDomain::begin(const PythonOperator& op, const torch::jit::Stack& stack,
                                                      const StopSignal* stop) {
  return std::make_unique<Begun>(*this, op, stack, stop);
}

/// All calls under way, since each of them may have a question.
void ProcessDomain::step_all(Duration wait) {
  if (under_way_.size() == 1 && wait > Duration::zero()) {
    under_way_.front()->step(kNever);
    return;
  }
  std::vector<pollfd> sockets;
  for (const Begun* call : under_way_) sockets.push_back({call->socket(), POLLIN, 0});
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(wait).count();
  const bool any = ::poll(sockets.data(), sockets.size(), static_cast<int>(ms)) > 0;
  // Without a message each of them is looked at only where there was time for something to happen.
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].revents != 0 || (!any && ms > 0)) under_way_[i]->step(Clock::now());
  }
}

std::string ProcessDomain::describe() const {
  auto operators = nlohmann::json::array();
  for (const PythonOperator& op : operators_) operators.push_back({{"op", op.op}, {"target", op.target}});
  nlohmann::json text = report_.is_object() ? report_ : nlohmann::json::object();
  text["domain"] = kind();
  text["operators"] = std::move(operators);
  GilBoard total;
  auto children = nlohmann::json::array();
  {
    std::lock_guard lock(mutex_);
    total.ledger.add(counted_.ledger);
    total.conversions.add(counted_.conversions);
    std::uint64_t calls = calls_ended_;
    const auto tell = [&](const DomainChild& child, const char* state) {
      total.ledger.add(child.board().gil.ledger);
      total.conversions.add(child.board().gil.conversions);
      calls += child.board().begun.load(std::memory_order_relaxed);
      children.push_back({{"number", child.number()}, {"pid", child.pid()}, {"state", state}});
    };
    for (const auto& [number, child] : busy_) tell(*child, "busy");
    for (const ChildPtr& child : idle_) tell(*child, "idle");
    text["calls"] = calls;
    text["starting"] = starting_;
    text["ended"] = ended_;
    if (start_error_) text["start_error"] = start_error_->to_string();
  }
  text["children"] = std::move(children);
  text.update(nlohmann::json::parse(gil_board_json(total)));
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Result<std::unique_ptr<GilDomain>> make_process_domain(const PythonOptions& options, const ActorId& device, int threads,
                                                       Arena* arena, SegmentMap* segments,
                                                       const DomainDeviceMemory& memory) {
  if (!options.processes || !options.processes->spawn) {
    return fail(ErrorCode::kUnsupported, "nothing here starts processes for a GIL domain");
  }
  PythonOptions complete = options;
  if (!complete.log) complete.log = log::info;
  auto domain = std::make_unique<ProcessDomain>(complete, device, threads, arena, segments, memory);
  CALLBOARD_TRY(domain->begin());
  return domain;
}

}  // namespace callboard::kernels
