#include "actors/coordinator/programs.h"

#include <algorithm>
#include <utility>

#include "actors/coordinator/text.h"
#include "messages/codec.h"
#include "messages/stage_time.h"

namespace callboard::actors {
namespace {

std::string quoted(const Program& program) {
  return "program '" + (program.name.empty() ? program.hash.hex().substr(0, 12) : program.name) + "'";
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

}  // namespace

std::vector<std::uint64_t> Program::edge_bytes(std::span<const std::int64_t> bound) const {
  std::vector<std::uint64_t> bytes(devices.size(), 0);
  for (const Edge& edge : edges) {
    std::uint64_t total = edge.item_bytes;
    for (const Expr& size : edge.sizes) {
      const auto value = size.evaluate(bound);
      const std::uint64_t factor = value && *value > 0 ? static_cast<std::uint64_t>(*value) : 0;
      if (__builtin_mul_overflow(total, factor, &total)) total = UINT64_MAX / 2;
    }
    bytes[edge.device] = std::min(bytes[edge.device] + total, UINT64_MAX / 2);
  }
  return bytes;
}

bool Program::usable() const {
  return to_reset.empty() && std::all_of(fragments.begin(), fragments.end(), [](const FragmentRecord& fragment) {
           return fragment.state == FragmentState::kLoaded;
         });
}

const Error* Program::broken() const {
  for (const FragmentRecord& fragment : fragments) {
    if (fragment.state == FragmentState::kBroken) return &*fragment.error;
  }
  return nullptr;
}

bool Program::pure() const {
  return std::all_of(plan.summary.begin(), plan.summary.end(), [](const PlannedFragment& f) { return f.pure; });
}

bool Program::has_state_on(DeviceIndex device) const {
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    if (fragments[i].device == device && !plan.fragments[i].states.empty()) return true;
  }
  return false;
}

std::vector<std::string> Program::state_names(std::optional<DeviceIndex> device) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    if (device && fragments[i].device != *device) continue;
    for (const State& state : plan.fragments[i].states) names.push_back(state.name);
  }
  return names;
}

// -- clients' orders --------------------------------------------------------------------------------------------------

void Programs::load(const ActorId& client, LoadProgram order, TimePoint now) {
  if (context_.stopping) {
    return refuse(client, order.request, Error(ErrorCode::kActorUnavailable, "the cluster is shutting down"));
  }
  const ContentHash hash = program_hash(order.program, order.placement);
  auto found = programs_.find(hash);
  if (found == programs_.end()) {
    auto planned = plan(order);
    if (!planned) return refuse(client, order.request, std::move(planned).error());
    found = programs_.emplace(hash, std::move(*planned)).first;
    context_.log(log::Level::kInfo, "program_planned",
                 quoted(*found->second) + " fragments=" + std::to_string(found->second->fragments.size()));
  }
  Program& program = *found->second;
  for (DeviceIndex device : program.devices) {
    if (members_.device(device).state != DeviceState::kFailed) continue;
    Error error(ErrorCode::kActorUnavailable, "device '" + members_.device(device).name + "', where a part of " +
                                                  quoted(program) + " is placed, is not started again");
    error.hint = "see `callboard logs " + members_.device(device).name + "`, or place the program elsewhere";
    if (members_.device(device).last_exit) error.causes.push_back(*members_.device(device).last_exit);
    refuse(client, order.request, std::move(error));
    unsettled_.insert(hash);
    return;
  }
  ++program.users[client];
  const Duration wait =
      order.deadline_ms > 0 ? std::chrono::milliseconds(order.deadline_ms) : context_.options.default_deadline;
  program.waiters.push_back({client, order.request, after(now, std::min<Duration>(wait, limits::kRequestDeadlineMax))});
  unsettled_.insert(hash);
  for (std::uint32_t i = 0; i < program.fragments.size(); ++i) {
    const FragmentRecord& record = program.fragments[i];
    const bool again = record.state == FragmentState::kAbsent || record.state == FragmentState::kBroken;
    if (again && members_.device(record.device).joined) send_load(program, i);
  }
  answer_if_complete(program);
}

Result<std::unique_ptr<Program>> Programs::plan(const LoadProgram& order) const {
  if (programs_.size() >= limits::kProgramsMax) {
    return fail(ErrorCode::kOverloaded, "the cluster already holds " + std::to_string(programs_.size()) + " programs",
                "let go of programs that are no longer used");
  }
  std::vector<PlannerDevice> devices;
  for (const Device& device : members_.devices()) devices.push_back({device.name, device.memory_limit});
  auto program = std::make_unique<Program>();
  CALLBOARD_ASSIGN(program->plan, plan_program(order.program, order.placement, devices));
  program->hash = program->plan.program;
  program->name = order.program.name;
  const auto costs = order.program.annotations.find(std::string(kCostsAnnotation));
  if (costs != order.program.annotations.end()) program->costs = costs->second;
  program->symbols = order.program.symbols.size();
  const auto& outputs = program->plan.client_outputs;
  program->outputs = outputs.size();
  program->outputs_repeat = std::set(outputs.begin(), outputs.end()).size() != outputs.size();
  for (const ProgramInput& input : order.program.inputs) {
    program->inputs.push_back({input.name, order.program.values[input.value].kind});
  }
  std::map<DeviceIndex, std::size_t> fragments_on;
  for (const Fragment& fragment : program->plan.fragments) {
    FragmentRecord record;
    record.device = *members_.find_device(fragment.device);
    for (const FragmentInput& input : fragment.inputs) {
      if (input.source == FragmentInput::Source::kProgramInput) record.program_inputs.push_back(input.index);
    }
    ++fragments_on[record.device];
    program->fragments.push_back(std::move(record));
  }
  for (const auto& [device, count] : fragments_on) {
    program->devices.push_back(device);
    program->fragments_on.push_back(count);
    if (count <= context_.options.runs_per_device) continue;
    return fail(ErrorCode::kBadPlacement,
                "the placement cuts the program into " + std::to_string(count) + " fragments on '" +
                    members_.device(device).name + "', at most " + std::to_string(context_.options.runs_per_device) +
                    " are possible",
                "place longer stretches of the program on one device");
  }
  for (const Fragment& fragment : program->plan.fragments) {
    const DeviceIndex device = *members_.find_device(fragment.device);
    const auto place = std::find(program->devices.begin(), program->devices.end(), device) - program->devices.begin();
    for (const FragmentOutput& output : fragment.outputs) {
      const bool leaves = std::any_of(output.edges.begin(), output.edges.end(),
                                      [&](const FragmentOutput::Edge& edge) { return edge.device != fragment.device; });
      const auto spec = fragment.values.find(output.value);
      const bool known = spec != fragment.values.end() && spec->second.kind == ValueKind::kTensor &&
                         spec->second.sizes && spec->second.dtype != DType::kUndefined;
      if (!leaves || !known) continue;
      program->edges.push_back({static_cast<std::size_t>(place), dtype_size(spec->second.dtype), *spec->second.sizes});
    }
  }
  return program;
}

void Programs::refuse(const ActorId& client, RequestSeq request, Error error) {
  ProgramLoaded answer;
  answer.request = request;
  answer.error = std::move(error);
  context_.send(client, std::move(answer));
}

void Programs::unload(const ActorId& client, const ContentHash& hash) {
  if (Program* program = find(client, hash)) release(*program, client, 1);
}

void Programs::client_lost(const ActorId& client) {
  for (auto& [hash, program] : programs_) {
    auto& waiters = program->waiters;
    waiters.erase(std::remove_if(waiters.begin(), waiters.end(),
                                 [&](const Program::Waiter& waiter) { return waiter.client == client; }),
                  waiters.end());
    if (const auto user = program->users.find(client); user != program->users.end()) {
      release(*program, client, user->second);
    }
  }
}

void Programs::release(Program& program, const ActorId& client, std::uint32_t count) {
  const auto user = program.users.find(client);
  if (user == program.users.end()) return;
  if (user->second > count) {
    user->second -= count;
    return;
  }
  program.users.erase(user);
  program.untold.erase(client);
  unsettled_.insert(program.hash);
}

Program* Programs::find(const ActorId& client, const ContentHash& hash) {
  const auto found = programs_.find(hash);
  if (found == programs_.end() || found->second->users.count(client) == 0) return nullptr;
  return found->second.get();
}

std::optional<Error> Programs::unreadable_results(const ClientMember& client, const Program& program) const {
  for (std::size_t i = 0; i < program.fragments.size(); ++i) {
    const Device& device = members_.device(program.fragments[i].device);
    // One without a GPU's number is not there now: who it is then is asked of the next one.
    if (!device.results_on_gpu_only || device.gpu.empty() || reads_device(client, device)) continue;
    const auto& outputs = program.plan.fragments[i].outputs;
    if (std::none_of(outputs.begin(), outputs.end(), [](const auto& output) { return output.to_client; })) continue;
    const std::string why = client.why_no_gpu.empty() ? "it has not asked for any" : client.why_no_gpu;
    return Error(ErrorCode::kUnsupported,
                 "results of device '" + device.name + "' stay on " + device.gpu + " (output_device: cuda_only), and " +
                     client.id.to_string() + " cannot open its memory" + (client.gpus.empty() ? ": " + why : ""),
                 "set output_device to cuda or cpu, or give the client that GPU (CUDA_VISIBLE_DEVICES)");
  }
  return std::nullopt;
}

// -- devices ----------------------------------------------------------------------------------------------------------

void Programs::send_load(Program& program, std::uint32_t fragment) {
  FragmentRecord& record = program.fragments[fragment];
  LoadFragment order;
  order.fragment = program.plan.fragments[fragment];
  std::set<DeviceIndex> peers;
  for (const FragmentOutput& output : order.fragment.outputs) {
    for (const FragmentOutput::Edge& edge : output.edges) peers.insert(program.fragments[edge.fragment].device);
  }
  for (DeviceIndex peer : peers) {
    // One that has not joined yet is told of by PeerMoved when it does, before any run needs it.
    const Device& device = members_.device(peer);
    if (device.joined) order.peers.push_back({device.id, device.endpoint});
  }
  record.state = FragmentState::kLoading;
  record.error.reset();
  ++record.answers_due;
  context_.send(members_.device(record.device).id, std::move(order));
}

void Programs::send_loads(Program& program, DeviceIndex device) {
  for (std::uint32_t i = 0; i < program.fragments.size(); ++i) {
    if (program.fragments[i].device == device) send_load(program, i);
  }
}

void Programs::device_joined(DeviceIndex device) {
  const Device& member = members_.device(device);
  for (const Device& other : members_.devices()) {
    if (!other.joined || other.name == member.name) continue;
    context_.send(other.id, PeerMoved{{member.id, member.endpoint}});
    // Those with memory of their own test the way to each other, in both directions.
    if (other.own_memory && member.own_memory) context_.send(member.id, PeerMoved{{other.id, other.endpoint}});
  }
  for (auto& [hash, program] : programs_) {
    program->to_reset.erase(device);  // it starts from the initial values anyway
    send_loads(*program, device);
  }
}

void Programs::fragment_loaded(const ActorId& from, FragmentLoaded answer) {
  const auto device = members_.joined_device(from);
  const auto found = programs_.find(answer.program);
  if (!device || found == programs_.end() || answer.fragment >= found->second->fragments.size()) return;
  Program& program = *found->second;
  FragmentRecord& record = program.fragments[answer.fragment];
  if (record.device != *device || record.answers_due == 0) return;
  --record.answers_due;
  if (record.answers_due > 0) return;  // an older order; the newest one decides
  if (answer.error) {
    context_.log(log::Level::kError, "fragment_not_loaded", from.to_string() + ": " + answer.error->message);
    record.state = FragmentState::kBroken;
    record.error = std::move(answer.error);
  } else {
    record.state = FragmentState::kLoaded;
    PlannedFragment& summary = program.plan.summary[answer.fragment];
    summary.pure = answer.pure;
    summary.random = answer.random;
    if (answer.constant_bytes != 0) summary.constant_bytes = answer.constant_bytes;
    if (answer.peak_bytes != 0) summary.peak_bytes = answer.peak_bytes;
  }
  answer_if_complete(program);
}

void Programs::load_refused(DeviceIndex device, const LoadFragment& order, Error why) {
  FragmentLoaded answer;
  answer.program = order.fragment.program;
  answer.fragment = order.fragment.index;
  answer.error = std::move(why);
  fragment_loaded(members_.device(device).id, std::move(answer));
}

void Programs::answer_if_complete(Program& program) {
  if (program.waiters.empty()) return;
  std::vector<Error> findings;
  for (const FragmentRecord& record : program.fragments) {
    if (record.state == FragmentState::kAbsent || record.state == FragmentState::kLoading) return;
    if (record.state == FragmentState::kBroken) findings.push_back(*record.error);
  }
  if (findings.empty()) {
    program.loaded_once = true;
    answer_waiters(program, std::nullopt);
    return;
  }
  const std::string message =
      quoted(program) + " cannot be loaded: " + std::to_string(findings.size()) + " of its fragments were refused";
  answer_waiters(program, one_error(std::move(findings), ErrorCode::kBadGraph, message));
}

void Programs::answer_waiters(Program& program, const std::optional<Error>& error) {
  for (const Program::Waiter& waiter : std::exchange(program.waiters, {})) {
    ProgramLoaded answer;
    answer.request = waiter.request;
    answer.error = error;
    if (error) {
      release(program, waiter.client, 1);
    } else {
      answer.program = program.hash;
      answer.plan = program.plan.summary;
    }
    context_.send(waiter.client, std::move(answer));
  }
}

void Programs::device_lost(const DeviceLoss& loss) {
  for (auto& [hash, program] : programs_) {
    bool used = false;
    bool was_loading = false;
    bool was_loaded = false;
    for (FragmentRecord& record : program->fragments) {
      if (record.device != loss.device) continue;
      used = true;
      was_loading = was_loading || record.state == FragmentState::kLoading;
      was_loaded = was_loaded || record.state == FragmentState::kLoaded;
      record.state = FragmentState::kAbsent;
      record.answers_due = 0;
      record.error.reset();
    }
    if (was_loaded && program->loaded_once && program->has_state_on(loss.device)) lose_state(*program, loss);
    if (program->waiters.empty() || !used || !(was_loading || loss.failed)) continue;
    Error error = loss.error;
    error.message += " while " + quoted(*program) + " was loaded on it";
    answer_waiters(*program, error);
    unsettled_.insert(hash);
  }
}

// -- states -----------------------------------------------------------------------------------------------------------

void Programs::lose_state(Program& program, const DeviceLoss& loss) {
  const std::vector<std::string> there = program.state_names(loss.device);
  const bool others = program.state_names().size() > there.size();
  Error error(ErrorCode::kStateLost,
              "the state of " + quoted(program) + " was lost with " + loss.who.to_string() + ": " + joined(there) +
                  (others ? ", and with it all other states of the program," : "") +
                  " starts from the initial value again",
              "this request did not run; submit again to go on from the initial values");
  error.actor = loss.who.to_string();
  error.causes.push_back(loss.error);
  ++context_.counters.states_lost;
  context_.log(log::Level::kWarning, "state_lost", error.message);
  for (const auto& [client, count] : program.users) {
    program.untold.insert(client);
    context_.send(client, ActorEvent{loss.who, "state_lost", error});
  }
  program.state_loss = std::move(error);
  // Half of a program's state new and half old would be worse than all of it new.
  for (DeviceIndex other : program.devices) {
    if (other != loss.device && program.has_state_on(other)) program.to_reset.insert(other);
  }
  unsettled_.insert(program.hash);
}

std::optional<Error> Programs::take_state_loss(Program& program, const ActorId& client) {
  if (program.untold.erase(client) == 0) return std::nullopt;
  return program.state_loss;
}

void Programs::reset_states(Program& program) {
  if (program.runs_sent != 0) return;
  for (DeviceIndex device : std::exchange(program.to_reset, {})) {
    if (!members_.device(device).joined) continue;  // it loads everything anew when it joins
    context_.send(members_.device(device).id, UnloadFragments{program.hash});
    send_loads(program, device);
  }
}

// -- ends -------------------------------------------------------------------------------------------------------------

void Programs::run_withdrawn(Program& program) {
  if (--program.runs_sent == 0) unsettled_.insert(program.hash);
}

void Programs::run_ended(Program& program, bool was_sent) {
  --program.runs;
  if (was_sent) --program.runs_sent;
  if (program.runs == 0 || program.runs_sent == 0) unsettled_.insert(program.hash);
}

void Programs::settle(TimePoint now) {
  for (const ContentHash& hash : std::exchange(unsettled_, {})) {
    const auto found = programs_.find(hash);
    if (found == programs_.end()) continue;
    Program& program = *found->second;
    expire_waiters(program, now);
    reset_states(program);
    if (!program.waiters.empty() || !program.to_reset.empty()) unsettled_.insert(hash);
    erase_if_unused(hash);
  }
}

void Programs::expire_waiters(Program& program, TimePoint now) {
  std::vector<Program::Waiter> left;
  for (const Program::Waiter& waiter : std::exchange(program.waiters, {})) {
    if (waiter.deadline > now) {
      left.push_back(waiter);
      continue;
    }
    refuse(waiter.client, waiter.request,
           Error(ErrorCode::kDeadlineExceeded, quoted(program) + " was not loaded in time: " + missing_answers(program),
                 "give a longer deadline, or see `callboard status`"));
    release(program, waiter.client, 1);
  }
  program.waiters = std::move(left);
}

std::string Programs::missing_answers(const Program& program) const {
  std::string text;
  for (DeviceIndex index : program.devices) {
    const Device& device = members_.device(index);
    const bool waits = std::any_of(
        program.fragments.begin(), program.fragments.end(),
        [&](const FragmentRecord& record) { return record.device == index && record.state != FragmentState::kLoaded; });
    if (!waits) continue;
    text += (text.empty() ? "'" : ", '") + device.name + "' is " +
            (device.joined ? "still loading" : std::string(device_state_name(device.state)));
  }
  return text;
}

void Programs::erase_if_unused(const ContentHash& hash) {
  const auto found = programs_.find(hash);
  Program& program = *found->second;
  if (!program.users.empty() || !program.waiters.empty() || program.runs != 0) return;
  for (DeviceIndex index : program.devices) {
    const Device& device = members_.device(index);
    const bool there = std::any_of(
        program.fragments.begin(), program.fragments.end(),
        [&](const FragmentRecord& record) { return record.device == index && record.state != FragmentState::kAbsent; });
    if (there && device.joined) context_.send(device.id, UnloadFragments{hash});
  }
  context_.log(log::Level::kInfo, "program_unloaded", quoted(program));
  programs_.erase(found);
  unsettled_.erase(hash);
}

std::size_t Programs::loading_on(DeviceIndex device) const {
  std::size_t count = 0;
  for (const auto& [hash, program] : programs_) {
    for (const FragmentRecord& record : program->fragments) {
      if (record.device == device && record.state == FragmentState::kLoading) ++count;
    }
  }
  return count;
}

TimePoint Programs::next_due() const {
  TimePoint next = kNever;
  for (const ContentHash& hash : unsettled_) {
    const auto found = programs_.find(hash);
    if (found == programs_.end()) continue;
    for (const Program::Waiter& waiter : found->second->waiters) next = std::min(next, waiter.deadline);
  }
  return next;
}

}  // namespace callboard::actors
