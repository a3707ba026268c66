#include "actors/coordinator/members.h"

#include <algorithm>
#include <array>
#include <csignal>

#include <nlohmann/json.hpp>

#include "actors/coordinator/text.h"
#include "actors/core/crash_report.h"

namespace callboard::actors {
namespace {

constexpr std::uint64_t kEdgeShare = 4;  // of a device's memory, for values that wait for other devices
constexpr std::size_t kClientGpusMax = 64;

/// What a peer sent may be anything; then nothing is known of it.
nlohmann::json described(const std::string& description) {
  nlohmann::json parsed = nlohmann::json::parse(description, nullptr, false);
  return parsed.is_object() ? parsed : nlohmann::json::object();
}
std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// SIGKILL is never charged to what ran: the kernel's own choice when memory ends looks like a person's.
bool by_itself(const ActorExited& report) {
  if (report.stopped_by_us || sent_by_another(report.log_tail)) return false;
  if (!report.signalled) return true;  // os._exit(0) in a kernel is an end, too
  constexpr std::array kCrashes = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
  return std::find(kCrashes.begin(), kCrashes.end(), report.code) != kCrashes.end();
}

}  // namespace

std::string_view device_state_name(DeviceState state) {
  switch (state) {
    case DeviceState::kStarting:
      return "starting";
    case DeviceState::kLoading:
      return "loading";
    case DeviceState::kReady:
      return "ready";
    case DeviceState::kDown:
      return "down";
    case DeviceState::kFailed:
      return "failed";
  }
  return "unknown";
}

Members::Members(CoreContext& context) : context_(context) {
  for (const CoordinatorOptions::Device& option : context.options.devices) {
    by_name_[option.name] = static_cast<DeviceIndex>(devices_.size());
    Device device;
    device.name = option.name;
    device.memory_limit = option.memory_limit;
    device.own_memory = option.own_memory;
    device.results_on_gpu = option.results_on_gpu;
    device.results_on_gpu_only = option.results_on_gpu_only;
    device.id.name = option.name;
    const std::uint64_t share = option.memory_limit != 0 ? option.memory_limit / kEdgeShare : limits::kEdgeBytes;
    device.edge_bytes_max = context.options.edge_bytes != 0 ? context.options.edge_bytes : share;
    devices_.push_back(std::move(device));
  }
}

Status Members::admit(const Hello& hello) const {
  if (hello.role == Role::kDevice) {
    const auto index = find_device(hello.who.name);
    if (!index) {
      std::vector<std::string> names;
      for (const Device& device : devices_) names.push_back(device.name);
      return fail(ErrorCode::kUnknownPeer, "this cluster has no device '" + hello.who.name + "'",
                  nearest_hint(hello.who.name, names));
    }
    const Device& device = devices_[*index];
    if (hello.who.incarnation <= device.fenced || hello.who.incarnation < device.id.incarnation) {
      return fail(ErrorCode::kStaleIncarnation,
                  hello.who.to_string() + " is over: the coordinator has fenced '" + device.name + "' up to #" +
                      std::to_string(std::max(device.fenced, device.id.incarnation)),
                  "end this process; the node actor starts the next incarnation");
    }
    return {};
  }
  if (hello.role == Role::kClient) {
    if (context_.stopping) return fail(ErrorCode::kActorUnavailable, "the cluster is shutting down");
    if (clients_.count(hello.who) == 0 && clients_.size() >= context_.options.clients_max) {
      return fail(ErrorCode::kOverloaded,
                  "the cluster has " + std::to_string(clients_.size()) + " clients, as many as limits.clients allows",
                  "close clients that are done, or raise limits.clients in the cluster file");
    }
    return {};
  }
  if (hello.role == Role::kNode) {
    if (node_ && node_->name != hello.who.name) {
      return fail(ErrorCode::kUnexpectedMessage, "node actor " + node_->to_string() + " is connected already");
    }
    return {};
  }
  return fail(ErrorCode::kUnexpectedMessage, "a coordinator does not take another coordinator as peer");
}

std::optional<DeviceIndex> Members::find_device(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<DeviceIndex> Members::joined_device(const ActorId& who) const {
  const auto index = find_device(who.name);
  if (!index || !devices_[*index].joined || devices_[*index].id != who) return std::nullopt;
  return index;
}

std::optional<DeviceLoss> Members::device_joined(DeviceIndex index, const Hello& hello, TimePoint now) {
  Device& device = devices_[index];
  std::optional<DeviceLoss> loss;
  if (!device.ended && device.id != hello.who) {
    // The node actor never runs two incarnations of one device (SV-1): the one before has ended.
    loss = DeviceLoss{index, device.id,
                      Error(ErrorCode::kActorDied,
                            "device actor " + device.id.to_string() + " was replaced by " + hello.who.to_string()),
                      true, false, false};
    if (device.loss) loss->error.causes.push_back(*device.loss);
    context_.forget(device.id);
    ++context_.counters.device_losses;
  }
  device.id = hello.who;
  device.fenced = std::max(device.fenced, hello.who.incarnation - 1);
  device.joined = true;
  device.ended = false;
  device.state = DeviceState::kLoading;
  device.pid = hello.pid;
  device.endpoint = hello.endpoint;
  device.description = hello.description;
  device.gpu = text_in(described(hello.description), "gpu");
  device.beat = Beat{};
  device.last_seen = now;
  device.report_due = kNever;
  device.loss.reset();
  device.transports.clear();
  device.in_flight = 0;
  device.held_bytes = 0;
  ++device.starts;
  return loss;
}

void Members::set_ready(DeviceIndex index) {
  Device& device = devices_[index];
  device.state = DeviceState::kReady;
  context_.log(log::Level::kInfo, "device_ready", device.id.to_string() + " pid=" + std::to_string(device.pid));
  tell_clients(device.id, "ready", std::nullopt);
}

void Members::transport_chosen(DeviceIndex index, TransportChosen chosen) {
  if (!find_device(chosen.reader.name)) return;  // so that the table has its bound
  std::string reader = chosen.reader.name;
  devices_[index].transports[std::move(reader)] = std::move(chosen);
}

bool Members::all_ready() const {
  return std::all_of(devices_.begin(), devices_.end(),
                     [](const Device& device) { return device.state == DeviceState::kReady; });
}

void Members::link_lost(DeviceIndex index, Error why, TimePoint now) {
  Device& device = devices_[index];
  device.joined = false;
  device.state = DeviceState::kDown;
  device.fenced = std::max(device.fenced, device.id.incarnation);
  device.report_due = after(now, context_.options.exit_report_wait);
  device.in_flight = 0;
  device.held_bytes = 0;
  context_.forget(device.id);
  context_.log(log::Level::kWarning, "device_link_lost", device.id.to_string() + ": " + why.message);
  tell_clients(device.id, "down", why);
  device.loss = std::move(why);
}

std::optional<DeviceLoss> Members::exited(const ActorExited& report) {
  const auto index = find_device(report.who.name);
  if (!index) return std::nullopt;
  Device& device = devices_[*index];
  if (report.who.incarnation < device.id.incarnation) return std::nullopt;
  DeviceLoss loss{*index, report.who, exit_error(device, report), true, report.restart_in_ms < 0, by_itself(report)};
  if (device.joined) context_.forget(device.id);
  if (device.state != DeviceState::kDown) tell_clients(report.who, "down", loss.error);
  device.fenced = std::max(device.fenced, report.who.incarnation);
  device.joined = false;
  device.ended = true;
  device.report_due = kNever;
  device.loss.reset();
  device.in_flight = 0;
  device.held_bytes = 0;
  device.last_exit = loss.error;
  device.state = loss.failed ? DeviceState::kFailed : DeviceState::kDown;
  ++context_.counters.device_losses;
  context_.log(log::Level::kError, "device_exited", loss.error.message);
  tell_clients(report.who, loss.failed ? "failed" : "restarting", loss.error);
  return loss;
}

Error Members::exit_error(const Device& device, const ActorExited& report) const {
  std::string message = "device actor " + report.who.to_string() + " ";
  if (report.signalled) message += "was ";
  message += exit_text(report.signalled, report.code);
  if (report.stopped_by_us) message += ", by the node actor";
  Error error(ErrorCode::kActorDied, std::move(message));
  error.actor = report.who.to_string();
  error.detail = report.log_tail;
  if (report.signalled && report.code == SIGKILL && !report.stopped_by_us) {
    error.hint = "if nobody sent the signal, the machine ran out of memory (see dmesg); ";
  }
  error.hint += report.restart_in_ms >= 0 ? "it is started again " + wait_text(report.restart_in_ms) + ": submit again"
                                          : "it is not started again: see `callboard logs " + device.name + "`";
  if (device.loss && device.id == report.who) error.causes.push_back(*device.loss);
  return error;
}

void Members::started(const ActorStarted& started) {
  const auto index = find_device(started.who.name);
  if (!index) return;
  Device& device = devices_[*index];
  if (started.who.incarnation <= device.id.incarnation) return;  // its Hello came first
  device.state = DeviceState::kStarting;
  device.pid = started.pid;
}

std::vector<DeviceLoss> Members::overdue(TimePoint now) {
  std::vector<DeviceLoss> losses;
  for (DeviceIndex index = 0; index < devices_.size(); ++index) {
    Device& device = devices_[index];
    if (device.report_due > now) continue;
    device.report_due = kNever;
    Error error(ErrorCode::kActorDied,
                "device actor " + device.id.to_string() +
                    " was lost: " + (device.loss ? device.loss->message : std::string("its link ended")),
                "it is ended and started again: submit again");
    error.actor = device.id.to_string();
    if (node_) context_.send(*node_, StopActor{device.id, true, true});
    losses.push_back(DeviceLoss{index, device.id, std::move(error), false, false, false});
  }
  return losses;
}

std::vector<ActorId> Members::silent(TimePoint now) const {
  std::vector<ActorId> result;
  for (const Device& device : devices_) {
    if (device.joined && after(device.last_seen, context_.options.beat_dead) <= now) result.push_back(device.id);
  }
  for (const auto& [id, client] : clients_) {
    if (after(client.last_seen, context_.options.client_dead) <= now) result.push_back(id);
  }
  return result;
}

ClientMember* Members::find_client(const ActorId& id) {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

void Members::client_joined(const Hello& hello, TimePoint now) {
  ClientMember& client = clients_[hello.who];
  client.id = hello.who;
  client.pid = hello.pid;
  client.description = hello.description;
  client.gpus.clear();
  const nlohmann::json known = described(hello.description);
  client.why_no_gpu = text_in(known, "why_no_gpu");
  if (const auto gpus = known.find("gpus"); gpus != known.end() && gpus->is_array()) {
    for (const auto& gpu : *gpus) {
      if (gpu.is_string() && client.gpus.size() < kClientGpusMax) client.gpus.insert(gpu.get<std::string>());
    }
  }
  client.last_seen = now;
}

void Members::seen(const ActorId& who, const Message& message, TimePoint now) {
  const auto* beat = std::get_if<Beat>(&message);
  if (const auto index = joined_device(who)) {
    devices_[*index].last_seen = now;
    if (beat != nullptr) devices_[*index].beat = *beat;
  } else if (ClientMember* client = find_client(who)) {
    client->last_seen = now;
  }
}

void Members::forgive_silence(TimePoint now) {
  for (Device& device : devices_) device.last_seen = now;
  for (auto& [id, client] : clients_) client.last_seen = now;
}

void Members::beat_to_all() {
  const Beat beat{++beats_, 0, 0, 0, 0};
  if (node_) context_.send(*node_, beat);
  for (const Device& device : devices_) {
    if (device.joined) context_.send(device.id, beat);
  }
  for (const auto& [id, client] : clients_) context_.send(id, beat);
}

void Members::tell_clients(const ActorId& who, const std::string& event, std::optional<Error> error) {
  for (const auto& [id, client] : clients_) context_.send(id, ActorEvent{who, event, error});
}

TimePoint Members::next_due() const {
  TimePoint next = kNever;
  for (const Device& device : devices_) {
    next = std::min(next, device.report_due);
    if (device.joined) next = std::min(next, after(device.last_seen, context_.options.beat_dead));
  }
  for (const auto& [id, client] : clients_) {
    next = std::min(next, after(client.last_seen, context_.options.client_dead));
  }
  return next;
}

}  // namespace callboard::actors
