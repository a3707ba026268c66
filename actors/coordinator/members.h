// Who is in the cluster: devices with their incarnations, the node actor, clients. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/coordinator/core_context.h"

namespace callboard::actors {

// from      to        when
// starting  loading   Hello, and programs are to be loaded there
// starting  ready     Hello, no programs
// loading   ready     the last of these loads was answered
// any       down      link lost, no beat, or exit report; the exit report says what follows
// down      starting  the node actor started the next incarnation
// any       failed    exit report: it will not be started again
// failed    starting  started again all the same (by a person's order)
enum class DeviceState : std::uint8_t { kStarting, kLoading, kReady, kDown, kFailed };
std::string_view device_state_name(DeviceState state);

using DeviceIndex = std::uint32_t;

struct Device {
  std::string name;
  std::uint64_t memory_limit = 0;
  DeviceState state = DeviceState::kStarting;
  ActorId id;              ///< the incarnation that joined last; 0 before the first
  bool joined = false;     ///< its link is there
  bool ended = true;       ///< the process of `id` is known to have ended (or never was)
  Incarnation fenced = 0;  ///< this incarnation and older ones are not let in any more
  std::int64_t pid = 0;
  std::string endpoint;
  std::string description;  ///< JSON object from its Hello
  Beat beat;
  TimePoint last_seen;
  std::uint32_t starts = 0;
  TimePoint report_due = kNever;  ///< link lost: until then the exit report may still come
  std::optional<Error> loss;      ///< why the link was lost; cause of the exit report
  std::optional<Error> last_exit;
  std::size_t in_flight = 0;  ///< fragments sent to `id` and not answered
  std::uint64_t edge_bytes_max = 0;
  bool own_memory = false;
  bool results_on_gpu = false;
  bool results_on_gpu_only = false;
  std::string gpu;                                    ///< UUID from its description; empty: none
  std::map<std::string, TransportChosen> transports;  ///< how `id` hands its results on, by the reader's name
  RunId alone = 0;                                    ///< runs with nothing beside it; 0: none
  std::set<RunId> waits_alone;                        ///< wait for this device to be empty
  std::uint64_t held_bytes = 0;  ///< credit taken by runs on `id`: what it may keep for other devices
};

/// Not `Client`: that is the C++ client's, and one program has both.
struct ClientMember {
  ActorId id;
  std::int64_t pid = 0;
  std::string description;
  std::set<std::string> gpus;  ///< UUIDs of those whose memory it can open
  std::string why_no_gpu;      ///< where there are none, as it says
  TimePoint last_seen;
  std::map<RequestSeq, RunId> requests;  ///< accepted and not quiesced
};

/// Can results for this client be left where the device made them?
inline bool reads_device(const ClientMember& client, const Device& device) {
  return device.results_on_gpu && !device.gpu.empty() && client.gpus.count(device.gpu) != 0;
}

/// Something that happened to a device, for programs and runs to act on.
struct DeviceLoss {
  DeviceIndex device = 0;
  ActorId who;
  Error error;
  bool ended = false;      ///< the process is known to be gone; else only its link
  bool failed = false;     ///< and it will not be started again
  bool by_itself = false;  ///< it crashed or ended; nobody outside ended it, as far as is known
};

class Members {
 public:
  explicit Members(CoreContext& context);

  Status admit(const Hello& hello) const;

  // -- devices
  std::vector<Device>& devices() { return devices_; }
  const std::vector<Device>& devices() const { return devices_; }
  Device& device(DeviceIndex index) { return devices_[index]; }
  const Device& device(DeviceIndex index) const { return devices_[index]; }
  std::optional<DeviceIndex> find_device(const std::string& name) const;
  /// The device whose current, joined incarnation this is.
  std::optional<DeviceIndex> joined_device(const ActorId& who) const;
  /// Takes a Hello that admit() accepted. A loss comes back if the one before it was never reported as ended.
  std::optional<DeviceLoss> device_joined(DeviceIndex index, const Hello& hello, TimePoint now);
  void set_ready(DeviceIndex index);
  void transport_chosen(DeviceIndex index, TransportChosen chosen);
  bool all_ready() const;

  /// The link to a joined device is gone; its exit report gets exit_report_wait to come.
  void link_lost(DeviceIndex index, Error why, TimePoint now);
  std::optional<DeviceLoss> exited(const ActorExited& report);
  void started(const ActorStarted& started);
  /// Losses whose exit report did not come in time; asks the node actor to end what may still live.
  std::vector<DeviceLoss> overdue(TimePoint now);
  /// Joined devices and beating clients that have been silent too long.
  std::vector<ActorId> silent(TimePoint now) const;

  // -- clients and node
  std::map<ActorId, ClientMember>& clients() { return clients_; }
  const std::map<ActorId, ClientMember>& clients() const { return clients_; }
  ClientMember* find_client(const ActorId& id);
  void client_joined(const Hello& hello, TimePoint now);
  const std::optional<ActorId>& node() const { return node_; }
  void set_node(std::optional<ActorId> node) { node_ = std::move(node); }

  void seen(const ActorId& who, const Message& message, TimePoint now);
  /// After a pause of our own nobody's silence counts.
  void forgive_silence(TimePoint now);
  void beat_to_all();
  void tell_clients(const ActorId& who, const std::string& event, std::optional<Error> error);
  TimePoint next_due() const;

 private:
  Error exit_error(const Device& device, const ActorExited& report) const;

  CoreContext& context_;
  std::vector<Device> devices_;
  std::map<std::string, DeviceIndex> by_name_;
  std::map<ActorId, ClientMember> clients_;
  std::optional<ActorId> node_;
  std::uint64_t beats_ = 0;
};

}  // namespace callboard::actors
