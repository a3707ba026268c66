#include "actors/client/profile.h"

#include <algorithm>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "messages/limits.h"
#include "messages/stage_time.h"

namespace callboard::actors {
namespace {

using nlohmann::json;

constexpr int kProfileRunsMax = 32;
constexpr Duration kAskWhileRunning = std::chrono::milliseconds(50);

/// Different for each profile run: a program that is profiled shares its state with no other one.
std::string unique_mark() {
  std::random_device random;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string mark;
  for (int i = 0; i < 32; ++i) mark += kDigits[random() % 16];
  return mark;
}

/// One profile, with the time that is left for it.
class Profile {
 public:
  Profile(Client& client, const ProfileOptions& options)
      : client_(client),
        options_(options),
        until_(after(Clock::now(), options.deadline.value_or(limits::kRequestDeadline))) {}

  Result<std::vector<std::string>> devices(const Placement& placement) {
    std::vector<std::string> names = placement.devices;
    for (const auto& rule : placement.rules) {
      if (std::find(names.begin(), names.end(), rule.device) == names.end()) names.push_back(rule.device);
    }
    if (!names.empty()) return names;
    CALLBOARD_ASSIGN(const json actors, ask("actors", json::object()));
    for (const json& actor : actors.value("actors", json::array())) {
      if (actor.value("role", "") == "device") names.push_back(actor.value("name", ""));
    }
    if (names.empty()) return fail(ErrorCode::kBadPlacement, "the cluster has no device to profile the program on");
    return names;
  }

  Result<std::shared_ptr<Program>> load(const ProgramGraph& graph, std::span<const ConstantBytes> constants,
                                        const std::string& device) {
    Placement whole;
    whole.devices = {device};
    return client_.load(graph, constants, std::move(whole), left());
  }

  Status run(Program& program, std::span<const ClientValue> inputs) {
    SubmitOptions submit;
    submit.deadline = left();
    submit.interrupted = options_.interrupted;
    CALLBOARD_ASSIGN(const std::shared_ptr<Future> future, program.submit(inputs, submit));
    while (!future->wait_for(options_.interrupted ? kAskWhileRunning : left())) {
      if (!options_.interrupted || !options_.interrupted()) continue;
      future->cancel();
      return fail(ErrorCode::kCancelled, "the profile run was interrupted");
    }
    if (auto result = future->get(); !result) return fail(std::move(result).error());
    return {};
  }

  Status switch_timing(const Program& program, const std::string& device, bool on) {
    CALLBOARD_TRY(ask_device(device, {{"program", program.id().hex()}, {"on", on}}));
    return {};
  }

  Result<std::vector<double>> times(const Program& program, const std::string& device) {
    std::vector<double> ns;
    const std::size_t nodes = program.graph().nodes.size();
    while (ns.size() < nodes) {
      CALLBOARD_ASSIGN(const json part, ask_device(device, {{"program", program.id().hex()}, {"take", ns.size()}}));
      const json list = part.value("times_ns", json::array());
      for (const json& time : list) ns.push_back(std::max(time.is_number() ? time.get<double>() : 0.0, 1.0));
      // The last nodes may not have run by themselves (they are part of another kernel, or make nothing).
      if (list.empty()) ns.resize(nodes, 1.0);
    }
    ns.resize(nodes);
    return ns;
  }

 private:
  Duration left() const { return std::max<Duration>(until_ - Clock::now(), std::chrono::milliseconds(1)); }

  Result<json> ask(const std::string& operation, const json& arguments) {
    CALLBOARD_ASSIGN(const std::string answer, client_.operation(operation, arguments.dump(), left()));
    json parsed = json::parse(answer, nullptr, false);
    if (!parsed.is_object()) return fail(ErrorCode::kInternal, "the answer to '" + operation + "' is no JSON object");
    return parsed;
  }

  Result<json> ask_device(const std::string& device, const json& arguments) {
    return ask("device_query", {{"device", device}, {"name", "profile"}, {"arguments", arguments.dump()}});
  }

  Client& client_;
  const ProfileOptions& options_;
  const TimePoint until_;
};

NodeCosts not_measured(const std::string& why) { return {{}, "estimated: " + why}; }

Result<NodeCosts> profile_on(Profile& profile, Program& program, const std::string& device,
                             std::span<const ClientValue> inputs, int runs) {
  const auto timed = [&]() -> Status {
    CALLBOARD_TRY(profile.run(program, inputs));
    CALLBOARD_TRY(profile.switch_timing(program, device, true));
    for (int i = 0; i < runs; ++i) CALLBOARD_TRY(profile.run(program, inputs));
    return {};
  };
  if (Status done = timed(); !done) {
    if (done.error().code == ErrorCode::kOutOfMemory) {
      return not_measured("the profile run on '" + device + "' found no memory: " + done.error().message);
    }
    Error error = std::move(done).error();
    error.message = "the profile run on '" + device + "' failed: " + error.message;
    return fail(std::move(error));
  }
  CALLBOARD_ASSIGN(std::vector<double> ns, profile.times(program, device));
  CALLBOARD_TRY(profile.switch_timing(program, device, false));
  return NodeCosts{std::move(ns), std::string(kMeasured) + " on " + device + ", median of " + std::to_string(runs) +
                                      (runs == 1 ? " run" : " runs")};
}

}  // namespace

Result<NodeCosts> profile_nodes(Client& client, const ProgramGraph& graph, std::span<const ConstantBytes> constants,
                                const Placement& placement, std::span<const ClientValue> inputs,
                                const ProfileOptions& options) {
  if (options.runs < 1 || options.runs > kProfileRunsMax) {
    return fail(ErrorCode::kBadArgument, "a profile of " + std::to_string(options.runs) + " runs was asked for, 1 to " +
                                             std::to_string(kProfileRunsMax) + " are allowed");
  }
  Profile profile(client, options);
  CALLBOARD_ASSIGN(const std::vector<std::string> devices, profile.devices(placement));
  ProgramGraph alone = graph;
  alone.annotations["callboard.profile"] = unique_mark();
  std::optional<Error> too_large;
  for (const std::string& device : devices) {
    auto program = profile.load(alone, constants, device);
    if (program) return profile_on(profile, **program, device, inputs, options.runs);
    if (program.error().code != ErrorCode::kDoesNotFit) return fail(std::move(program).error());
    too_large = std::move(program).error();
  }
  return not_measured("the program fits no device whole: " + too_large->message);
}

void set_costs(ProgramGraph& graph, const NodeCosts& costs) {
  for (std::size_t i = 0; i < costs.ns.size() && i < graph.nodes.size(); ++i) graph.nodes[i].cost = costs.ns[i];
  graph.annotations[std::string(kCostsAnnotation)] = costs.note;
}

}  // namespace callboard::actors
