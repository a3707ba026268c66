#include "actors/client/replicas.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "actors/client/lazy_future.h"
#include "actors/client/tensor_parts.h"

namespace callboard::actors {
namespace {

/// So long a replica that lost its device is left out: a device that is down answers at once, and would otherwise be
/// the one with the fewest requests, always.
constexpr Duration kAvoidAfterLoss = std::chrono::seconds(1);

/// A slice whose elements lie so far apart that its bytes are mostly others' is copied before it is sent.
constexpr std::uint64_t kSparseFactor = 2;

struct Replica {
  std::shared_ptr<Program> program;
  std::string name;  // "replica 1 (cpu1)"
  std::size_t on_their_way = 0;
  TimePoint avoid_until = TimePoint::min();
};

/// Which replicas there are and how busy they are; shared with requests, which may outlive the program.
class Load : public std::enable_shared_from_this<Load> {
 public:
  explicit Load(std::vector<Replica> replicas) : replicas_(std::move(replicas)) {}

  /// A request on its way to a replica; counted until done(), or until it goes.
  class Ticket {
   public:
    Ticket(std::shared_ptr<Load> load, std::size_t index) : replica(index), load_(std::move(load)) {}
    ~Ticket() { done({}); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    /// The first time counts. One thread at a time.
    void done(const std::optional<Error>& failure) {
      if (const auto load = std::exchange(load_, nullptr)) load->give_back(replica, failure);
    }

    const std::size_t replica;

   private:
    std::shared_ptr<Load> load_;
  };
  using Tickets = std::vector<std::shared_ptr<Ticket>>;

  std::size_t count() const { return replicas_.size(); }
  Program& program(std::size_t index) const { return *replicas_[index].program; }
  const std::string& name(std::size_t index) const { return replicas_[index].name; }

  /// At most `count` replicas and at least one, in their order.
  Tickets take(std::size_t count) {
    std::vector<std::size_t> chosen;
    {
      std::lock_guard lock(mutex_);
      chosen = usable_locked();
      std::stable_sort(chosen.begin(), chosen.end(), [&](std::size_t a, std::size_t b) {
        return replicas_[a].on_their_way < replicas_[b].on_their_way;
      });
      chosen.resize(std::clamp<std::size_t>(count, 1, chosen.size()));
      for (const std::size_t index : chosen) ++replicas_[index].on_their_way;
    }
    std::sort(chosen.begin(), chosen.end());
    Tickets tickets;
    for (const std::size_t index : chosen) tickets.push_back(std::make_shared<Ticket>(shared_from_this(), index));
    return tickets;
  }

  Result<std::shared_ptr<Future>> submit(const std::shared_ptr<Ticket>& ticket, std::span<const ClientValue> inputs,
                                         const SubmitOptions& options) const {
    auto future = program(ticket->replica).submit(inputs, options);
    if (!future) {
      ticket->done(future.error());
      return future;
    }
    // Weak, or the future would hold its callback and the callback the future.
    (*future)->on_ready([ticket, weak = std::weak_ptr<Future>(*future)] {
      const std::shared_ptr<Future> ready = weak.lock();
      ticket->done(ready ? failure_of(*ready) : std::nullopt);
    });
    return future;
  }

 private:
  std::vector<std::size_t> usable_locked() const {
    const TimePoint now = Clock::now();
    std::vector<std::size_t> usable;
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      all.push_back(i);
      if (replicas_[i].avoid_until <= now) usable.push_back(i);
    }
    return usable.empty() ? all : usable;
  }

  void give_back(std::size_t index, const std::optional<Error>& failure) {
    std::lock_guard lock(mutex_);
    --replicas_[index].on_their_way;
    if (failure && error_class(failure->code) == ErrorClass::kActor) {
      replicas_[index].avoid_until = after(Clock::now(), kAvoidAfterLoss);
    }
  }

  mutable std::mutex mutex_;
  std::vector<Replica> replicas_;  // programs and names never change, the rest is guarded by mutex_
};

/// What putting results together needs, shared with requests.
struct Joint {
  std::vector<std::string> outputs;
  std::vector<std::optional<std::size_t>> dims;  // of each output
};

Result<TensorRef> gather_output(const std::string& name, std::size_t dim, std::int64_t rows,
                                const std::vector<const ClientValue*>& values) {
  const auto mismatch = [&](const std::string& what) {
    return fail(ErrorCode::kOutputMismatch, "output '" + name + "': " + what);
  };
  std::vector<TensorRef> tensors;
  std::int64_t found = 0;
  for (const ClientValue* value : values) {
    const auto* tensor = std::get_if<TensorRef>(value);
    if (tensor == nullptr || dim >= tensor->meta.sizes.size()) return mismatch("a replica gave no batch");
    tensors.push_back(*tensor);
    found += tensor->meta.sizes[dim];
  }
  if (found != rows) {
    return mismatch("the replicas gave " + std::to_string(found) + " rows for " + std::to_string(rows));
  }
  auto whole = concatenate(tensors, dim, allocate_private);
  if (whole) return whole;
  Error error = std::move(whole).error();
  error.message = "output '" + name + "': " + error.message;
  return fail(std::move(error));
}

FutureValue gather(const Joint& joint, const std::vector<std::shared_ptr<Future>>& parts, const BoundRequest& bound) {
  std::vector<std::shared_ptr<const RequestResult>> results;
  for (const auto& part : parts) {
    CALLBOARD_ASSIGN(std::shared_ptr<const RequestResult> result, part->get());
    results.push_back(std::move(result));
  }
  auto whole = std::make_shared<RequestResult>();
  for (std::size_t i = 0; i < joint.outputs.size(); ++i) {
    if (bound.known[i] || !joint.dims[i]) {
      whole->outputs.push_back(bound.known[i] ? ClientValue(*bound.known[i]) : results.front()->outputs[i]);
      continue;
    }
    std::vector<const ClientValue*> values;
    for (const auto& result : results) values.push_back(&result->outputs[i]);
    CALLBOARD_ASSIGN(TensorRef joined, gather_output(joint.outputs[i], *joint.dims[i], bound.rows, values));
    whole->outputs.emplace_back(std::move(joined));
  }
  return whole;
}

/// A request in several parts.
class ScatteredFuture final : public LazyFuture, public std::enable_shared_from_this<ScatteredFuture> {
 public:
  ScatteredFuture(std::shared_ptr<const Joint> joint, BoundRequest bound, std::vector<std::shared_ptr<Future>> parts,
                  std::vector<std::string> names)
      : joint_(std::move(joint)),
        bound_(std::move(bound)),
        names_(std::move(names)),
        pending_(parts.size()),
        parts_(std::move(parts)) {}

  /// After the constructor, once: a callback may come at once.
  void start() {
    const std::vector<std::shared_ptr<Future>> parts = parts_copy();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i]->on_ready([self = shared_from_this(), i, part = std::weak_ptr<Future>(parts[i])] {
        if (const auto ready = part.lock()) self->part_ended(i, *ready);
      });
    }
  }

  void cancel() override {
    for (const auto& part : parts_copy()) part->cancel();
  }

 private:
  std::vector<std::shared_ptr<Future>> parts_copy() const {
    std::lock_guard lock(mutex_);
    return parts_;
  }

  void part_ended(std::size_t number, Future& part) {
    std::optional<Error> failure = failure_of(part);
    std::vector<std::shared_ptr<Future>> parts;
    {
      std::lock_guard lock(mutex_);
      --pending_;
      // Only the first failure, or the last success, has something to do; then the parts belong to the outcome.
      if (parts_.empty() || (!failure && pending_ > 0)) return;
      parts.swap(parts_);
    }
    if (!failure) {
      set(Make([joint = joint_, bound = bound_, parts] { return gather(*joint, parts, bound); }));
      return;
    }
    failure->message = names_[number] + ": " + failure->message;
    set(fail(std::move(*failure)));
    for (const auto& other : parts) other->cancel();
  }

  const std::shared_ptr<const Joint> joint_;
  const BoundRequest bound_;
  const std::vector<std::string> names_;
  mutable std::mutex mutex_;
  std::size_t pending_;                         // guarded by mutex_
  std::vector<std::shared_ptr<Future>> parts_;  // guarded by mutex_; empty once the request has its outcome
};

class ReplicatedProgram final : public Program {
 public:
  ReplicatedProgram(std::shared_ptr<Load> load, std::optional<BatchAxis> axis)
      : load_(std::move(load)), axis_(std::move(axis)) {
    std::string ids;
    for (std::size_t i = 0; i < load_->count(); ++i) {
      ids += load_->program(i).id().bytes();
      for (PlannedFragment fragment : load_->program(i).plan()) {
        fragment.index = static_cast<std::uint32_t>(plan_.size());
        plan_.push_back(std::move(fragment));
      }
    }
    id_ = ContentHash::of(ids.data(), ids.size());
    if (!axis_) return;
    auto joint = std::make_shared<Joint>();
    for (const auto& output : graph().outputs) joint->outputs.push_back(output.name);
    joint->dims = axis_->outputs;
    joint_ = std::move(joint);
  }

  const ContentHash& id() const override { return id_; }
  const ProgramGraph& graph() const override { return load_->program(0).graph(); }
  const std::vector<PlannedFragment>& plan() const override { return plan_; }
  Result<std::vector<StageReport>> stages(std::optional<Duration> deadline) const override {
    std::vector<StageReport> all;
    for (std::size_t i = 0; i < load_->count(); ++i) {
      const auto first = static_cast<std::uint32_t>(all.size());
      CALLBOARD_ASSIGN(std::vector<StageReport> part, load_->program(i).stages(deadline));
      for (StageReport& report : part) {
        for (auto& edge : report.edges) edge.to += first;
        all.push_back(std::move(report));
      }
    }
    return all;
  }

  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs, const SubmitOptions& options) override {
    // A wrong count is refused in the program's own words.
    if (!axis_ || inputs.size() != graph().inputs.size()) return load_->submit(load_->take(1).front(), inputs, options);
    CALLBOARD_ASSIGN(BoundRequest bound, bind_request(graph(), *axis_, inputs));
    const std::int64_t shares = bound.rows / std::max<std::int64_t>(axis_->min, 1);
    const Load::Tickets tickets = load_->take(static_cast<std::size_t>(std::max<std::int64_t>(shares, 1)));
    if (tickets.size() == 1) return load_->submit(tickets.front(), inputs, options);
    return scatter(inputs, options, std::move(bound), tickets);
  }

 private:
  Result<std::shared_ptr<Future>> scatter(std::span<const ClientValue> inputs, const SubmitOptions& options,
                                          BoundRequest bound, const Load::Tickets& tickets) {
    // A deadline that is over already, or that no clock can hold, is refused or cut by the first part.
    const TimePoint until = options.deadline ? after(Clock::now(), *options.deadline) : kNever;
    SubmitOptions part_options = options;
    std::vector<std::shared_ptr<Future>> parts;
    std::vector<std::string> names;
    const auto count = static_cast<std::int64_t>(tickets.size());
    std::int64_t start = 0;
    for (const auto& ticket : tickets) {
      const auto number = static_cast<std::int64_t>(parts.size());
      const std::int64_t rows = bound.rows / count + (number < bound.rows % count ? 1 : 0);
      auto part = submit_part(ticket, inputs, part_options, start, rows);
      if (!part) {
        for (const auto& earlier : parts) earlier->cancel();
        return fail(std::move(part).error());
      }
      parts.push_back(std::move(*part));
      names.push_back(load_->name(ticket->replica));
      start += rows;
      // A part may have waited for room: the deadline is the whole request's.
      if (until != kNever) {
        part_options.deadline = std::max<Duration>(until - Clock::now(), std::chrono::milliseconds(1));
      }
    }
    auto future = std::make_shared<ScatteredFuture>(joint_, std::move(bound), std::move(parts), std::move(names));
    future->start();
    return future;
  }

  Result<std::shared_ptr<Future>> submit_part(const std::shared_ptr<Load::Ticket>& ticket,
                                              std::span<const ClientValue> inputs, const SubmitOptions& options,
                                              std::int64_t start, std::int64_t rows) {
    std::vector<ClientValue> share;
    share.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto* tensor = std::get_if<TensorRef>(&inputs[i]);
      if (!axis_->inputs[i] || tensor == nullptr) {
        share.push_back(inputs[i]);
        continue;
      }
      CALLBOARD_TRY(check_tensor_memory(axis_->specs[i].name, *tensor));
      TensorRef slice = tensor_slice(*tensor, *axis_->inputs[i], start, rows);
      if (is_sparse(slice.meta)) {
        CALLBOARD_ASSIGN(slice, tensor_copy(slice, allocate_private));
      }
      share.emplace_back(std::move(slice));
    }
    return load_->submit(ticket, share, options);
  }

  /// Its bytes, from the first to the last, are mostly those of other slices.
  static bool is_sparse(const TensorMeta& slice) {
    TensorMeta alone = slice;
    alone.storage_offset = 0;
    const Result<std::uint64_t> extent = alone.extent_bytes();
    return extent && *extent > kSparseFactor * tensor_bytes(slice);
  }

  const std::shared_ptr<Load> load_;
  const std::optional<BatchAxis> axis_;  // with scatter
  std::shared_ptr<const Joint> joint_;   // with scatter; unchanged after the constructor, as all below
  ContentHash id_;
  std::vector<PlannedFragment> plan_;
};

/// "replica 1 (cpu1)".
std::string replica_name(std::size_t number, std::string devices) {
  return "replica " + std::to_string(number) + (devices.empty() ? "" : " (" + std::move(devices) + ")");
}

std::string devices_of(const std::vector<PlannedFragment>& plan) {
  std::vector<std::string> names;
  for (const auto& fragment : plan) {
    if (std::find(names.begin(), names.end(), fragment.device) == names.end()) names.push_back(fragment.device);
  }
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// With scatter the axis; else only whether the program may have replicas at all.
Result<std::optional<BatchAxis>> check_replicable(const ProgramGraph& graph, const ReplicaOptions& options) {
  if (options.scatter) {
    CALLBOARD_ASSIGN(BatchAxis axis, find_batch_axis(graph, options.dim));
    return axis;
  }
  if (!graph.states.empty()) {
    return fail(ErrorCode::kUnsupported,
                "program '" + graph.name + "' keeps state between its requests (buffer '" + graph.states.front().name +
                    "'), which would differ from replica to replica",
                "call eval() on the module, or make the buffer an input");
  }
  return std::optional<BatchAxis>();
}

}  // namespace

Result<std::shared_ptr<Program>> make_replicated(std::vector<std::shared_ptr<Program>> programs,
                                                 const ReplicaOptions& options) {
  if (programs.empty()) return fail(ErrorCode::kBadArgument, "a program needs one replica at least");
  CALLBOARD_ASSIGN(std::optional<BatchAxis> axis, check_replicable(programs.front()->graph(), options));
  std::vector<Replica> replicas;
  for (auto& program : programs) {
    std::string name = replica_name(replicas.size(), devices_of(program->plan()));
    if (!(program->graph() == programs.front()->graph())) {
      return fail(ErrorCode::kBadArgument, name + " is of another program than the first");
    }
    replicas.push_back(Replica{program, std::move(name)});
  }
  return std::make_shared<ReplicatedProgram>(std::make_shared<Load>(std::move(replicas)), std::move(axis));
}

Result<std::shared_ptr<Program>> load_replicas(Client& client, const ProgramGraph& graph,
                                               std::span<const ConstantBytes> constants,
                                               std::span<const Placement> placements, const ReplicaOptions& options,
                                               std::optional<Duration> deadline) {
  CALLBOARD_TRY(check_replicable(graph, options));
  const TimePoint until = deadline ? after(Clock::now(), *deadline) : kNever;
  std::vector<std::shared_ptr<Program>> programs;
  for (const auto& placement : placements) {
    std::optional<Duration> left;
    if (deadline) left = std::max<Duration>(until - Clock::now(), std::chrono::milliseconds(1));
    auto program = client.load(graph, constants, placement, left);
    if (!program) {
      const bool single = placement.devices.size() == 1;
      Error error = std::move(program).error();
      error.message =
          replica_name(programs.size(), single ? placement.devices.front() : "") + ": " + std::move(error.message);
      return fail(std::move(error));
    }
    programs.push_back(std::move(*program));
  }
  return make_replicated(std::move(programs), options);
}

}  // namespace callboard::actors
