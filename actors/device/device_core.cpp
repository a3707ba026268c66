#include "actors/device/device_core.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "messages/base/check.h"

namespace callboard::actors {
namespace {

using RunKey = std::pair<RunId, std::uint32_t>;  // run, fragment

constexpr std::size_t kEndedKept = 4'096;  // late edges of this many last runs are recognised at once

bool is_edge(const FragmentInput& input) { return input.source == FragmentInput::Source::kEdge; }

class DeviceCoreImpl final : public DeviceCore {
 public:
  explicit DeviceCoreImpl(DeviceCoreOptions options) : options_(std::move(options)) {}

  Actions step(Event event, TimePoint now) override {
    Actions actions;
    std::visit([&](auto&& e) { on(std::forward<decltype(e)>(e), now, actions); }, std::move(event));
    return actions;
  }

  /// A tick that comes too early only looks: so what has ended in the meantime is not taken out here.
  TimePoint next_tick() const override { return next_tick_; }

 private:
  struct RunEntry {
    RunFragment order;
    TimePoint deadline = kNever;
    std::map<ValueId, WireValue> edge_values;
    std::size_t edges_wanted = 0;
    bool started = false;
    std::optional<Error> cancelled;
  };
  /// Of the way to one process of a device.
  struct TransportProof {
    ActorId reader;
    std::uint64_t test = 0;
    TimePoint give_up_at = kNever;
    bool sent = false;
    bool unanswered = false;
    bool decided = false;
  };
  struct EarlyEdges {
    Attempt attempt = 1;
    TimePoint drop_at = kNever;
    std::vector<std::pair<ValueId, WireValue>> values;
  };

  // -- events ---------------------------------------------------------------------------------------------------------

  void on(FromCoordinator&& event, TimePoint now, Actions& out) {
    if (auto* run = std::get_if<RunFragment>(&event.message)) return on_run(std::move(*run), now, out);
    if (auto* cancel = std::get_if<CancelRun>(&event.message)) return on_cancel(*cancel, out);
    if (auto* load = std::get_if<LoadFragment>(&event.message)) return on_load(std::move(*load), now, out);
    if (auto* unload = std::get_if<UnloadFragments>(&event.message)) return on_unload(unload->program, out);
    if (auto* moved = std::get_if<PeerMoved>(&event.message)) return peer_named(std::move(moved->peer), now, out);
    if (auto* query = std::get_if<DeviceQuery>(&event.message)) return out.push_back(Query{std::move(*query)});
    if (auto* release = std::get_if<ReleaseLeases>(&event.message)) return on_release(*release, out);
    if (auto* gone = std::get_if<HolderGone>(&event.message)) return out.push_back(EndHolder{std::move(gone->holder)});
    if (auto* welcome = std::get_if<Welcome>(&event.message)) return on_welcome(*welcome, out);
    if (std::holds_alternative<Beat>(event.message)) return;
    unexpected(event.message, "the coordinator", out);
  }

  void on(FromPeer&& event, TimePoint now, Actions& out) {
    if (auto* edge = std::get_if<EdgeValues>(&event.message)) return on_edge(std::move(*edge), now, out);
    if (auto* release = std::get_if<ReleaseLeases>(&event.message)) return on_release(*release, out);
    if (auto* test = std::get_if<TestTransport>(&event.message)) return on_test(event.from, std::move(*test), out);
    if (auto* tested = std::get_if<TransportTested>(&event.message))
      return on_tested(event.from, std::move(*tested), out);
    if (std::holds_alternative<Beat>(event.message)) return;
    unexpected(event.message, event.from.to_string(), out);
  }

  // Of runs there is nothing to decide: the coordinator, which has the real cause, cancels them; without it their
  // deadlines end them.
  void on(PeerGone event, TimePoint, Actions& out) {
    out.push_back(LogLine{log::Level::kInfo, "peer_gone", event.peer.to_string()});
    const auto test = transport_tests_.find(event.peer.name);
    if (test == transport_tests_.end() || test->second.reader != event.peer || test->second.decided) return;
    give_up(test->second, "the link to it ended before it answered", out);
  }

  // -- the way of results to other devices ----------------------------------------------------------------------------

  void peer_named(PeerAddress peer, TimePoint now, Actions& out) {
    const ActorId who = peer.who;
    peers_[who.name] = std::move(peer);
    if (options_.tests_transport_to.count(who.name) == 0) return;
    TransportProof& proof = transport_tests_[who.name];
    if (proof.reader == who && !(proof.decided && proof.unanswered)) return;
    proof = TransportProof{who, ++last_test_, after(now, options_.transport_test_wait)};
    wake_at(proof.give_up_at);
    out.push_back(OfferTransport{who, proof.test});
  }

  void on(TransportOffered&& event, TimePoint, Actions& out) {
    const auto found = transport_tests_.find(event.reader.name);
    if (found == transport_tests_.end() || found->second.test != event.test || found->second.decided) {
      if (!event.block) return;
      out.push_back(JudgeTransport{event.reader, unanswered(event.test, "it is not needed any more")});
      return out.push_back(ReleaseOwn{{event.block->lease}});  // its reader will never hear of it
    }
    TransportProof& proof = found->second;
    if (!event.block) return give_up(proof, "nothing can be offered: " + event.block.error().to_string(), out);
    proof.sent = true;
    out.push_back(SendPeer{peers_.at(event.reader.name), TestTransport{event.test, std::move(*event.block)}});
  }

  void on_test(const ActorId& from, TestTransport test, Actions& out) {
    if (test.block.owner == from) return out.push_back(AnswerTransport{from, std::move(test)});
    out.push_back(AnswerPeer{from, unanswered(test.test, "the block is one of " + test.block.owner.to_string())});
  }

  void on(TransportAnswered&& event, TimePoint, Actions& out) {
    out.push_back(AnswerPeer{std::move(event.exporter), std::move(event.answer)});
  }

  void on_tested(const ActorId& from, TransportTested tested, Actions& out) {
    const auto found = transport_tests_.find(from.name);
    if (found == transport_tests_.end()) return unexpected(tested, from.to_string(), out);
    const TransportProof& proof = found->second;
    if (proof.reader != from || proof.test != tested.test || !proof.sent || proof.decided) return;  // too late
    out.push_back(JudgeTransport{from, std::move(tested)});
  }

  void on(TransportJudged&& event, TimePoint, Actions& out) {
    const auto found = transport_tests_.find(event.chosen.reader.name);
    if (found == transport_tests_.end() || found->second.test != event.test || found->second.decided) return;
    found->second.decided = true;
    const TransportChosen& chosen = event.chosen;
    const bool slow = chosen.path == TransportPath::kHostCopy;
    out.push_back(LogLine{slow ? log::Level::kWarning : log::Level::kInfo, "transport",
                          "results for " + chosen.reader.to_string() + " go by " +
                              std::string(transport_path_name(chosen.path)) +
                              (chosen.reason.empty() ? "" : ": " + chosen.reason)});
    out.push_back(SendCoordinator{std::move(event.chosen)});
  }

  /// Without an answer that says anything of the way: a later naming of the peer tries again.
  void give_up(TransportProof& proof, const std::string& why, Actions& out) {
    proof.unanswered = true;
    out.push_back(JudgeTransport{proof.reader, unanswered(proof.test, why)});
  }
  static TransportTested unanswered(std::uint64_t test, const std::string& why) {
    return {test, TransportPath::kHostCopy, {}, why};
  }

  void on(Loaded&& event, TimePoint, Actions& out) {
    FragmentLoaded answer;
    answer.program = event.program;
    answer.fragment = event.fragment;
    if (event.info) {
      answer.pure = event.info->pure;
      answer.random = event.info->random;
      answer.constant_bytes = event.info->constant_bytes;
      answer.peak_bytes = event.info->peak_bytes;
    } else {
      answer.error = std::move(event.info.error());
      answer.error->actor = options_.self.to_string();
    }
    out.push_back(SendCoordinator{std::move(answer)});
  }

  void on(Finished&& event, TimePoint now, Actions& out) {
    const auto found = runs_.find({event.run, event.fragment});
    if (found == runs_.end() || found->second.order.attempt != event.attempt) {
      drop_result(event.result, out);
      return;
    }
    RunEntry entry = std::move(found->second);
    runs_.erase(found);
    if (entry.edges_wanted > 0) remember_ended({event.run, event.fragment}, event.attempt);
    if (entry.cancelled) event.result.error = event.result.error ? event.result.error : entry.cancelled;
    if (!event.result.error) send_edges(entry, event.result, now, out);

    FragmentFinished answer;
    answer.run = event.run;
    answer.attempt = event.attempt;
    answer.fragment = event.fragment;
    answer.run_ns = event.result.run_ns;
    if (event.result.error) {
      drop_result(event.result, out);
      answer.error = std::move(event.result.error);
      if (answer.error->actor.empty()) answer.error->actor = options_.self.to_string();
    } else {
      answer.outputs = std::move(event.result.to_client);
      answer.state_version = event.result.state_version;
    }
    out.push_back(SendCoordinator{std::move(answer)});
  }

  void on(Tick, TimePoint now, Actions& out) {
    std::vector<RunKey> late;
    for (const auto& [key, run] : runs_) {
      if (!run.started && run.deadline <= now) late.push_back(key);
    }
    for (const RunKey& key : late) {
      end_waiting(key, Error(ErrorCode::kDeadlineExceeded, waiting_text(key)), out);
    }
    for (auto it = early_.begin(); it != early_.end();) {
      if (it->second.drop_at > now) {
        ++it;
        continue;
      }
      release_all(it->second.values, out);
      it = early_.erase(it);
    }
    next_tick_ = kNever;
    for (auto& [name, proof] : transport_tests_) {
      if (proof.decided || proof.unanswered) continue;
      if (proof.give_up_at > now) {
        wake_at(proof.give_up_at);
      } else {
        give_up(proof, "it gave no answer in time", out);
      }
    }
    for (const auto& [key, run] : runs_) {
      if (!run.started) wake_at(run.deadline);
    }
    for (const auto& [key, edge] : early_) wake_at(edge.drop_at);
  }

  void wake_at(TimePoint when) { next_tick_ = std::min(next_tick_, when); }

  // -- coordinator's orders
  // ---------------------------------------------------------------------------------------------

  void on_welcome(const Welcome& welcome, Actions& out) {
    if (epoch_ != 0 && epoch_ != welcome.epoch) {
      // Run numbers start anew with a coordinator: what the old one ordered must not meet them.
      const Error reason(ErrorCode::kCoordinatorLost,
                         "the coordinator was started again (epoch " + std::to_string(welcome.epoch) + ")");
      std::set<RunId> all;
      for (const auto& [key, run] : runs_) all.insert(key.first);
      for (RunId run : all) on_cancel(CancelRun{run, reason}, out);
    }
    epoch_ = welcome.epoch;
  }

  void on_load(LoadFragment load, TimePoint now, Actions& out) {
    for (PeerAddress& peer : load.peers) peer_named(std::move(peer), now, out);
    fragments_[load.fragment.program][load.fragment.index] = load.fragment;
    out.push_back(Load{std::move(load.fragment)});
  }

  void on_unload(const ContentHash& program, Actions& out) {
    fragments_.erase(program);
    std::vector<RunKey> waiting;
    for (const auto& [key, run] : runs_) {
      if (!run.started && run.order.program == program) waiting.push_back(key);
    }
    for (const RunKey& key : waiting) {
      end_waiting(key, Error(ErrorCode::kProgramUnknown, "the program was unloaded before the run could start"), out);
    }
    out.push_back(Unload{program});
  }

  void on_run(RunFragment order, TimePoint now, Actions& out) {
    const RunKey key{order.run, order.fragment};
    const Fragment* fragment = find_fragment(order.program, order.fragment);
    if (fragment == nullptr) {
      return refuse(std::move(order),
                    Error(ErrorCode::kProgramUnknown,
                          "fragment " + std::to_string(key.second) + " of this program is not loaded here"),
                    out);
    }
    if (runs_.size() >= options_.runs_max) {
      return refuse(
          std::move(order),
          Error(ErrorCode::kOverloaded, "this device already holds " + std::to_string(runs_.size()) + " runs"), out);
    }
    std::size_t program_inputs = 0;
    std::size_t edges = 0;
    for (const FragmentInput& input : fragment->inputs) ++(is_edge(input) ? edges : program_inputs);
    if (order.inputs.size() != program_inputs) {
      return refuse(std::move(order),
                    Error(ErrorCode::kMalformed, "the run brings " + std::to_string(order.inputs.size()) +
                                                     " inputs, the fragment takes " + std::to_string(program_inputs)),
                    out);
    }
    if (const auto old = runs_.find(key); old != runs_.end()) {
      if (old->second.order.attempt >= order.attempt) return release_all(order.inputs, out);  // a repeat
      return refuse(std::move(order),
                    Error(ErrorCode::kUnexpectedMessage, "an older attempt of this run is still here",
                          "cancel a run before its next attempt"),
                    out);
    }
    RunEntry entry;
    entry.deadline = order.deadline_ms > 0 ? after(now, std::chrono::milliseconds(order.deadline_ms)) : kNever;
    entry.edges_wanted = edges;
    entry.order = std::move(order);
    auto& placed = runs_[key] = std::move(entry);
    if (const auto early = early_.find(key); early != early_.end()) {
      EarlyEdges edge = std::move(early->second);
      early_.erase(early);
      take_values(placed, *fragment, edge.attempt, std::move(edge.values), out);
    }
    start_if_ready(key, *fragment, out);
  }

  void on_cancel(const CancelRun& cancel, Actions& out) {
    bool running = false;
    std::vector<RunKey> waiting;
    for (auto it = runs_.lower_bound({cancel.run, 0}); it != runs_.end() && it->first.first == cancel.run; ++it) {
      if (it->second.started) {
        it->second.cancelled = cancel.reason;
        running = true;
      } else {
        waiting.push_back(it->first);
      }
    }
    if (running) out.push_back(Cancel{cancel.run, cancel.reason});
    for (const RunKey& key : waiting) end_waiting(key, cancel.reason, out);
    for (auto it = early_.lower_bound({cancel.run, 0}); it != early_.end() && it->first.first == cancel.run;) {
      release_all(it->second.values, out);
      remember_ended(it->first, it->second.attempt);
      it = early_.erase(it);
    }
  }

  void on_release(const ReleaseLeases& release, Actions& out) {
    if (release.owner != options_.self) {
      out.push_back(LogLine{log::Level::kWarning, "stale_release", release.owner.to_string()});
      return;
    }
    out.push_back(ReleaseOwn{release.leases});
  }

  // -- edges
  // ------------------------------------------------------------------------------------------------------------

  void on_edge(EdgeValues edge, TimePoint now, Actions& out) {
    const RunKey key{edge.run, edge.to};
    const auto ended = ended_.find(key);
    const bool over = ended != ended_.end() && edge.attempt <= ended->second;
    if (over || (epoch_ != 0 && edge.epoch != epoch_)) return release_all(edge.values, out);
    const auto found = runs_.find(key);
    if (found == runs_.end()) return keep_early(std::move(edge), now, out);
    const Fragment* fragment = find_fragment(found->second.order.program, edge.to);
    if (fragment == nullptr) return release_all(edge.values, out);
    take_values(found->second, *fragment, edge.attempt, std::move(edge.values), out);
    start_if_ready(key, *fragment, out);
  }

  void keep_early(EdgeValues edge, TimePoint now, Actions& out) {
    const RunKey key{edge.run, edge.to};
    if (early_.size() >= 4 * options_.runs_max) {
      out.push_back(LogLine{log::Level::kWarning, "early_edges_full", "run=" + std::to_string(edge.run)});
      return release_all(edge.values, out);
    }
    EarlyEdges& early = early_[key];
    if (edge.attempt > early.attempt) {
      release_all(early.values, out);
      early.values.clear();
      early.attempt = edge.attempt;
    } else if (edge.attempt < early.attempt) {
      return release_all(edge.values, out);
    }
    early.drop_at = after(now, options_.early_edge_keep);
    wake_at(early.drop_at);
    for (auto& value : edge.values) early.values.push_back(std::move(value));
  }

  void take_values(RunEntry& run, const Fragment& fragment, Attempt attempt,
                   std::vector<std::pair<ValueId, WireValue>> values, Actions& out) {
    for (auto& [id, value] : values) {
      const bool wanted = std::any_of(fragment.inputs.begin(), fragment.inputs.end(),
                                      [id = id](const FragmentInput& i) { return is_edge(i) && i.value == id; });
      const bool fresh = attempt == run.order.attempt && wanted && !run.started && run.edge_values.count(id) == 0;
      if (fresh) {
        run.edge_values.emplace(id, std::move(value));
      } else {
        release(std::move(value), out);
      }
    }
  }

  void start_if_ready(const RunKey& key, const Fragment& fragment, Actions& out) {
    RunEntry& run = runs_.at(key);
    if (run.started) return;
    if (run.edge_values.size() < run.edges_wanted) return wake_at(run.deadline);
    run.started = true;
    kernels::RunOrder order;
    order.run = key.first;
    order.attempt = run.order.attempt;
    order.program = run.order.program;
    order.fragment = key.second;
    order.symbols = run.order.symbols;
    order.deadline = run.deadline;
    order.client = run.order.client;
    order.client_reads_device = run.order.client_reads_device;
    std::size_t next_program_input = 0;
    for (const FragmentInput& input : fragment.inputs) {
      order.inputs.push_back(is_edge(input) ? std::move(run.edge_values.at(input.value))
                                            : std::move(run.order.inputs[next_program_input++]));
    }
    run.order.inputs.clear();
    run.edge_values.clear();
    for (const FragmentOutput& output : fragment.outputs) {
      for (const FragmentOutput::Edge& edge : output.edges) order.edge_holders.push_back(holder_of(edge.device));
    }
    out.push_back(Run{std::move(order)});
  }

  ActorId holder_of(const std::string& device) const {
    if (device == options_.self.name) return options_.self;
    const auto peer = peers_.find(device);
    return peer == peers_.end() ? ActorId{device, 0} : peer->second.who;
  }

  void send_edges(const RunEntry& run, kernels::RunResult& result, TimePoint now, Actions& out) {
    const Fragment* fragment = find_fragment(run.order.program, run.order.fragment);
    std::map<std::uint32_t, std::pair<std::string, EdgeValues>> by_consumer;
    std::size_t next = 0;
    if (fragment != nullptr) {
      for (const FragmentOutput& output : fragment->outputs) {
        for (const FragmentOutput::Edge& edge : output.edges) {
          if (next >= result.on_edges.size()) break;
          auto& [device, message] = by_consumer[edge.fragment];
          device = edge.device;
          message.to = edge.fragment;
          message.values.emplace_back(output.value, std::move(result.on_edges[next++]));
        }
      }
    }
    for (; next < result.on_edges.size(); ++next) release(std::move(result.on_edges[next]), out);
    result.on_edges.clear();
    for (auto& [consumer, target] : by_consumer) {
      EdgeValues& message = target.second;
      message.run = run.order.run;
      message.attempt = run.order.attempt;
      message.epoch = epoch_;
      message.program = run.order.program;
      message.from = run.order.fragment;
      if (target.first == options_.self.name) {
        on_edge(std::move(message), now, out);
      } else if (const auto peer = peers_.find(target.first); peer != peers_.end()) {
        out.push_back(SendPeer{peer->second, std::move(message)});
      } else {
        // The coordinator names every peer at load; without an address the consumer's deadline ends the run.
        out.push_back(LogLine{log::Level::kError, "edge_without_peer", target.first});
        release_all(message.values, out);
      }
    }
  }

  // -- ends
  // -------------------------------------------------------------------------------------------------------------

  void refuse(RunFragment order, Error error, Actions& out) {
    release_all(order.inputs, out);
    answer_error({order.run, order.fragment}, order.attempt, std::move(error), out);
  }

  void end_waiting(const RunKey& key, Error reason, Actions& out) {
    const auto found = runs_.find(key);
    CALLBOARD_CHECK(found != runs_.end() && !found->second.started, "only waiting runs end this way");
    RunEntry entry = std::move(found->second);
    runs_.erase(found);
    release_all(entry.order.inputs, out);
    for (auto& [id, value] : entry.edge_values) release(std::move(value), out);
    remember_ended(key, entry.order.attempt);
    answer_error(key, entry.order.attempt, std::move(reason), out);
  }

  void answer_error(const RunKey& key, Attempt attempt, Error error, Actions& out) {
    FragmentFinished answer;
    answer.run = key.first;
    answer.attempt = attempt;
    answer.fragment = key.second;
    if (error.actor.empty()) error.actor = options_.self.to_string();
    answer.error = std::move(error);
    out.push_back(SendCoordinator{std::move(answer)});
  }

  void drop_result(kernels::RunResult& result, Actions& out) {
    release_all(result.to_client, out);
    release_all(result.on_edges, out);
    result.to_client.clear();
    result.on_edges.clear();
  }

  void release(WireValue value, Actions& out) {
    const auto* handle = std::get_if<TensorHandle>(&value);
    if (handle == nullptr) return;
    const ActorId* owner = nullptr;
    LeaseId lease = 0;
    if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) {
      owner = &block->owner;
      lease = block->lease;
    } else if (const auto* lent = std::get_if<CudaIpcBlock>(&handle->data)) {
      owner = &lent->owner;
      lease = lent->lease;
    }
    if (lease == 0) return;
    if (*owner == options_.self) {
      out.push_back(ReleaseOwn{{lease}});
    } else {
      out.push_back(Release{std::move(value)});
    }
  }
  void release_all(std::vector<WireValue>& values, Actions& out) {
    for (WireValue& value : values) release(std::move(value), out);
    values.clear();
  }
  void release_all(std::vector<std::pair<ValueId, WireValue>>& values, Actions& out) {
    for (auto& [id, value] : values) release(std::move(value), out);
    values.clear();
  }

  void remember_ended(const RunKey& key, Attempt attempt) {
    const auto [at, fresh] = ended_.try_emplace(key, attempt);
    at->second = std::max(at->second, attempt);
    if (!fresh) return;
    ended_order_.push_back(key);
    if (ended_order_.size() > kEndedKept) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
  }

  void unexpected(const Message& message, const std::string& from, Actions& out) {
    out.push_back(
        LogLine{log::Level::kWarning, "unexpected_message", std::string(message_name(message)) + " from " + from});
  }

  std::string waiting_text(const RunKey& key) const {
    const RunEntry& run = runs_.at(key);
    return "the deadline passed while fragment " + std::to_string(key.second) + " waited for " +
           std::to_string(run.edges_wanted - run.edge_values.size()) + " of " + std::to_string(run.edges_wanted) +
           " inputs from other devices";
  }

  const Fragment* find_fragment(const ContentHash& program, std::uint32_t index) const {
    const auto found = fragments_.find(program);
    if (found == fragments_.end()) return nullptr;
    const auto fragment = found->second.find(index);
    return fragment == found->second.end() ? nullptr : &fragment->second;
  }

  const DeviceCoreOptions options_;
  Epoch epoch_ = 0;
  std::map<ContentHash, std::map<std::uint32_t, Fragment>> fragments_;
  std::map<std::string, PeerAddress> peers_;
  std::map<std::string, TransportProof> transport_tests_;  // by reader's name, of tests_transport_to only
  std::uint64_t last_test_ = 0;
  std::map<RunKey, RunEntry> runs_;
  std::map<RunKey, EarlyEdges> early_;
  std::map<RunKey, Attempt> ended_;  // the last attempt of it that is over: a later one may come
  std::deque<RunKey> ended_order_;
  TimePoint next_tick_ = kNever;
};

}  // namespace

std::unique_ptr<DeviceCore> DeviceCore::create(DeviceCoreOptions options) {
  return std::make_unique<DeviceCoreImpl>(std::move(options));
}

}  // namespace callboard::actors
