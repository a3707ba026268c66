#include "actors/client/client.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "actors/client/client_core.h"
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

class ProgramImpl final : public Program {
 public:
  ProgramImpl(std::shared_ptr<ClientCore> core, std::shared_ptr<const ProgramInfo> info)
      : core_(std::move(core)), info_(std::move(info)) {}

  const ContentHash& id() const override { return info_->id; }
  const ProgramGraph& graph() const override { return info_->graph; }
  const std::vector<PlannedFragment>& plan() const override { return info_->plan; }

  Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs,
                                         std::optional<Duration> deadline) override {
    CALLBOARD_ASSIGN(const TimePoint until, deadline_after(deadline));
    CALLBOARD_ASSIGN(const std::shared_ptr<ClientMemory> memory, core_->memory());
    CALLBOARD_ASSIGN(PackedInputs packed, pack_inputs(info_->graph, info_->inputs, inputs, *memory));
    std::vector<std::optional<std::int64_t>> known(info_->graph.outputs.size());
    for (std::size_t i = 0; i < known.size(); ++i) {
      const auto* symbol = std::get_if<ArgSymbol>(&info_->graph.outputs[i].source);
      if (symbol == nullptr) continue;
      CALLBOARD_ASSIGN(known[i], symbol->expr.evaluate(packed.symbols));
    }
    return core_->submit(info_, std::move(packed), std::move(known), until);
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

/// Every constant that neither the host nor the caller has is named, all in one error.
Status provide_constants(MemoryLane& lane, const ProgramGraph& graph, const std::vector<ContentHash>& hashes,
                         std::span<const ConstantBytes> given) {
  if (hashes.empty()) return {};
  CALLBOARD_ASSIGN(const std::vector<ContentHash> missing, lane.find_constants(hashes));
  std::map<ContentHash, const ConstantBytes*> by_hash;
  for (const auto& constant : given) by_hash[constant.hash] = &constant;
  std::vector<kernels::ConstantSource> sources;
  std::vector<Error> gaps;
  for (const auto& hash : missing) {
    const auto constant = std::find_if(graph.constants.begin(), graph.constants.end(),
                                       [&](const Constant& each) { return each.storage == hash; });
    const auto found = by_hash.find(hash);
    const std::string name = constant == graph.constants.end() ? hash.hex() : constant->name;
    if (found == by_hash.end()) {
      gaps.emplace_back(ErrorCode::kConstantMissing,
                        "the bytes of constant '" + name + "' are neither given nor on the host");
    } else if (constant != graph.constants.end() && found->second->bytes != constant->storage_bytes) {
      gaps.emplace_back(ErrorCode::kConstantMissing,
                        "constant '" + name + "' was given with " + std::to_string(found->second->bytes) +
                            " bytes, the program says " + std::to_string(constant->storage_bytes));
    } else {
      sources.push_back({hash, found->second->data, found->second->bytes});
    }
  }
  if (!gaps.empty()) {
    Error error(ErrorCode::kConstantMissing,
                std::to_string(gaps.size()) + " constants of program '" + graph.name +
                    "' are missing, the first is: " + gaps.front().message,
                "give load() the bytes of every constant");
    gaps.resize(std::min(gaps.size(), limits::kErrorCausesMax));
    error.causes = std::move(gaps);
    return fail(std::move(error));
  }
  if (sources.empty()) return {};
  CALLBOARD_ASSIGN(kernels::ConstantPack pack, kernels::pack_constants(sources));
  return lane.add_constants(std::move(pack));
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
    core_->add_program_user(key, hashes);
    auto program = load_counted(std::move(graph), constants, std::move(placement), until, key, hashes);
    if (!program) core_->drop_program_user(key, hashes, false);
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
      if (const auto core = weak.lock()) core->drop_program_user(key, hashes, true);
    };
    return std::make_shared<ProgramImpl>(core_, std::move(info));
  }

  const std::shared_ptr<ClientCore> core_;
};

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(Options options) {
  CALLBOARD_ASSIGN(ClusterRecord record, find_cluster(options.cluster));
  CALLBOARD_ASSIGN(std::shared_ptr<ClientCore> core, ClientCore::start(std::move(record), std::move(options)));
  return std::make_unique<ClientImpl>(std::move(core));
}

}  // namespace callboard::actors
