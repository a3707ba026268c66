#include "actors/coordinator/status.h"

#include <nlohmann/json.hpp>

#include "messages/codec.h"
#include "messages/stage_time.h"

namespace callboard::actors {
namespace {

using nlohmann::json;

std::int64_t millis(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

/// What a peer sent may not be UTF-8 or JSON; it must not make us throw.
std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json description_of(const std::string& text) {
  json parsed = json::parse(text, nullptr, false);
  return parsed.is_object() ? parsed : json::object();
}

json transports_json(const Device& device) {
  json list = json::array();
  for (const auto& [reader, chosen] : device.transports) {
    list.push_back({{"reader", reader},
                    {"incarnation", chosen.reader.incarnation},
                    {"path", transport_path_name(chosen.path)},
                    {"reason", chosen.reason}});
  }
  return list;
}

json device_json(const Device& device, TimePoint now) {
  json result = {{"name", device.name},
                 {"role", "device"},
                 {"state", device_state_name(device.state)},
                 {"incarnation", device.id.incarnation},
                 {"pid", device.pid},
                 {"memory_limit", device.memory_limit},
                 {"starts", device.starts},
                 {"in_flight", device.in_flight},
                 {"held_bytes", device.held_bytes},
                 {"description", description_of(device.description)}};
  if (device.joined) {
    result["silent_ms"] = millis(now - device.last_seen);
    result["queued"] = device.beat.queued;
    result["running"] = device.beat.running;
    result["finished"] = device.beat.finished;
    result["memory_bytes"] = device.beat.memory_bytes;
  }
  if (device.own_memory) result["transports"] = transports_json(device);
  if (device.last_exit) {
    result["last_exit"] = {{"message", device.last_exit->message},
                           {"hint", device.last_exit->hint},
                           {"log_tail", device.last_exit->detail}};
  }
  return result;
}

json actors(const StatusView& view) {
  json list = json::array();
  list.push_back({{"name", view.context.options.self.name},
                  {"role", "coordinator"},
                  {"state", view.context.stopping ? "stopping" : "ready"},
                  {"incarnation", view.context.options.self.incarnation}});
  if (const auto& node = view.members.node()) {
    list.push_back({{"name", node->name}, {"role", "node"}, {"state", "ready"}, {"incarnation", node->incarnation}});
  }
  for (const Device& device : view.members.devices()) list.push_back(device_json(device, view.now));
  return list;
}

json clients(const StatusView& view) {
  json list = json::array();
  for (const auto& [id, client] : view.members.clients()) {
    list.push_back({{"name", id.to_string()},
                    {"pid", client.pid},
                    {"requests", client.requests.size()},
                    {"description", description_of(client.description)}});
  }
  return list;
}

const char* fragment_state(FragmentState state) {
  switch (state) {
    case FragmentState::kAbsent:
      return "absent";
    case FragmentState::kLoading:
      return "loading";
    case FragmentState::kLoaded:
      return "loaded";
    case FragmentState::kBroken:
      return "broken";
  }
  return "unknown";
}

json edges_json(const std::vector<PlannedEdge>& edges) {
  json list = json::array();
  // Where sizes depend on data or symbols the least is said, as what it is.
  for (const PlannedEdge& edge : edges) list.push_back({{"to", edge.to}, {"bytes", edge.bytes}, {"exact", edge.exact}});
  return list;
}

json program_json(const Program& program) {
  json fragments = json::array();
  for (std::size_t i = 0; i < program.fragments.size(); ++i) {
    const PlannedFragment& plan = program.plan.summary[i];
    json entry = {{"index", plan.index},
                  {"device", plan.device},
                  {"state", fragment_state(program.fragments[i].state)},
                  {"node_ranges", plan.node_ranges},
                  {"modules", plan.modules},
                  {"cost", plan.cost},
                  {"constant_bytes", plan.constant_bytes},
                  {"edge_bytes", plan.edge_bytes},
                  {"peak_bytes", plan.peak_bytes},
                  {"pure", plan.pure},
                  {"random", plan.random},
                  {"edges", edges_json(program.plan.edges[i])},
                  {"time_ns", stage_time_ns(plan.cost, program.costs)},
                  {"time_source", stage_time_source(program.costs)},
                  {"runs", program.fragments[i].runs}};
    const FragmentRecord& record = program.fragments[i];
    entry["mean_run_ns"] = record.runs == 0 ? json() : json(record.run_ns / static_cast<std::int64_t>(record.runs));
    if (program.fragments[i].error) entry["error"] = program.fragments[i].error->to_string();
    fragments.push_back(std::move(entry));
  }
  json users = json::object();
  for (const auto& [client, count] : program.users) users[client.to_string()] = count;
  return {{"program", program.hash.hex()},
          {"name", program.name},
          {"usable", program.usable()},
          {"costs", program.costs},
          {"states", program.state_names()},
          {"requests", program.runs},
          {"users", users},
          {"fragments", fragments}};
}

const char* phase_name(RunPhase phase) {
  switch (phase) {
    case RunPhase::kWaiting:
      return "waiting";
    case RunPhase::kRunning:
      return "running";
    case RunPhase::kRetrying:
      return "retrying";
    case RunPhase::kEnding:
      return "ending";
  }
  return "unknown";
}

json run_json(const Run& run, TimePoint now) {
  json on = json::array();
  for (std::size_t i = 0; i < run.slots.size(); ++i) {
    const char* state = run.slots[i].state == SlotState::kFinished  ? "finished"
                        : run.slots[i].state == SlotState::kPending ? "pending"
                                                                    : "lost";
    on.push_back({{"fragment", i}, {"actor", run.slots[i].sent_to.to_string()}, {"state", state}});
  }
  return {{"client", run.client.to_string()},
          {"request", run.request},
          {"run", run.id},
          {"attempt", run.attempt},
          {"program", run.program->name},
          {"state", phase_name(run.phase)},
          {"age_ms", millis(now - run.accepted)},
          {"left_ms", millis(run.deadline - now)},
          {"fragments", on}};
}

}  // namespace

std::string status_json(const StatusView& view) {
  const CoreCounters& c = view.context.counters;
  const CoordinatorOptions& options = view.context.options;
  const std::size_t waiting = view.runs.waiting();
  json programs = json::array();
  for (const auto& [hash, program] : view.programs.all()) {
    programs.push_back({{"program", hash.hex()}, {"name", program->name}, {"usable", program->usable()}});
  }
  return text_of({{"name", options.cluster},
                  {"epoch", options.epoch},
                  {"ready", view.members.all_ready()},
                  {"stopping", view.context.stopping},
                  {"actors", actors(view)},
                  {"programs", programs},
                  {"requests", {{"waiting", waiting}, {"running", view.runs.all().size() - waiting}}},
                  {"clients", clients(view)},
                  {"counters",
                   {{"accepted", c.accepted},
                    {"rejected", c.rejected},
                    {"ok", c.ok},
                    {"failed", c.failed},
                    {"cancelled", c.cancelled},
                    {"expired", c.expired},
                    {"retried", c.retried},
                    {"fragments_sent", c.fragments_sent},
                    {"stale_results", c.stale_results},
                    {"device_losses", c.device_losses},
                    {"states_lost", c.states_lost}}}});
}

std::string actors_json(const StatusView& view) {
  return text_of({{"actors", actors(view)}, {"clients", clients(view)}});
}

std::string programs_json(const StatusView& view, const std::string& only) {
  json list = json::array();
  for (const auto& [hash, program] : view.programs.all()) {
    if (only.empty() || hash.hex() == only) list.push_back(program_json(*program));
  }
  return text_of({{"programs", list}});
}

std::string requests_json(const StatusView& view) {
  constexpr std::size_t kShown = 1'000;
  json list = json::array();
  for (const auto& [id, run] : view.runs.all()) {
    if (list.size() >= kShown) break;
    list.push_back(run_json(run, view.now));
  }
  return text_of({{"requests", list}, {"count", view.runs.all().size()}});
}

std::string quarantine_json(const StatusView& view) {
  json list = json::array();
  for (const auto& [hash, incident] : view.runs.quarantine().all()) {
    list.push_back({{"program", hash.hex()},
                    {"name", incident.name},
                    {"devices", incident.devices},
                    {"kills", incident.kills},
                    {"quarantined", incident.quarantined()},
                    {"last", incident.last.message}});
  }
  return text_of({{"quarantine", list}});
}

}  // namespace callboard::actors
