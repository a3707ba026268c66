#include "actors/client/client.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/client/client_core.h"
#include "actors/client/constant_provision.h"
#include "actors/core/inside_cluster.h"
#include "messages/codec.h"
#include "messages/graph_check.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// kNever without a wait: then the coordinator applies the cluster file's limits.deadline.
Result<TimePoint> deadline_after(std::optional<Duration> wait) {
  if (!wait) return kNever;
  const Duration duration = *wait;
  if (duration <= Duration::zero()) {
    return fail(ErrorCode::kBadArgument, "a deadline must lie in the future, it is a duration from now on",
                "leave it out for the cluster file's limits.deadline");
  }
  return after(Clock::now(), std::min<Duration>(duration, limits::kRequestDeadlineMax));
}

/// One call of submit(): a try where there is room, else a wait in line.
class Submission {
 public:
  Submission(ClientCore& core, const std::shared_ptr<const ProgramInfo>& info, std::span<const ClientValue> inputs,
             TimePoint until)
      : core_(core), info_(info), inputs_(inputs), until_(until) {}

  Result<std::shared_ptr<Future>> run(const SubmitOptions& options) {
    std::optional<Error> want = core_.admission().enter() ? send() : no_place();
    if (!want) return std::move(*outcome_);
    if (!options.wait) return fail(std::move(*want));
    if (CallbackScope::active()) return fail(refused_in_callback(std::move(*want)));
    const TimePoint began = Clock::now();
    Admission::Call call;
    call.attempt = [this]() -> std::optional<Error> {
      if (auto usable = core_.memory(); !usable) {
        outcome_ = fail(std::move(usable).error());
        return std::nullopt;
      }
      return core_.admission().take_place() ? send() : no_place();
    };
    call.want = std::move(want);
    call.until = until_ != kNever ? until_ : after(began, limits::kRequestDeadline);
    call.interrupted = options.interrupted;
    if (Status waited = core_.wait_in_line(std::move(call)); !waited) {
      return fail(late_submission(std::move(waited).error(), Clock::now() - began, until_ != kNever));
    }
    return std::move(*outcome_);
  }

 private:
  /// With a place, which goes with the request or is given back. An error: what has no room yet.
  std::optional<Error> send() {
    auto packed = pack();
    if (!packed) {
      core_.admission().leave();
      Error error = std::move(packed).error();
      if (error.code == ErrorCode::kOutOfMemory && may_come_free(error)) return error;
      outcome_ = fail(std::move(error));
      return std::nullopt;
    }
    outcome_ = core_.submit(info_, std::move(packed->inputs), std::move(packed->known), until_);
    return std::nullopt;
  }

  struct Packed {
    PackedInputs inputs;
    std::vector<std::optional<std::int64_t>> known;
  };
  Result<Packed> pack() {
    CALLBOARD_ASSIGN(memory_, core_.memory());
    Packed packed;
    CALLBOARD_ASSIGN(packed.inputs, pack_inputs(info_->graph, info_->inputs, inputs_, *memory_));
    packed.known.resize(info_->graph.outputs.size());
    for (std::size_t i = 0; i < packed.known.size(); ++i) {
      const auto* symbol = std::get_if<ArgSymbol>(&info_->graph.outputs[i].source);
      if (symbol == nullptr) continue;
      CALLBOARD_ASSIGN(packed.known[i], symbol->expr.evaluate(packed.inputs.symbols));
    }
    return packed;
  }

  Error no_place() const {
    const std::string most = std::to_string(core_.admission().places());
    return Error(ErrorCode::kOverloaded,
                 "this client has " + std::to_string(core_.admission().taken()) + " requests in flight, of " + most +
                     " that limits.requests_per_client allows",
                 "wait for some of their futures before you submit more, or raise the limit in the cluster file (" +
                     std::to_string(limits::kRequestsPerClientMax) + " at most)");
  }

  /// Says in `error` why it will not.
  bool may_come_free(Error& error) const {
    const std::uint64_t limit = memory_->memory_limit();
    const std::uint64_t needed = shared_bytes(inputs_, *memory_);
    if (limit != 0 && needed > limit) {
      error.message += "; the request's inputs need " + std::to_string(needed) +
                       " bytes of it, more than the limit of " + std::to_string(limit) + ": they never fit";
      error.hint = "give the client a larger memory_limit, or pass less in one request";
      return false;
    }
    const std::size_t in_flight = core_.admission().taken();
    if (in_flight == 0) {
      error.message += "; no request is in flight that would give memory back";
      if (error.hint.empty()) error.hint = "let go of tensors of allocate() or empty() that are not needed any more";
      return false;
    }
    error.message += "; " + std::to_string(in_flight) + " requests are in flight";
    if (error.hint.empty()) error.hint = "wait for their futures, or give the client a larger memory_limit";
    return true;
  }

  ClientCore& core_;
  const std::shared_ptr<const ProgramInfo>& info_;
  const std::span<const ClientValue> inputs_;
  const TimePoint until_;
  std::shared_ptr<ClientMemory> memory_;
  std::optional<Result<std::shared_ptr<Future>>> outcome_;
};

/// The fragments of the one program in the answer to operation "programs".
Result<std::vector<StageReport>> parse_stages(const std::string& text, std::size_t count) {
  try {
    const nlohmann::json fragments = nlohmann::json::parse(text).at("programs").at(0).at("fragments");
    std::vector<StageReport> reports;
    for (const auto& fragment : fragments) {
      StageReport& report = reports.emplace_back();
      for (const auto& edge : fragment.at("edges")) {
        report.edges.push_back(
            {edge.at("to").get<std::uint32_t>(), edge.at("bytes").get<std::uint64_t>(), edge.at("exact").get<bool>()});
      }
      report.runs = fragment.at("runs").get<std::uint64_t>();
      if (report.runs > 0) report.mean_run_ns = fragment.at("mean_run_ns").get<std::int64_t>();
    }
    if (reports.size() == count) return reports;
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                std::string("the coordinator's report of the program is malformed: ") + error.what(),
                "client and cluster may be of different versions");
  }
  return fail(ErrorCode::kInternal, "the coordinator's report of the program has another number of fragments",
              "client and cluster may be of different versions");
}

class ProgramImpl final : public Program {
 public:
  ProgramImpl(std::shared_ptr<ClientCore> core, std::shared_ptr<const ProgramInfo> info)
      : core_(std::move(core)), info_(std::move(info)) {}

  const ContentHash& id() const override { return info_->id; }
  const ProgramGraph& graph() const override { return info_->graph; }
  const std::vector<PlannedFragment>& plan() const override { return info_->plan; }

  Result<std::vector<StageReport>> stages(std::optional<Duration> deadline) const override {
    CALLBOARD_ASSIGN(const TimePoint until, deadline_after(deadline.value_or(limits::kRequestDeadline)));
    CALLBOARD_ASSIGN(Message answer,
                     core_->ask(Operation{0, "programs", R"({"program": ")" + info_->id.hex() + "\"}"}, until));
    const auto* result = std::get_if<OperationResult>(&answer);
    if (result == nullptr)
      return fail(ErrorCode::kInternal, "the coordinator answered 'programs' with another message");
    return parse_stages(result->result, info_->plan.size());
  }

  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs, const SubmitOptions& options) override {
    CALLBOARD_ASSIGN(const TimePoint until, deadline_after(options.deadline));
    return Submission(*core_, info_, inputs, until).run(options);
  }

 private:
  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<const ProgramInfo> info_;
};

/// The constants' storages, each once.
std::vector<ContentHash> storages_of(const ProgramGraph& graph) {
  std::set<ContentHash> hashes;
  for (const auto& constant : graph.constants) hashes.insert(constant.storage);
  return {hashes.begin(), hashes.end()};
}

Result<TensorRef> allocate_in(const ClientCore& core, TensorMeta meta) {
  CALLBOARD_ASSIGN(const std::uint64_t bytes, meta.extent_bytes());
  CALLBOARD_ASSIGN(const std::shared_ptr<ClientMemory> memory, core.memory());
  TensorRef tensor;
  tensor.meta = std::move(meta);
  tensor.bytes = bytes;
  if (bytes == 0) return tensor;
  CALLBOARD_ASSIGN(tensor.keep, memory->allocate(bytes));
  tensor.data = static_cast<std::byte*>(tensor.keep.get());
  return tensor;
}

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::shared_ptr<ClientCore> core) : core_(std::move(core)) {}
  ~ClientImpl() override { core_->close(); }

  const ClusterRecord& cluster() const override { return core_->record(); }

  Result<std::shared_ptr<Program>> load(ProgramGraph graph, std::span<const ConstantBytes> constants,
                                        Placement placement, std::optional<Duration> deadline) override {
    CALLBOARD_ASSIGN(const TimePoint until, deadline_after(deadline));
    CALLBOARD_TRY(check_program(graph));
    const std::vector<ContentHash> hashes = storages_of(graph);
    const ContentHash key = program_hash(graph, placement);
    core_->add_constant_users(hashes);
    auto program = load_counted(std::move(graph), constants, std::move(placement), until, key, hashes);
    if (!program) core_->drop_constant_users(hashes);
    return program;
  }

  Result<std::string> operation(const std::string& name, const std::string& arguments_json,
                                std::optional<Duration> deadline) override {
    CALLBOARD_ASSIGN(const TimePoint until, deadline_after(deadline.value_or(limits::kRequestDeadline)));
    CALLBOARD_ASSIGN(Message answer, core_->ask(Operation{0, name, arguments_json}, until));
    auto* result = std::get_if<OperationResult>(&answer);
    if (result == nullptr)
      return fail(ErrorCode::kInternal, "the coordinator answered '" + name + "' with another message");
    return std::move(result->result);
  }

  Result<TensorRef> allocate(TensorMeta meta) override { return allocate_in(*core_, std::move(meta)); }

  std::function<Result<TensorRef>(TensorMeta)> allocator() override {
    // Weak: the client's threads and descriptors end with it and with its programs.
    return [weak = std::weak_ptr<ClientCore>(core_)](TensorMeta meta) -> Result<TensorRef> {
      if (const auto core = weak.lock()) return allocate_in(*core, std::move(meta));
      return fail(ErrorCode::kCancelled, "the client is closed", "connect again");
    };
  }

  void on_actor_event(std::function<void(const ActorEvent&)> callback) override {
    core_->set_event_callback(std::move(callback));
  }

 private:
  Result<std::shared_ptr<Program>> load_counted(ProgramGraph graph, std::span<const ConstantBytes> constants,
                                                Placement placement, TimePoint until, const ContentHash& key,
                                                const std::vector<ContentHash>& hashes) {
    CALLBOARD_ASSIGN(const std::shared_ptr<ClientMemory> memory, core_->memory());
    CALLBOARD_TRY(provide_constants(memory->lane(), graph, hashes, constants));
    auto info = std::make_shared<ProgramInfo>();
    info->graph = graph;
    info->inputs = input_specs(graph);
    LoadProgram message;
    message.program = std::move(graph);
    message.placement = std::move(placement);
    message.deadline_ms = wire_deadline(until, Clock::now());
    const TimePoint patience = std::min(until, after(Clock::now(), limits::kRequestDeadlineMax));
    CALLBOARD_ASSIGN(Message answer, core_->ask(std::move(message), patience));
    auto* loaded = std::get_if<ProgramLoaded>(&answer);
    if (loaded == nullptr || loaded->program != key) {
      return fail(ErrorCode::kInternal, "the coordinator loaded another program than the one that was sent",
                  "client and cluster may be of different versions");
    }
    info->id = std::move(loaded->program);
    info->plan = std::move(loaded->plan);
    // The last request may outlive the Program, and the client both.
    info->gone = [weak = std::weak_ptr<ClientCore>(core_), key, hashes] {
      if (const auto core = weak.lock()) core->unload(key, hashes);
    };
    return std::make_shared<ProgramImpl>(core_, std::move(info));
  }

  const std::shared_ptr<ClientCore> core_;
};

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(Options options) {
  CALLBOARD_ASSIGN(ClusterRecord record, find_cluster(options.cluster));
  CALLBOARD_TRY(check_outside_cluster(record.run_dir));
  CALLBOARD_ASSIGN(std::shared_ptr<ClientCore> core, ClientCore::start(std::move(record), std::move(options)));
  return std::make_unique<ClientImpl>(std::move(core));
}

}  // namespace callboard::actors
