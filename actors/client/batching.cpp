#include "actors/client/batching.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "actors/client/batch_shape.h"
#include "actors/client/lazy_future.h"
#include "messages/base/check.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

using Inputs = std::shared_ptr<const std::vector<ClientValue>>;

constexpr Duration kMaxDelayMax = std::chrono::hours(1);
/// Nobody tells a batched program of memory that comes free elsewhere in the client.
constexpr Duration kLookForMemory = std::chrono::milliseconds(20);

class Batcher;
struct Group;
struct Batch;

/// A request and its future. Waits in a group, leaves in a batch, ends once (`left`); all under the batcher's mutex.
class Member final : public LazyFuture, public std::enable_shared_from_this<Member> {
 public:
  Member(std::weak_ptr<Batcher> batcher, BoundRequest bound_request, TimePoint ends)
      : bound(std::move(bound_request)), deadline(ends), batcher_(std::move(batcher)) {}
  void cancel() override;

  const BoundRequest bound;
  const TimePoint deadline;

  // guarded by the batcher's mutex
  Inputs inputs;  // our copy; until it can neither leave nor run again
  bool left = false;
  std::shared_ptr<Group> group;                                      // while it waits
  std::shared_ptr<Batch> batch;                                      // while it is on its way
  std::multimap<TimePoint, std::weak_ptr<Member>>::iterator expiry;  // if it has a deadline and is not left

 private:
  const std::weak_ptr<Batcher> batcher_;
};

using Members = std::vector<std::shared_ptr<Member>>;

/// Requests that wait for company. Guarded by the batcher's mutex.
struct Group {
  std::string key;
  Members members;
  std::int64_t rows = 0;
  TimePoint leaves;
};

/// Requests on their way. Only `live` and `request` change after it was made, under the batcher's mutex.
struct Batch {
  Members members;
  std::vector<std::int64_t> starts;  // first row of each
  std::int64_t rows = 0;
  std::size_t live = 0;             // members without an outcome
  std::shared_ptr<Future> request;  // until it has its outcome
};

bool may_run_again(ErrorCode code) {
  return error_class(code) == ErrorClass::kRequest && code != ErrorCode::kCancelled &&
         code != ErrorCode::kDeadlineExceeded && code != ErrorCode::kOverloaded;
}

/// All that batching does; the program that users hold owns it, requests on their way share it.
class Batcher : public std::enable_shared_from_this<Batcher> {
 public:
  Batcher(AllocateTensor allocate, std::shared_ptr<const BatchShape> shape, const BatchingOptions& options)
      : allocate_(std::move(allocate)),
        shape_(std::move(shape)),
        options_(options),
        pid_(::getpid()),
        unfinished_(options.max_queued) {}
  ~Batcher() { CALLBOARD_CHECK(!thread_.joinable(), "close() joined the thread before the last owner went"); }

  void start() {
    // Signals are for the program's own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void close() {
    if (::getpid() != pid_) {
      // A forked child has no thread to join, and the mutex may be locked for ever.
      static_cast<void>(new std::shared_ptr<Batcher>(shared_from_this()));
      return;
    }
    CALLBOARD_CHECK(std::this_thread::get_id() != thread_.get_id(),
                    "a batched program cannot end in a callback of its own requests");
    // A second caller waits for the first.
    std::lock_guard closing(closing_);
    Members waiting;
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      for (const auto& [key, group] : groups_) {
        waiting.insert(waiting.end(), group->members.begin(), group->members.end());
      }
      waiting.insert(waiting.end(), again_.begin(), again_.end());
      again_.clear();
      for (const Members& members : held_up_) waiting.insert(waiting.end(), members.begin(), members.end());
      held_up_.clear();
    }
    wake_.notify_all();
    unfinished_.end(closed_error());
    thread_.join();
    for (const auto& member : waiting) end(member, fail(closed_error()));
  }

  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs, const SubmitOptions& options) {
    const std::optional<Duration>& deadline = options.deadline;
    const auto& graph = shape_->program->graph();
    // What the program refuses it refuses in its own words; a child that was forked off has no thread to wait for.
    const bool odd = inputs.size() != graph.inputs.size() || (deadline && *deadline <= Duration::zero());
    if (odd || ::getpid() != pid_) return shape_->program->submit(inputs, options);
    CALLBOARD_ASSIGN(BoundRequest bound, bind_request(graph, shape_->axis, inputs));
    if (bound.rows > options_.max_batch || bound.rows < 1) return shape_->program->submit(inputs, options);
    const TimePoint ends =
        deadline ? after(Clock::now(), std::min<Duration>(*deadline, limits::kRequestDeadlineMax)) : kNever;
    CALLBOARD_ASSIGN(Inputs own, enter(inputs, options, ends));
    auto member = std::make_shared<Member>(weak_from_this(), std::move(bound), ends);
    CALLBOARD_ASSIGN(const std::vector<std::shared_ptr<Group>> leaving, join(member, std::move(own)));
    for (const auto& group : leaving) send_or_hand_over(group->members);
    return member;
  }

  /// Gives a request its outcome, the first time.
  void end(const std::shared_ptr<Member>& member, Result<LazyFuture::Make> outcome) {
    std::shared_ptr<Future> abandoned;
    {
      std::lock_guard lock(mutex_);
      if (member->left) return;
      member->left = true;
      member->inputs.reset();
      if (member->deadline != kNever) expiries_.erase(member->expiry);
      if (const auto group = std::exchange(member->group, nullptr)) {
        std::erase(group->members, member);
        group->rows -= member->bound.rows;
        if (group->members.empty()) groups_.erase(group->key);
      }
      if (const auto batch = std::exchange(member->batch, nullptr); batch && --batch->live == 0) {
        abandoned = std::exchange(batch->request, nullptr);
      }
    }
    unfinished_.leave();
    member->set(std::move(outcome));
    if (abandoned) abandoned->cancel();
  }

  void cancel(const std::shared_ptr<Member>& member) {
    if (::getpid() != pid_) return;
    end(member, fail(ErrorCode::kCancelled, "the request was cancelled"));
  }

 private:
  // -- into a group ---------------------------------------------------------------------------------------------------

  static Error closed_error() {
    return Error(ErrorCode::kCancelled, "the batched program ended before the request's batch left");
  }

  Error no_place() const {
    return Error(ErrorCode::kOverloaded,
                 "the batched program has " + std::to_string(unfinished_.taken()) +
                     " requests without an outcome, of " + std::to_string(options_.max_queued) +
                     " that max_queued allows",
                 "wait for some of their futures before you submit more, or raise max_queued");
  }

  /// Takes a place and copies the inputs; waits for room as Program::submit() says.
  Result<Inputs> enter(std::span<const ClientValue> inputs, const SubmitOptions& options, TimePoint ends) {
    Result<Inputs> own = fail(ErrorCode::kInternal, "no attempt was made");
    const auto copy = [&]() -> std::optional<Error> {
      own = own_inputs(inputs);
      if (own) return std::nullopt;
      unfinished_.leave();
      // What else is on its way here will give memory back; otherwise it is the caller's matter.
      if (own.error().code != ErrorCode::kOutOfMemory || unfinished_.taken() == 0) return std::nullopt;
      return own.error();
    };
    std::optional<Error> want = unfinished_.enter() ? copy() : no_place();
    if (!want) return own;
    if (!options.wait) return fail(std::move(*want));
    if (CallbackScope::active()) return fail(refused_in_callback(std::move(*want)));
    const TimePoint began = Clock::now();
    Admission::Call call;
    call.attempt = [&] { return unfinished_.take_place() ? copy() : std::optional(no_place()); };
    call.want = std::move(want);
    call.until = ends != kNever ? ends : after(began, limits::kRequestDeadline);
    call.interrupted = options.interrupted;
    call.retry = kLookForMemory;
    if (Status waited = unfinished_.wait_in_line(std::move(call)); !waited) {
      return fail(late_submission(std::move(waited).error(), Clock::now() - began, ends != kNever));
    }
    return own;
  }

  /// Copies, since the caller may write to its tensors as soon as submit() has returned. A request that leaves alone is
  /// not copied again.
  Result<Inputs> own_inputs(std::span<const ClientValue> inputs) const {
    auto own = std::make_shared<std::vector<ClientValue>>();
    own->reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto* tensor = std::get_if<TensorRef>(&inputs[i]);
      if (tensor == nullptr) {
        own->push_back(inputs[i]);
        continue;
      }
      CALLBOARD_TRY(check_tensor_memory(shape_->axis.specs[i].name, *tensor));
      CALLBOARD_ASSIGN(TensorRef copy, tensor_copy(*tensor, for_request()));
      own->emplace_back(std::move(copy));
    }
    return own;
  }

  AllocateTensor for_request() const {
    return [this](TensorMeta meta) { return allocate_for_request(std::move(meta), allocate_); };
  }

  /// The groups that leave now: the one that has no room for it, and the one that it fills.
  Result<std::vector<std::shared_ptr<Group>>> join(const std::shared_ptr<Member>& member, Inputs inputs) {
    const std::string key = batch_key(*shape_, *inputs);
    std::vector<std::shared_ptr<Group>> leaving;
    std::lock_guard lock(mutex_);
    if (closed_) {
      unfinished_.leave();
      return fail(closed_error());
    }
    member->inputs = std::move(inputs);
    if (member->deadline != kNever) {
      member->expiry = expiries_.emplace(member->deadline, member);
      wake_before(member->deadline);
    }
    std::shared_ptr<Group>& group = groups_[key];
    if (group && group->rows + member->bound.rows > options_.max_batch)
      leaving.push_back(std::exchange(group, nullptr));
    if (!group) {
      group = std::make_shared<Group>();
      group->key = key;
      group->leaves = after(Clock::now(), options_.max_delay);
      wake_before(group->leaves);
    }
    group->members.push_back(member);
    group->rows += member->bound.rows;
    member->group = group;
    if (group->rows == options_.max_batch) {
      leaving.push_back(group);
      groups_.erase(key);
    }
    for (const auto& each : leaving) detach_locked(*each);
    return leaving;
  }

  void detach_locked(const Group& group) {
    for (const auto& member : group.members) member->group.reset();
  }

  // -- out of it
  // --------------------------------------------------------------------------------------------------------

  /// On the thread of the request that filled the batch, which is to come back: where there is no room, or others were
  /// there first, the batching thread waits.
  void send_or_hand_over(const Members& members) {
    {
      std::lock_guard lock(mutex_);
      if (!held_up_.empty() && hold_up_locked(members)) return;
    }
    if (run_batch(members, false)) return;
    {
      std::lock_guard lock(mutex_);
      if (hold_up_locked(members)) return;
    }
    for (const auto& member : members) end(member, fail(closed_error()));
  }

  /// False if the batching thread has ended.
  bool hold_up_locked(const Members& members) {
    if (closed_) return false;
    held_up_.push_back(members);
    wake_before(TimePoint::min());
    return true;
  }

  /// On the batching thread: waits for room, and ends what expires meanwhile.
  SubmitOptions waiting_options() {
    SubmitOptions options;
    options.interrupted = [this] {
      while (const std::shared_ptr<Member> member = next_expired()) end_expired(member);
      std::lock_guard lock(mutex_);
      return closed_;
    };
    return options;
  }

  /// Runs those of the members that have no outcome yet as one request. They are in no group; no lock is held. `waits`:
  /// for room, on the batching thread. False if there is none: then nothing has happened.
  bool run_batch(const Members& members, bool waits) {
    auto batch = std::make_shared<Batch>();
    std::vector<Inputs> inputs;
    TimePoint deadline = TimePoint::min();
    {
      std::lock_guard lock(mutex_);
      for (const auto& member : members) {
        if (member->left) continue;
        batch->members.push_back(member);
        batch->starts.push_back(batch->rows);
        batch->rows += member->bound.rows;
        inputs.push_back(member->inputs);
        deadline = std::max(deadline, member->deadline);
      }
    }
    if (batch->members.empty()) return true;
    auto joined = join_inputs(inputs);
    if (!joined) {
      fail_batch(*batch, joined.error());
      return true;
    }
    SubmitOptions options = waits ? waiting_options() : SubmitOptions();
    options.wait = waits;
    if (deadline != kNever)
      options.deadline = std::max<Duration>(deadline - Clock::now(), std::chrono::milliseconds(1));
    auto request = shape_->program->submit(*joined, options);
    if (!request) {
      if (!waits && request.error().code == ErrorCode::kOverloaded) return false;
      fail_batch(*batch, request.error());
      return true;
    }
    const bool abandoned = !send_off(batch, *request);
    // The program's own callback holds all that it needs; it goes when it has been called.
    (*request)->on_ready([self = shared_from_this(), batch, future = *request] { self->finish_batch(batch, future); });
    if (abandoned) (*request)->cancel();
    return true;
  }

  /// False if every member ended meanwhile.
  bool send_off(const std::shared_ptr<Batch>& batch, const std::shared_ptr<Future>& request) {
    std::lock_guard lock(mutex_);
    for (const auto& member : batch->members) {
      if (member->left) continue;
      member->batch = batch;
      ++batch->live;
      // Only what may run again is needed again.
      if (!shape_->pure || batch->members.size() == 1) member->inputs.reset();
    }
    if (batch->live > 0) batch->request = request;
    return batch->live > 0;
  }

  Result<std::vector<ClientValue>> join_inputs(const std::vector<Inputs>& members) const {
    if (members.size() == 1) return *members.front();
    std::vector<ClientValue> joined;
    for (std::size_t i = 0; i < members.front()->size(); ++i) {
      if (!shape_->axis.inputs[i]) {
        joined.push_back((*members.front())[i]);
        continue;
      }
      std::vector<TensorRef> parts;
      parts.reserve(members.size());
      for (const auto& inputs : members) parts.push_back(std::get<TensorRef>((*inputs)[i]));
      CALLBOARD_ASSIGN(TensorRef whole, concatenate(parts, *shape_->axis.inputs[i], for_request()));
      joined.emplace_back(std::move(whole));
    }
    return joined;
  }

  // -- outcomes
  // ---------------------------------------------------------------------------------------------------------

  void finish_batch(const std::shared_ptr<Batch>& batch, const std::shared_ptr<Future>& request) {
    {
      std::lock_guard lock(mutex_);
      batch->request.reset();
    }
    if (const std::optional<Error> failure = failure_of(*request)) return fail_batch(*batch, *failure);
    for (std::size_t i = 0; i < batch->members.size(); ++i) {
      const BoundRequest& bound = batch->members[i]->bound;
      BatchPart part{batch->starts[i], bound.rows, batch->rows, bound.known};
      end(batch->members[i], LazyFuture::Make([shape = shape_, part = std::move(part), request] {
            return cut_result(*shape, part, request->get());
          }));
    }
  }

  void fail_batch(const Batch& batch, Error error) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ && error.code == ErrorCode::kCancelled) error = closed_error();
    }
    const std::size_t count = batch.members.size();
    if (count > 1 && may_run_again(error.code)) {
      if (shape_->pure && run_again(batch)) return;
      error.message = "a batch of " + std::to_string(count) + " requests failed as a whole: " + error.message;
      if (!shape_->pure && error.hint.empty()) {
        error.hint = "the program is not pure, so its requests are not run again one by one to find the guilty one";
      }
    }
    for (const auto& member : batch.members) end(member, fail(error));
  }

  /// Hands the members to the batching thread: a callback of the client must not submit. False if it has ended.
  bool run_again(const Batch& batch) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    for (const auto& member : batch.members) {
      if (member->left) continue;
      member->batch.reset();
      again_.push_back(member);
    }
    wake_before(TimePoint::min());
    return true;
  }

  // -- the batching thread
  // ----------------------------------------------------------------------------------------------

  void wake_before(TimePoint when) {
    if (when >= parked_until_) return;
    parked_until_ = when;
    wake_.notify_all();
  }

  /// The next request whose deadline is over.
  std::shared_ptr<Member> next_expired() {
    std::lock_guard lock(mutex_);
    while (!expiries_.empty() && expiries_.begin()->first <= Clock::now()) {
      if (std::shared_ptr<Member> member = expiries_.begin()->second.lock()) return member;
      expiries_.erase(expiries_.begin());
    }
    return nullptr;
  }

  void end_expired(const std::shared_ptr<Member>& member) {
    end(member, fail(ErrorCode::kDeadlineExceeded, "the request's deadline passed"));
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
      const TimePoint now = Clock::now();
      if (!again_.empty()) {
        const Members alone{again_.front()};
        again_.pop_front();
        lock.unlock();
        run_batch(alone, true);
        lock.lock();
        continue;
      }
      if (!held_up_.empty()) {
        const Members members = std::move(held_up_.front());
        held_up_.pop_front();
        lock.unlock();
        run_batch(members, true);
        lock.lock();
        continue;
      }
      const auto due = std::min_element(groups_.begin(), groups_.end(), [](const auto& a, const auto& b) {
        return a.second->leaves < b.second->leaves;
      });
      const bool expired = !expiries_.empty() && expiries_.begin()->first <= now;
      const bool leaves = due != groups_.end() && due->second->leaves <= now;
      if (expired) {
        lock.unlock();
        if (const std::shared_ptr<Member> member = next_expired()) end_expired(member);
        lock.lock();
      } else if (leaves) {
        const std::shared_ptr<Group> group = due->second;
        groups_.erase(due);
        detach_locked(*group);
        lock.unlock();
        run_batch(group->members, true);
        lock.lock();
      } else {
        parked_until_ = due != groups_.end() ? due->second->leaves : kNever;
        if (!expiries_.empty()) parked_until_ = std::min(parked_until_, expiries_.begin()->first);
        if (parked_until_ == kNever) {
          wake_.wait(lock);
        } else {
          wake_.wait_until(lock, parked_until_);
        }
        // Busy now: it looks at everything before it parks again, and nobody need wake it.
        parked_until_ = TimePoint::min();
      }
    }
  }

  const AllocateTensor allocate_;
  const std::shared_ptr<const BatchShape> shape_;
  const BatchingOptions options_;
  const int pid_;  // of the process that made it: a forked child has no batching thread

  std::mutex closing_;  // taken before mutex_
  std::mutex mutex_;
  std::condition_variable wake_;
  Admission unfinished_;                                      // places are requests without an outcome
  bool closed_ = false;                                       // guarded by mutex_, as all below
  std::map<std::string, std::shared_ptr<Group>> groups_;      // that are not full, by key
  std::multimap<TimePoint, std::weak_ptr<Member>> expiries_;  // of requests without an outcome
  std::deque<std::shared_ptr<Member>> again_;                 // to run one by one
  std::deque<Members> held_up_;                               // full batches for which there was no room, in order
  TimePoint parked_until_ = TimePoint::min();                 // min(): the thread is at work
  std::thread thread_;
};

void Member::cancel() {
  if (is_ready()) return;
  if (const auto batcher = batcher_.lock()) batcher->cancel(shared_from_this());
}

class BatchedProgramImpl final : public BatchedProgram {
 public:
  BatchedProgramImpl(std::shared_ptr<const BatchShape> shape, std::shared_ptr<Batcher> batcher)
      : shape_(std::move(shape)), batcher_(std::move(batcher)) {}
  ~BatchedProgramImpl() override { batcher_->close(); }

  const ContentHash& id() const override { return shape_->program->id(); }
  const ProgramGraph& graph() const override { return shape_->program->graph(); }
  const std::vector<PlannedFragment>& plan() const override { return shape_->program->plan(); }
  Result<std::vector<StageReport>> stages(std::optional<Duration> deadline) const override {
    return shape_->program->stages(deadline);
  }
  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs, const SubmitOptions& options) override {
    return batcher_->submit(inputs, options);
  }
  void close() override { batcher_->close(); }

 private:
  const std::shared_ptr<const BatchShape> shape_;
  const std::shared_ptr<Batcher> batcher_;
};

Status check_options(const BatchingOptions& options) {
  const auto bad = [](const std::string& what) { return fail(ErrorCode::kBadArgument, what); };
  if (options.max_batch < 1)
    return bad("max_batch is " + std::to_string(options.max_batch) + ", at least 1 is allowed");
  if (options.max_delay < Duration::zero() || options.max_delay > kMaxDelayMax) {
    return bad("max_delay must lie between 0 and 1 hour");
  }
  if (options.max_queued < 1) return bad("max_queued is 0, at least 1 is allowed");
  return {};
}

}  // namespace

Result<std::shared_ptr<BatchedProgram>> make_batched(AllocateTensor allocate, std::shared_ptr<Program> program,
                                                     BatchingOptions options) {
  CALLBOARD_TRY(check_options(options));
  auto shape = std::make_shared<BatchShape>();
  CALLBOARD_ASSIGN(shape->axis, find_batch_axis(program->graph(), options.dim));
  const BatchAxis& axis = shape->axis;
  if (axis.min > 1 || axis.max < options.max_batch) {
    const std::string most = axis.max == INT64_MAX ? "any number" : std::to_string(axis.max);
    return fail(ErrorCode::kUnsupported,
                "program '" + program->graph().name + "' takes batches (symbol " + axis.name + ") of " +
                    std::to_string(axis.min) + " to " + most + " rows, batching needs 1 to " +
                    std::to_string(options.max_batch),
                axis.min > 1 ? "compile it with dynamic_shapes that allow one row, such as torch.export.Dim(\"" +
                                   axis.name + "\", min=1, max=" + std::to_string(options.max_batch) + ")"
                             : "set max_batch to " + std::to_string(axis.max) + ", or allow more in dynamic_shapes");
  }
  const auto& plan = program->plan();
  shape->pure = std::all_of(plan.begin(), plan.end(), [](const auto& fragment) { return fragment.pure; });
  shape->program = std::move(program);
  auto batcher = std::make_shared<Batcher>(std::move(allocate), shape, options);
  batcher->start();
  return std::make_shared<BatchedProgramImpl>(std::move(shape), std::move(batcher));
}

}  // namespace callboard::actors
