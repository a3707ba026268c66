#include "actors/coordinator/operation_desk.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <nlohmann/json.hpp>

#include "actors/coordinator/status.h"
#include "actors/coordinator/text.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

using nlohmann::json;

constexpr std::size_t kPendingMax = 256;
constexpr Duration kAnswerWait = std::chrono::seconds(10);  // for a device's answer
constexpr std::int64_t kReadyWaitMs = 60'000;

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

log::Level level_of(const std::string& name) {
  if (name == "trace") return log::Level::kTrace;
  if (name == "debug") return log::Level::kDebug;
  if (name == "warning") return log::Level::kWarning;
  if (name == "error") return log::Level::kError;
  return log::Level::kInfo;
}

}  // namespace

void OperationDesk::operation(const ActorId& client, const Operation& order, TimePoint now) {
  auto call = parse_operation(order.name, order.arguments);
  if (!call) return answer(client, order.request, fail(std::move(call).error()));
  auto result = perform(client, order.request, *call, now);
  if (!result) return answer(client, order.request, fail(std::move(result).error()));
  if (*result) answer(client, order.request, std::move(**result));
}

Result<std::optional<std::string>> OperationDesk::perform(const ActorId& client, RequestSeq request,
                                                          const OperationCall& call, TimePoint now) {
  const StatusView view{context_, members_, programs_, runs_, now};
  Question question;
  question.client = client;
  question.request = request;
  question.deadline = after(now, kAnswerWait);
  const bool waits = call.id() == OperationId::kWaitReady || call.id() == OperationId::kTrace ||
                     call.id() == OperationId::kDeviceQuery;
  if (waits && pending() >= kPendingMax) {
    return fail(ErrorCode::kOverloaded, std::to_string(pending()) + " operations wait for an answer already");
  }
  switch (call.id()) {
    case OperationId::kStatus:
      return std::optional(status_json(view));
    case OperationId::kActors:
      return std::optional(actors_json(view));
    case OperationId::kPrograms:
      return std::optional(programs_json(view, call.text("program")));
    case OperationId::kRequests:
      return std::optional(requests_json(view));
    case OperationId::kCancel:
      return cancel(call);
    case OperationId::kRestartActor:
      return restart_actor(call);
    case OperationId::kShutdown:
      return shutdown(call);
    case OperationId::kTrace:
      return trace(std::move(question), call);
    case OperationId::kDeviceQuery:
      return device_query(std::move(question), call);
    case OperationId::kQuarantine:
      return std::optional(quarantine_json(view));
    case OperationId::kQuarantineRelease:
      return quarantine_release(call);
    case OperationId::kLogLevel:
      context_.out.push_back(CoordinatorCore::SetLogLevel{level_of(call.text("level"))});
      return std::optional(text_of({{"level", call.text("level")}}));
    case OperationId::kWaitReady: {
      const auto wait = std::chrono::milliseconds(
          std::clamp<std::int64_t>(call.integer("timeout_ms", kReadyWaitMs), 0, limits::kRequestDeadlineMax.count()));
      waits_.push_back({client, request, after(now, wait)});
      return std::optional<std::string>();
    }
  }
  return fail(ErrorCode::kInternal, "an operation of the table has no handler");
}

Result<DeviceIndex> OperationDesk::named_device(const std::string& name) const {
  if (const auto index = members_.find_device(name)) return *index;
  std::vector<std::string> names;
  for (const Device& device : members_.devices()) names.push_back(device.name);
  return fail(ErrorCode::kUsage, "this cluster has no device '" + name + "'", nearest_hint(name, names));
}

Result<std::optional<std::string>> OperationDesk::restart_actor(const OperationCall& call) {
  CALLBOARD_ASSIGN(const DeviceIndex index, named_device(call.text("name")));
  const Device& device = members_.device(index);
  if (!members_.node()) return fail(ErrorCode::kActorUnavailable, "no node actor is connected that could restart it");
  // Incarnation 0 is "the current one": also one that is not started again by itself.
  const ActorId who = device.joined ? device.id : ActorId{device.name, 0};
  context_.send(*members_.node(), StopActor{who, call.flag("kill"), true});
  return std::optional(text_of({{"restarting", device.name}}));
}

Result<std::optional<std::string>> OperationDesk::shutdown(const OperationCall& call) {
  if (!members_.node())
    return fail(ErrorCode::kActorUnavailable, "no node actor is connected that could end the cluster");
  const std::string reason = call.text("reason", "asked by a client");
  context_.stopping = true;
  runs_.refuse_waiting(Error(ErrorCode::kActorUnavailable, "the cluster is shutting down"));
  context_.log(log::Level::kInfo, "shutdown", reason);
  context_.send(*members_.node(), ShutDown{reason, call.flag("force")});
  return std::optional(text_of({{"stopping", true}}));
}

Result<std::optional<std::string>> OperationDesk::cancel(const OperationCall& call) {
  CALLBOARD_ASSIGN(const ActorId who, ActorId::parse(call.text("client")));
  const ClientMember* client = members_.find_client(who);
  const auto request = static_cast<RequestSeq>(call.integer("request", 0));
  if (client == nullptr || client->requests.count(request) == 0) {
    return fail(ErrorCode::kUsage, "there is no request " + std::to_string(request) + " of client " + who.to_string(),
                "it may have ended already; `callboard ps` shows what waits and runs");
  }
  runs_.cancel(who, request);
  return std::optional(text_of({{"cancelled", true}}));
}

Result<std::optional<std::string>> OperationDesk::quarantine_release(const OperationCall& call) {
  std::string wanted = call.text("program");
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return std::tolower(c); });
  if (wanted.empty()) return fail(ErrorCode::kUsage, "a program's hash is needed", "`callboard quarantine` lists them");
  std::vector<ContentHash> matching;
  std::string names;
  for (const auto& [hash, incident] : runs_.quarantine().all()) {
    if (!incident.quarantined() || hash.hex().rfind(wanted, 0) != 0) continue;
    matching.push_back(hash);
    names += (names.empty() ? "" : ", ") + hash.hex().substr(0, 12) + " ('" + incident.name + "')";
  }
  if (matching.empty()) {
    return fail(ErrorCode::kUsage, "no quarantined program's hash begins with '" + wanted + "'",
                "`callboard quarantine` lists them");
  }
  if (matching.size() > 1) {
    return fail(ErrorCode::kUsage,
                std::to_string(matching.size()) + " quarantined programs' hashes begin with '" + wanted + "': " + names,
                "give more of one's hash");
  }
  const ContentHash hash = matching.front();
  runs_.quarantine().release(hash);
  context_.log(log::Level::kInfo, "quarantine_released", hash.hex());
  return std::optional(text_of({{"released", hash.hex()}}));
}

// -- questions to devices ---------------------------------------------------------------------------------------------

void OperationDesk::ask(Question& question, DeviceIndex device, const std::string& name, const std::string& arguments) {
  const std::uint64_t query = next_number_++;
  question.asked[query] = members_.device(device).id;
  context_.send(members_.device(device).id, DeviceQuery{query, name, arguments});
}

Result<std::optional<std::string>> OperationDesk::trace(Question question, const OperationCall& call) {
  const std::string action = call.text("action");
  // The answers of all devices travel in one text; what does not fit stays on the devices for the next call.
  const std::size_t share = limits::kStringBytesMax / 2 / std::max<std::size_t>(members_.devices().size(), 1);
  const std::string arguments = action == "take" ? text_of({{"take", share}}) : text_of({{"on", action == "on"}});
  question.merge_trace = true;
  if (call.has("device")) {
    CALLBOARD_ASSIGN(const DeviceIndex index, named_device(call.text("device")));
    if (!members_.device(index).joined) {
      return fail(ErrorCode::kActorUnavailable, "device '" + members_.device(index).name + "' is " +
                                                    std::string(device_state_name(members_.device(index).state)));
    }
    ask(question, index, "trace", arguments);
  } else {
    for (DeviceIndex index = 0; index < members_.devices().size(); ++index) {
      if (members_.device(index).joined) ask(question, index, "trace", arguments);
    }
    if (question.asked.empty()) return fail(ErrorCode::kActorUnavailable, "no device is connected");
  }
  const std::uint64_t number = next_number_++;
  for (const auto& [query, who] : question.asked) question_of_query_[query] = number;
  questions_.emplace(number, std::move(question));
  return std::optional<std::string>();
}

Result<std::optional<std::string>> OperationDesk::device_query(Question question, const OperationCall& call) {
  CALLBOARD_ASSIGN(const DeviceIndex index, named_device(call.text("device")));
  if (!members_.device(index).joined) {
    return fail(ErrorCode::kActorUnavailable, "device '" + members_.device(index).name + "' is " +
                                                  std::string(device_state_name(members_.device(index).state)));
  }
  ask(question, index, call.text("name"), call.text("arguments", "{}"));
  const std::uint64_t number = next_number_++;
  question_of_query_[question.asked.begin()->first] = number;
  questions_.emplace(number, std::move(question));
  return std::optional<std::string>();
}

void OperationDesk::device_reply(const ActorId& from, DeviceReply reply) {
  const auto number = question_of_query_.find(reply.query);
  if (number == question_of_query_.end()) return;
  Question& question = questions_.at(number->second);
  const auto asked = question.asked.find(reply.query);
  if (asked == question.asked.end() || asked->second != from) return;
  if (reply.error) {
    question.errors.push_back(std::move(*reply.error));
  } else {
    question.results[from.name] = std::move(reply.result);
  }
  question.asked.erase(asked);
  const std::uint64_t id = number->second;
  question_of_query_.erase(number);
  if (question.asked.empty()) finish(id);
}

void OperationDesk::device_lost(const ActorId& who, const Error& why) {
  std::vector<std::uint64_t> queries;
  for (const auto& [number, question] : questions_) {
    for (const auto& [query, asked] : question.asked) {
      if (asked == who) queries.push_back(query);
    }
  }
  for (std::uint64_t query : queries) device_reply(who, DeviceReply{query, why, {}});
}

void OperationDesk::finish(std::uint64_t number) {
  const auto found = questions_.find(number);
  const Question question = std::move(found->second);
  for (const auto& [query, who] : question.asked) question_of_query_.erase(query);
  questions_.erase(found);
  answer(question.client, question.request, merged(question));
}

Result<std::string> OperationDesk::merged(const Question& question) {
  if (!question.errors.empty()) {
    return fail(one_error(question.errors, ErrorCode::kActorUnavailable, "several devices did not answer"));
  }
  if (!question.merge_trace) return question.results.begin()->second;
  json events = json::array();
  bool more = false;
  for (const auto& [device, result] : question.results) {
    json parsed = json::parse(result, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("events")) continue;
    for (json& event : parsed["events"]) events.push_back(std::move(event));
    more = more || (parsed.contains("more") && parsed["more"].is_boolean() && parsed["more"].get<bool>());
  }
  return text_of({{"traceEvents", events}, {"more", more}});
}

// -- ends -------------------------------------------------------------------------------------------------------------

void OperationDesk::answer(const ActorId& client, RequestSeq request, Result<std::string> result) {
  OperationResult message;
  message.request = request;
  if (result) {
    message.result = std::move(*result);
  } else {
    message.error = std::move(result).error();
  }
  context_.send(client, std::move(message));
}

void OperationDesk::client_lost(const ActorId& client) {
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), [&](const ReadyWait& w) { return w.client == client; }),
               waits_.end());
  for (auto it = questions_.begin(); it != questions_.end();) {
    if (it->second.client != client) {
      ++it;
      continue;
    }
    for (const auto& [query, who] : it->second.asked) question_of_query_.erase(query);
    it = questions_.erase(it);
  }
}

void OperationDesk::settle(TimePoint now) {
  const bool ready = members_.all_ready();
  std::string failed;
  std::string missing;
  std::vector<Error> ends;
  if (!waits_.empty()) {
    for (const Device& device : members_.devices()) {
      if (device.state == DeviceState::kReady) continue;
      std::string& list = device.state == DeviceState::kFailed ? failed : missing;
      list += (list.empty() ? "'" : ", '") + device.name + "' is " + std::string(device_state_name(device.state));
      if (!device.last_exit) continue;
      list += " (" + device.last_exit->message + ")";
      ends.push_back(*device.last_exit);
    }
  }
  const auto refusal = [&ends](ErrorCode code, std::string message) {
    Error error(code, std::move(message), "see `callboard logs`");
    error.causes = ends;
    return fail(std::move(error));
  };
  for (const ReadyWait& wait : std::exchange(waits_, {})) {
    if (ready) {
      answer(wait.client, wait.request, text_of({{"ready", true}}));
    } else if (!failed.empty()) {
      answer(wait.client, wait.request, refusal(ErrorCode::kStartFailed, failed));
    } else if (wait.deadline <= now) {
      answer(wait.client, wait.request, refusal(ErrorCode::kNotReady, "not ready in time: " + missing));
    } else {
      waits_.push_back(wait);
    }
  }
  std::vector<std::uint64_t> late;
  for (const auto& [number, question] : questions_) {
    if (question.deadline <= now) late.push_back(number);
  }
  for (std::uint64_t number : late) {
    Question& question = questions_.at(number);
    for (const auto& [query, who] : question.asked) {
      question.errors.emplace_back(ErrorCode::kDeadlineExceeded, who.to_string() + " did not answer in time");
    }
    finish(number);
  }
}

TimePoint OperationDesk::next_due() const {
  TimePoint next = kNever;
  for (const ReadyWait& wait : waits_) next = std::min(next, wait.deadline);
  for (const auto& [number, question] : questions_) next = std::min(next, question.deadline);
  return next;
}

}  // namespace callboard::actors
