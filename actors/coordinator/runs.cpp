#include "actors/coordinator/runs.h"

#include <algorithm>
#include <utility>

namespace callboard::actors {
namespace {

ValueKind kind_of(const WireValue& value) {
  if (std::holds_alternative<TensorHandle>(value)) return ValueKind::kTensor;
  if (std::holds_alternative<std::int64_t>(value)) return ValueKind::kInt;
  if (std::holds_alternative<double>(value)) return ValueKind::kFloat;
  if (std::holds_alternative<bool>(value)) return ValueKind::kBool;
  return ValueKind::kNone;
}

/// A device says so when another one's death reached it first.
bool may_follow_from_a_death(const Error& error) {
  return error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kTensorLost;
}

OutcomeStatus status_of(const Error& error) {
  if (error.code == ErrorCode::kDeadlineExceeded) return OutcomeStatus::kExpired;
  if (error.code == ErrorCode::kCancelled) return OutcomeStatus::kCancelled;
  return OutcomeStatus::kFailed;
}

std::string run_name(const Run& run) {
  return "request " + std::to_string(run.request) + " (program '" + run.program->name + "')";
}

bool may_still_read(const RunSlot& slot) {
  return slot.state == SlotState::kPending || slot.state == SlotState::kCutOff;
}

}  // namespace

// -- clients' orders --------------------------------------------------------------------------------------------------

void Runs::submit(const ActorId& client_id, Submit order, TimePoint now) {
  ClientMember* client = members_.find_client(client_id);
  if (client == nullptr) return;
  if (client->requests.count(order.request) != 0) {
    // Its outcome is on the way: a second one would break CO-1.
    context_.log(log::Level::kWarning, "repeated_request",
                 client_id.to_string() + " request=" + std::to_string(order.request));
    return;
  }
  Program* program = programs_.find(client_id, order.program);
  if (auto error = objection(*client, program, order)) return reject(client_id, order.request, std::move(*error));
  if (auto loss = programs_.take_state_loss(*program, client_id)) {
    return reject(client_id, order.request, std::move(*loss));
  }
  Run run;
  run.id = next_run_++;
  run.client = client_id;
  run.request = order.request;
  run.program = program;
  run.inputs = std::move(order.inputs);
  run.symbols = std::move(order.symbols);
  if (!program->edges.empty()) run.edge_bytes = program->edge_bytes(run.symbols);
  run.accepted = now;
  const Duration wait =
      order.deadline_ms > 0 ? std::chrono::milliseconds(order.deadline_ms) : context_.options.default_deadline;
  run.deadline = after(now, std::min<Duration>(wait, limits::kRequestDeadlineMax));
  deadlines_.emplace(run.deadline, run.id);
  client->requests[run.request] = run.id;
  programs_.run_added(*program);
  ++context_.counters.accepted;
  const RunId id = run.id;
  Run& placed = runs_.emplace(id, std::move(run)).first->second;
  if (waiting_.empty() && program->usable() && has_room(placed)) {
    send(placed, now);  // nobody is before it
    last_served_ = client_id;
  } else {
    waiting_[client_id][program].push_back(id);
  }
}

std::optional<Error> Runs::objection(const ClientMember& client, const Program* program, const Submit& order) const {
  if (context_.stopping) return Error(ErrorCode::kActorUnavailable, "the cluster is shutting down");
  if (program == nullptr) {
    return Error(ErrorCode::kProgramUnknown,
                 "program " + order.program.hex().substr(0, 12) + " is not loaded by this client",
                 "load it on this connection before you submit");
  }
  if (client.requests.size() >= context_.options.requests_per_client) {
    return Error(ErrorCode::kOverloaded,
                 std::to_string(client.requests.size()) + " requests of this client are in flight, the limit is " +
                     std::to_string(context_.options.requests_per_client),
                 "wait for some of them, or raise limits.requests_per_client in the cluster file");
  }
  if (order.inputs.size() != program->inputs.size()) {
    return Error(ErrorCode::kBadInput, "program '" + program->name + "' takes " +
                                           std::to_string(program->inputs.size()) + " inputs, the request brings " +
                                           std::to_string(order.inputs.size()));
  }
  if (order.symbols.size() != program->symbols) {
    return Error(ErrorCode::kBadInput, "program '" + program->name + "' has " + std::to_string(program->symbols) +
                                           " symbols, the request binds " + std::to_string(order.symbols.size()));
  }
  for (std::size_t i = 0; i < order.inputs.size(); ++i) {
    const InputSpec& input = program->inputs[i];
    const ValueKind kind = kind_of(order.inputs[i]);
    if (kind == input.kind) continue;
    return Error(ErrorCode::kBadInput, "input '" + input.name + "' is " + std::string(value_kind_phrase(kind)) +
                                           ", the program takes " + std::string(value_kind_phrase(input.kind)));
  }
  for (DeviceIndex index : program->devices) {
    const Device& device = members_.device(index);
    if (device.state != DeviceState::kFailed) continue;
    Error error(ErrorCode::kActorUnavailable, "device '" + device.name + "' is not started again",
                "see `callboard logs " + device.name + "`");
    if (device.last_exit) error.causes.push_back(*device.last_exit);
    return error;
  }
  if (const Error* why = program->broken()) return broken_error(*program, *why);
  if (auto why = quarantine_.objection(program->hash)) return why;
  return programs_.unreadable_results(client, *program);
}

Error Runs::broken_error(const Program& program, const Error& why) {
  Error error(why.code, "program '" + program.name + "' could not be loaded again after a restart", "load it anew");
  error.actor = why.actor;
  error.causes.push_back(why);
  return error;
}

void Runs::reject(const ActorId& client, RequestSeq request, Error error) {
  ++context_.counters.rejected;
  Outcome outcome;
  outcome.request = request;
  outcome.status = OutcomeStatus::kFailed;
  outcome.error = std::move(error);
  context_.send(client, std::move(outcome));
}

void Runs::cancel(const ActorId& client_id, RequestSeq request) {
  const ClientMember* client = members_.find_client(client_id);
  if (client == nullptr) return;
  const auto found = client->requests.find(request);
  if (found == client->requests.end() || runs_.at(found->second).phase == RunPhase::kEnding) return;
  end(found->second, OutcomeStatus::kCancelled,
      Error(ErrorCode::kCancelled, run_name(runs_.at(found->second)) + " was cancelled"));
}

// -- starting ---------------------------------------------------------------------------------------------------------

void Runs::start_waiting(TimePoint now) {
  bool progress = true;
  while (progress && !waiting_.empty()) {
    progress = false;
    if (waiting_.size() == 1) {  // whose turn it is needs no thought
      const auto only = waiting_.begin();
      progress = start_one(only->second, now);
      if (progress) last_served_ = only->first;
      if (only->second.empty()) waiting_.erase(only);
      continue;
    }
    // One request of each client in turn, beginning behind the client that was served last.
    std::vector<ActorId> order;
    for (const auto& [client, queues] : waiting_) order.push_back(client);
    const auto first = std::upper_bound(order.begin(), order.end(), last_served_);
    std::rotate(order.begin(), first, order.end());
    for (const ActorId& client : order) {
      const auto queues = waiting_.find(client);
      if (queues == waiting_.end() || !start_one(queues->second, now)) continue;
      last_served_ = client;
      progress = true;
      if (queues->second.empty()) waiting_.erase(queues);
    }
  }
}

bool Runs::start_one(Queues& queues, TimePoint now) {
  if (queues.size() == 1) {
    const auto queue = queues.begin();
    Run& run = runs_.at(queue->second.front());
    if (!run.program->usable() || !has_room(run)) return false;
    queue->second.pop_front();
    if (queue->second.empty()) queues.erase(queue);
    send(run, now);
    return true;
  }
  std::vector<std::pair<RunId, Queues::iterator>> heads;
  for (auto it = queues.begin(); it != queues.end(); ++it) heads.emplace_back(it->second.front(), it);
  std::sort(heads.begin(), heads.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::set<DeviceIndex> taken;  // by requests that came earlier and still wait
  for (const auto& [id, queue] : heads) {
    Run& run = runs_.at(id);
    const std::vector<DeviceIndex>& devices = run.program->devices;
    const bool behind = std::any_of(devices.begin(), devices.end(), [&](DeviceIndex d) { return taken.count(d) != 0; });
    if (!behind && run.program->usable() && has_room(run)) {
      queue->second.pop_front();
      if (queue->second.empty()) queues.erase(queue);
      send(run, now);
      return true;
    }
    taken.insert(devices.begin(), devices.end());
  }
  return false;
}

/// Room is counted in fragments. Credit is counted in bytes that wait on a device for another one: without it a fast
/// producer before a slow consumer would fill its memory. Who holds nothing may always go: or a large value never
/// would.
bool Runs::has_room(const Run& run) const {
  const Program& program = *run.program;
  for (std::size_t i = 0; i < program.devices.size(); ++i) {
    // A device whose link is lost and whose exit report is still out takes no runs: it may be another start already.
    const Device& device = members_.device(program.devices[i]);
    if (!device.joined || device.in_flight + program.fragments_on[i] > context_.options.runs_per_device) return false;
    if (!keeps_distance(run, device)) return false;
    if (run.edge_bytes.empty() || device.held_bytes == 0) continue;
    if (device.held_bytes + run.edge_bytes[i] > device.edge_bytes_max) return false;
  }
  return true;
}

void Runs::take_credit(Run& run) {
  for (std::size_t i = 0; i < run.edge_bytes.size(); ++i) {
    Device& device = members_.device(run.program->devices[i]);
    device.held_bytes += run.edge_bytes[i];
    run.credited.push_back(device.id);
  }
}

/// A device that was started again in the meantime owes nothing.
void Runs::return_credit(const Run& run) {
  for (std::size_t i = 0; i < run.credited.size(); ++i) {
    Device& device = members_.device(run.program->devices[i]);
    if (device.joined && device.id == run.credited[i]) device.held_bytes -= run.edge_bytes[i];
  }
}

void Runs::send(Run& run, TimePoint now) {
  run.phase = RunPhase::kRunning;
  programs_.run_sent(*run.program);
  take_credit(run);
  if (run.runs_alone) {
    leave_devices(run);
    for (DeviceIndex index : run.program->devices) members_.device(index).alone = run.id;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(run.deadline - now).count();
  const std::size_t count = run.program->fragments.size();
  const ClientMember* client = members_.find_client(run.client);
  const bool keeps_inputs = may_run_again(run);
  run.slots.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const FragmentRecord& record = run.program->fragments[i];
    Device& device = members_.device(record.device);
    RunFragment order;
    order.run = run.id;
    order.attempt = run.attempt;
    order.program = run.program->hash;
    order.fragment = i;
    order.client = run.client;
    order.inputs.reserve(record.program_inputs.size());
    for (std::uint32_t input : record.program_inputs) {
      if (count == 1 && !keeps_inputs) {
        order.inputs.push_back(std::move(run.inputs[input]));
      } else {
        order.inputs.push_back(run.inputs[input]);
      }
    }
    order.symbols = run.symbols;
    order.deadline_ms = std::max<std::int64_t>(left, 1);
    order.client_reads_device = client != nullptr && reads_device(*client, device);
    run.slots.push_back(RunSlot{device.id, SlotState::kPending, {}});
    ++device.in_flight;
    ++context_.counters.fragments_sent;
    context_.send(device.id, std::move(order));
  }
  if (!keeps_inputs) run.inputs.clear();
}

// -- devices' reports -------------------------------------------------------------------------------------------------

void Runs::finished(const ActorId& from, FragmentFinished report, TimePoint now) {
  const auto found = runs_.find(report.run);
  const auto device = members_.joined_device(from);  // a fenced incarnation is not
  const bool current = device && found != runs_.end() && found->second.attempt == report.attempt &&
                       report.fragment < found->second.slots.size() &&
                       found->second.slots[report.fragment].sent_to == from &&
                       found->second.slots[report.fragment].state == SlotState::kPending;
  if (!current) {
    ++context_.counters.stale_results;
    return drop_values(report.outputs);
  }
  Run& run = found->second;
  RunSlot& slot = run.slots[report.fragment];
  slot.state = SlotState::kFinished;
  --members_.device(*device).in_flight;
  if (run.phase != RunPhase::kRunning) {
    drop_values(report.outputs);
    return quiesce_if_done(run.id);
  }
  if (!report.error) {
    const Fragment& fragment = run.program->plan.fragments[report.fragment];
    const auto expected = std::count_if(fragment.outputs.begin(), fragment.outputs.end(),
                                        [](const FragmentOutput& output) { return output.to_client; });
    slot.outputs = std::move(report.outputs);
    run.state_version = std::max(run.state_version, report.state_version);
    FragmentRecord& record = run.program->fragments[report.fragment];
    ++record.runs;
    record.run_ns += report.run_ns;
    if (slot.outputs.size() != static_cast<std::size_t>(expected)) {
      report.error = Error(ErrorCode::kInternal, from.to_string() + " answered " + run_name(run) + " with " +
                                                     std::to_string(slot.outputs.size()) + " values instead of " +
                                                     std::to_string(expected));
    }
  }
  if (report.error) {
    if (may_follow_from_a_death(*report.error)) {
      if (!run.suspicion) suspicions_.emplace(after(now, context_.options.exit_report_wait), run.id);
      if (!run.suspicion) run.suspicion = std::move(report.error);
      return;
    }
    const OutcomeStatus status = status_of(*report.error);
    return end(run.id, status, std::move(*report.error));
  }
  const bool all =
      std::all_of(run.slots.begin(), run.slots.end(), [](const RunSlot& s) { return s.state == SlotState::kFinished; });
  if (all && !run.suspicion) complete(run);
}

void Runs::complete(Run& run) {
  Outcome outcome;
  outcome.request = run.request;
  outcome.state_version = run.state_version;
  const auto& sources = run.program->plan.client_outputs;
  outcome.outputs.reserve(sources.size());
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t>
      first;  // an output may be there twice: one handle, one lease
  for (const auto& source : sources) {
    if (!run.program->outputs_repeat) {
      outcome.outputs.push_back(std::move(run.slots[source.first].outputs[source.second]));
      continue;
    }
    const auto [at, fresh] = first.try_emplace(source, outcome.outputs.size());
    outcome.outputs.push_back(fresh ? std::move(run.slots[source.first].outputs[source.second])
                                    : outcome.outputs[at->second]);
  }
  count(OutcomeStatus::kOk);
  quarantine_.succeeded(run.program->hash);
  context_.send(run.client, std::move(outcome));
  erase(run.id);
}

void Runs::run_refused(const ActorId& device, const RunFragment& order, Error why, TimePoint now) {
  FragmentFinished report;
  report.run = order.run;
  report.attempt = order.attempt;
  report.fragment = order.fragment;
  report.error = std::move(why);
  finished(device, std::move(report), now);
}

void Runs::outcome_refused(const ActorId& client, const Outcome& outcome, Error why) {
  drop_values(outcome.outputs);
  Outcome instead;
  instead.request = outcome.request;
  instead.status = OutcomeStatus::kFailed;
  why.hint = "return less from the program, or in larger tensors: what is above 32 KiB travels outside the message";
  instead.error = std::move(why);
  instead.state_version = outcome.state_version;
  instead.quiesced = outcome.quiesced;
  context_.send(client, std::move(instead));
}

// -- ends -------------------------------------------------------------------------------------------------------------

void Runs::withdraw(Run& run, const Error& why) {
  for (RunSlot& slot : run.slots) {
    drop_values(slot.outputs);
    slot.outputs.clear();
  }
  std::set<ActorId> told;
  for (const RunSlot& slot : run.slots) {
    if (slot.state != SlotState::kPending || !told.insert(slot.sent_to).second) continue;
    Error reason(why.code, why.message);
    reason.actor = why.actor;
    context_.send(slot.sent_to, CancelRun{run.id, std::move(reason)});
  }
}

void Runs::end(RunId id, OutcomeStatus status, Error error) {
  Run& run = runs_.at(id);
  if (run.phase == RunPhase::kWaiting) remove_waiting(run);
  withdraw(run, error);
  const bool quiesced = std::none_of(run.slots.begin(), run.slots.end(), may_still_read);
  if (members_.find_client(run.client) != nullptr) {
    Outcome outcome;
    outcome.request = run.request;
    outcome.status = status;
    outcome.error = std::move(error);
    outcome.quiesced = quiesced;
    context_.send(run.client, std::move(outcome));
  }
  count(status);
  deadlines_.erase({run.deadline, run.id});
  if (quiesced) return erase(id);
  run.phase = RunPhase::kEnding;
}

void Runs::quiesce_if_done(RunId id) {
  const auto found = runs_.find(id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  if (run.phase != RunPhase::kEnding && run.phase != RunPhase::kRetrying) return;
  if (std::any_of(run.slots.begin(), run.slots.end(), may_still_read)) return;
  if (run.phase == RunPhase::kRetrying) return requeue(run);
  if (members_.find_client(run.client) != nullptr) context_.send(run.client, Quiesced{run.request});
  erase(id);
}

void Runs::erase(RunId id) {
  const auto found = runs_.find(id);
  const Run& run = found->second;
  deadlines_.erase({run.deadline, id});
  return_credit(run);
  leave_devices(run);
  if (ClientMember* client = members_.find_client(run.client)) client->requests.erase(run.request);
  programs_.run_ended(*run.program, !run.slots.empty());
  runs_.erase(found);
}

void Runs::remove_waiting(const Run& run) {
  const auto queues = waiting_.find(run.client);
  const auto queue = queues->second.find(run.program);
  std::deque<RunId>& ids = queue->second;
  ids.erase(std::lower_bound(ids.begin(), ids.end(), run.id));  // ascending: in order of submission
  if (ids.empty()) queues->second.erase(queue);
  if (queues->second.empty()) waiting_.erase(queues);
}

void Runs::client_lost(const ClientMember& client) {
  for (const auto& [request, id] : client.requests) {
    if (runs_.at(id).phase == RunPhase::kEnding) continue;
    end(id, OutcomeStatus::kCancelled, Error(ErrorCode::kCancelled, "client " + client.id.to_string() + " is gone"));
  }
}

void Runs::refuse_broken() {
  std::vector<std::pair<RunId, Error>> hopeless;
  for (const auto& [client, queues] : waiting_) {
    for (const auto& [program, ids] : queues) {
      const Error* why = program->broken();
      if (why == nullptr) continue;
      for (RunId id : ids) hopeless.emplace_back(id, broken_error(*program, *why));
    }
  }
  std::sort(hopeless.begin(), hopeless.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [id, error] : hopeless) end(id, OutcomeStatus::kFailed, std::move(error));
}

void Runs::refuse_waiting(const Error& why) {
  std::vector<RunId> ids;
  for (const auto& [id, run] : runs_) {
    if (run.phase == RunPhase::kWaiting || run.phase == RunPhase::kRetrying) ids.push_back(id);
  }
  for (RunId id : ids) end(id, OutcomeStatus::kFailed, why);
}

/// Nobody will open these: their owners may have the memory back.
void Runs::drop_values(const std::vector<WireValue>& values) {
  std::map<ActorId, std::vector<LeaseId>> leases;
  for (const WireValue& value : values) {
    const auto* handle = std::get_if<TensorHandle>(&value);
    if (handle == nullptr) continue;
    if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) {
      if (block->lease != 0) leases[block->owner].push_back(block->lease);
    } else if (const auto* cuda = std::get_if<CudaIpcBlock>(&handle->data)) {
      if (cuda->lease != 0) leases[cuda->owner].push_back(cuda->lease);
    }
  }
  for (auto& [owner, ids] : leases) {
    // The leases of an owner that is gone ended with it.
    if (members_.joined_device(owner)) context_.send(owner, ReleaseLeases{owner, std::move(ids)});
  }
}

void Runs::count(OutcomeStatus status) {
  switch (status) {
    case OutcomeStatus::kOk:
      ++context_.counters.ok;
      break;
    case OutcomeStatus::kFailed:
      ++context_.counters.failed;
      break;
    case OutcomeStatus::kCancelled:
      ++context_.counters.cancelled;
      break;
    case OutcomeStatus::kExpired:
      ++context_.counters.expired;
      break;
  }
}

// -- time -------------------------------------------------------------------------------------------------------------

void Runs::on_time(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RunId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const Run& run = runs_.at(id);
    const std::string where = run.phase == RunPhase::kWaiting ? waiting_text(run) : running_text(run);
    end(id, OutcomeStatus::kExpired,
        Error(ErrorCode::kDeadlineExceeded, run_name(run) + " did not end in time: " + where,
              "give a longer deadline, or see `callboard status` for what the devices are doing"));
  }
  while (!suspicions_.empty() && suspicions_.begin()->first <= now) {
    const RunId id = suspicions_.begin()->second;
    suspicions_.erase(suspicions_.begin());
    const auto found = runs_.find(id);
    if (found == runs_.end() || found->second.phase != RunPhase::kRunning || !found->second.suspicion) continue;
    Error error = *found->second.suspicion;
    end(id, OutcomeStatus::kFailed, std::move(error));
  }
}

std::string Runs::waiting_text(const Run& run) const {
  for (DeviceIndex index : run.program->devices) {
    const Device& device = members_.device(index);
    if (device.state == DeviceState::kReady) continue;
    return "it waited for device '" + device.name + "', which is " + std::string(device_state_name(device.state));
  }
  if (!run.edge_bytes.empty())
    return "it waited behind other requests, whose values fill the devices' limits.edge_bytes";
  return "it waited behind other requests";
}

std::string Runs::running_text(const Run& run) const {
  std::string text;
  for (std::size_t i = 0; i < run.slots.size(); ++i) {
    if (run.slots[i].state == SlotState::kFinished) continue;
    text +=
        (text.empty() ? "fragment " : ", fragment ") + std::to_string(i) + " on " + run.slots[i].sent_to.to_string();
  }
  return text.empty() ? "its devices had answered" : text + " had not finished";
}

TimePoint Runs::next_due() const {
  TimePoint next = kNever;
  if (!deadlines_.empty()) next = deadlines_.begin()->first;
  if (!suspicions_.empty()) next = std::min(next, suspicions_.begin()->first);
  return next;
}

std::size_t Runs::waiting() const {
  std::size_t count = 0;
  for (const auto& [client, queues] : waiting_) {
    for (const auto& [program, ids] : queues) count += ids.size();
  }
  return count;
}

}  // namespace callboard::actors
