#include "actors/core/transport.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/core/channel.h"
#include "actors/core/direct_lane.h"
#include "actors/core/ipc_path.h"
#include "actors/core/socket.h"
#include "actors/core/unix_socket.h"
#include "messages/base/log.h"
#include "messages/codec.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

constexpr int kLaneBacklog = 64;
constexpr int kAcceptsPerTurn = 16;                     // those can say their hello before the next ones come
constexpr std::size_t kNewcomersMax = 64;               // lanes that have not said hello; the oldest goes first
constexpr std::size_t kLaneHelloBytesMax = 256u << 10;  // what a newcomer can make us hold

class ZmqHub final : public Hub {
 public:
  ZmqHub(Loop& loop, Messenger& messenger, Options options, Events events)
      : loop_(loop),
        options_(std::move(options)),
        events_(std::make_shared<const Events>(std::move(events))),
        socket_(messenger, options_.send_high_water),
        alarm_(loop, [this] { on_alarm(); }) {}
  ~ZmqHub() override;

  Status open();
  Status send(const ActorId& to, const Message& message) override;
  Status send_once(const ActorId& to, const Message& message) override;
  void forget(const ActorId& peer) override;
  Counters counters() const override;

 private:
  struct Peer;
  /// A direct lane: a newcomer's until its hello says whose it is.
  struct Lane {
    std::unique_ptr<DirectLane> socket;
    std::weak_ptr<Peer> peer;
    TimePoint hello_until = kNever;
  };
  using LanePtr = std::shared_ptr<Lane>;
  struct Peer {
    ActorId id;
    std::string routing;
    std::int64_t pid = 0;
    Channel channel;
    LanePtr lane;
    bool direct = false;  // sends over the lane
    bool gone = false;    // for who holds it across a callback
  };
  using PeerPtr = std::shared_ptr<Peer>;
  /// What is known of a name: its newest incarnation, and whether that one has ended.
  struct Known {
    Incarnation newest = 0;
    bool ended = false;
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  auto putter(Peer& peer) {
    return [this, &peer](const Frame& frame) { return put_to_peer(peer, frame); };
  }
  Status listen_for_lanes();
  void accept_lanes();
  void drop_newcomers(TimePoint now);
  void on_lane_frame(const LanePtr& lane, std::string_view bytes);
  void on_lane_hello(const LanePtr& lane, std::string_view bytes);
  void on_lane_ended(const LanePtr& lane, const std::string& why);
  void take_lane_if_possible(Peer& peer);
  bool put_to_peer(Peer& peer, const Frame& frame);
  bool put(std::string_view routing, const Frame& frame);
  void on_ready();
  void on_frame(std::string_view routing, std::string_view bytes);
  void on_frame_of(const PeerPtr& peer, Packet&& packet);
  void on_undecodable(std::string_view routing, std::string_view bytes, const Error& why);
  void on_packet(const PeerPtr& peer, Packet&& packet);
  void on_stranger(std::string_view routing, const Packet& packet);
  void on_hello(std::string_view routing, const Hello& hello);
  Status check_hello(std::string_view routing, const Hello& hello) const;
  Status check_incarnation(const ActorId& who) const;
  void replace_older(const ActorId& who);
  void remember(const ActorId& who, bool ended);
  void welcome(Peer& peer);
  void refuse(std::string_view routing, Error why);
  void remove(const PeerPtr& peer);
  void lose(const PeerPtr& peer, Error why);
  void on_alarm();
  Error unknown(const ActorId& who) const;
  bool put_unnumbered(std::string_view routing, const Message& message);

  Loop& loop_;
  Options options_;
  std::shared_ptr<const Events> events_;  // shared, so that a callback may destroy this object
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Socket socket_;
  UniqueFd lane_listener_;
  UniqueFd reserve_;  // of accept_waiting()
  std::string lane_path_;
  std::list<LanePtr> newcomers_;                                               // oldest first
  std::unordered_map<std::string, PeerPtr, TextHash, std::equal_to<>> peers_;  // by routing id
  std::unordered_map<ActorId, PeerPtr> by_identity_;                           // the same, for those who send
  std::unordered_map<std::string, Known> known_;                               // by name
  std::deque<std::string> known_order_;
  Counters counters_;  // resent and duplicates: of peers that are gone
  Alarm alarm_;
};

ZmqHub::~ZmqHub() {
  if (socket_.native() == nullptr) return;
  loop_.unwatch_socket(socket_.native());
  if (lane_listener_) {
    loop_.unwatch(lane_listener_.get());
    ::unlink(lane_path_.c_str());
  }
  for (const auto& [routing, peer] : peers_) {
    if (!peer->channel.open) continue;
    const auto bye = peer->channel.link.send_once(Bye{"the other side ended"});
    if (!bye) continue;
    // A lane that is full now loses what it holds; ZeroMQ goes on for a moment.
    if (!peer->direct || !put_to_peer(*peer, *bye) || !peer->lane->socket->finish()) put(peer->routing, *bye);
  }
}

Status ZmqHub::open() {
  CALLBOARD_TRY(socket_.bind(options_.endpoint));
  loop_.watch_socket(socket_.native(), [this] { on_ready(); });
  return listen_for_lanes();
}

Status ZmqHub::listen_for_lanes() {
  lane_path_ = options_.direct ? direct_lane_path(ipc_path_of(options_.endpoint)) : std::string();
  if (lane_path_.empty()) return {};
  CALLBOARD_ASSIGN(lane_listener_, listen_stream(lane_path_, kLaneBacklog));
  reserve_ = reserve_descriptor();
  loop_.watch(lane_listener_.get(), [this] { accept_lanes(); });
  return {};
}

void ZmqHub::accept_lanes() {
  const TimePoint now = Clock::now();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket = accept_waiting(lane_listener_.get(), reserve_);
    if (!socket) break;
    const auto uid = peer_uid(socket.get());
    if (!uid || *uid != ::geteuid()) {
      ++counters_.refused_frames;
      continue;
    }
    if (newcomers_.size() >= kNewcomersMax) newcomers_.pop_front();
    const auto lane = std::make_shared<Lane>();
    const std::weak_ptr<Lane> weak = lane;
    DirectLane::Events events;
    events.frame = [this, weak](std::string_view frame) {
      if (const LanePtr alive = weak.lock()) on_lane_frame(alive, frame);
    };
    events.ended = [this, weak](const std::string& why) {
      if (const LanePtr alive = weak.lock()) on_lane_ended(alive, why);
    };
    lane->socket = std::make_unique<DirectLane>(loop_, std::move(socket), std::move(events), kLaneHelloBytesMax);
    lane->hello_until = after(now, options_.lane_hello_wait);
    alarm_.no_later_than(lane->hello_until);
    newcomers_.push_back(lane);
  }
}

void ZmqHub::drop_newcomers(TimePoint now) {
  while (!newcomers_.empty() && newcomers_.front()->hello_until <= now) newcomers_.pop_front();
  if (!newcomers_.empty()) alarm_.no_later_than(newcomers_.front()->hello_until);
}

void ZmqHub::on_lane_frame(const LanePtr& lane, std::string_view bytes) {
  ++counters_.frames_in;
  const PeerPtr peer = lane->peer.lock();
  if (!peer) return on_lane_hello(lane, bytes);
  Result<Packet> packet = decode_packet(bytes);
  if (!packet) return on_undecodable(peer->routing, bytes, packet.error());
  on_frame_of(peer, std::move(*packet));
}

/// Whom we welcomed over ZeroMQ, and nobody else, may have a lane, and one only: no other process takes it over.
void ZmqHub::on_lane_hello(const LanePtr& lane, std::string_view bytes) {
  newcomers_.remove(lane);  // whoever says something else first is dropped with it
  const Result<Packet> packet = decode_packet(bytes);
  const auto* hello = packet ? std::get_if<Hello>(&packet->message) : nullptr;
  const auto found = hello != nullptr ? peers_.find(hello->who.to_string()) : peers_.end();
  if (found == peers_.end() || found->second->pid != hello->pid || !found->second->channel.open ||
      found->second->lane) {
    ++counters_.refused_frames;
    return;
  }
  lane->peer = found->second;
  lane->socket->set_frame_max(limits::kMessageBytesMax);
  found->second->lane = lane;
}

void ZmqHub::on_lane_ended(const LanePtr& lane, const std::string& why) {
  newcomers_.remove(lane);
  const PeerPtr peer = lane->peer.lock();
  if (!peer || peer->lane != lane) return;
  log::debug("direct_lane_ended", peer->id.to_string() + ": " + why);
  peer->direct = false;
  peer->lane.reset();
}

/// Only with nothing under way over ZeroMQ: what overtakes a message by more than the link keeps would be resent late.
void ZmqHub::take_lane_if_possible(Peer& peer) {
  if (!peer.direct && peer.lane && peer.channel.waiting.empty() && peer.channel.link.unacknowledged() == 0) {
    peer.direct = true;
  }
}

bool ZmqHub::put_to_peer(Peer& peer, const Frame& frame) {
  if (!peer.direct) return put(peer.routing, frame);
  if (!peer.lane->socket->put(frame)) return false;
  ++counters_.frames_out;
  return true;
}

bool ZmqHub::put(std::string_view routing, const Frame& frame) {
  loop_.socket_used();
  if (!socket_.put_to(routing, frame)) return false;
  ++counters_.frames_out;
  return true;
}

bool ZmqHub::put_unnumbered(std::string_view routing, const Message& message) {
  auto bytes = encode_packet(Envelope{options_.epoch, options_.self, 0, 0}, message);
  return bytes && put(routing, std::make_shared<const std::string>(std::move(*bytes)));
}

Error ZmqHub::unknown(const ActorId& who) const {
  return Error(ErrorCode::kUnknownPeer, who.to_string() + " is not connected to " + options_.self.to_string());
}

Status ZmqHub::send(const ActorId& to, const Message& message) {
  const auto found = by_identity_.find(to);
  if (found == by_identity_.end()) return fail(unknown(to));
  Peer& peer = *found->second;
  const TimePoint now = Clock::now();
  take_lane_if_possible(peer);
  CALLBOARD_ASSIGN(Frame frame, peer.channel.link.send(message, now));
  peer.channel.send(std::move(frame), now, putter(peer));
  alarm_.no_later_than(peer.channel.next_due());
  return {};
}

Status ZmqHub::send_once(const ActorId& to, const Message& message) {
  const auto found = by_identity_.find(to);
  if (found == by_identity_.end()) return fail(unknown(to));
  Peer& peer = *found->second;
  CALLBOARD_ASSIGN(Frame frame, peer.channel.link.send_once(message));
  if (peer.channel.send_once(frame, putter(peer))) return {};
  return fail(ErrorCode::kOverloaded, to.to_string() + " takes nothing at the moment");
}

void ZmqHub::forget(const ActorId& who) {
  remember(who, true);
  const auto found = peers_.find(who.to_string());
  if (found != peers_.end()) remove(PeerPtr(found->second));
}

Hub::Counters ZmqHub::counters() const {
  Counters sum = counters_;
  for (const auto& [routing, peer] : peers_) {
    sum.resent += peer->channel.link.counters().resent;
    sum.duplicates += peer->channel.link.counters().duplicates;
  }
  return sum;
}

void ZmqHub::on_ready() {
  const std::weak_ptr<int> alive = alive_;
  for (std::size_t count = 0; count < kDrainMax; ++count) {
    const Socket::Got got = socket_.receive();
    if (got == Socket::Got::kNothing) break;
    ++counters_.frames_in;
    if (got == Socket::Got::kMalformed) {
      ++counters_.refused_frames;
      continue;
    }
    on_frame(socket_.routing(), socket_.frame());
    if (alive.expired()) return;
  }
  // The descriptor also tells that a full peer takes frames again.
  const TimePoint now = Clock::now();
  for (const auto& [routing, peer] : peers_) {
    if (peer->channel.retry_at == kNever) continue;
    peer->channel.flush(now, putter(*peer));
    alarm_.no_later_than(peer->channel.next_due());
  }
}

void ZmqHub::on_frame(std::string_view routing, std::string_view bytes) {
  Result<Packet> packet = decode_packet(bytes);
  if (!packet) return on_undecodable(routing, bytes, packet.error());
  const auto found = peers_.find(routing);
  if (found == peers_.end()) return on_stranger(routing, *packet);
  on_frame_of(PeerPtr(found->second), std::move(*packet));
}

void ZmqHub::on_frame_of(const PeerPtr& peer, Packet&& packet) {
  const Envelope& envelope = packet.envelope;
  if (envelope.sender != peer->id || (envelope.epoch != 0 && envelope.epoch != options_.epoch)) {
    ++counters_.refused_frames;
    return;
  }
  if (const auto* hello = std::get_if<Hello>(&packet.message)) return on_hello(peer->routing, *hello);
  on_packet(peer, std::move(packet));
}

void ZmqHub::on_undecodable(std::string_view routing, std::string_view bytes, const Error& why) {
  const bool foreign = why.code == ErrorCode::kVersionMismatch && decode_foreign_hello(bytes).has_value();
  if (foreign) return refuse(routing, why);
  ++counters_.refused_frames;
  log::debug("frame_refused", why.message);
}

void ZmqHub::on_packet(const PeerPtr& peer, Packet&& packet) {
  const auto events = events_;
  const std::weak_ptr<int> alive = alive_;
  Link::Received received = peer->channel.link.receive(std::move(packet), Clock::now());
  for (Message& message : received.messages) {
    if (const auto* bye = std::get_if<Bye>(&message)) {
      return lose(peer, Error(ErrorCode::kPeerLost, peer->id.to_string() + " said goodbye: " + bye->reason));
    }
    if (std::holds_alternative<Welcome>(message) || std::holds_alternative<Refused>(message)) continue;
    if (events->message) events->message(peer->id, std::move(message));
    if (alive.expired() || peer->gone) return;
  }
  alarm_.no_later_than(peer->channel.next_due());
}

void ZmqHub::on_stranger(std::string_view routing, const Packet& packet) {
  const bool honest = packet.envelope.sender.to_string() == routing;
  if (const auto* hello = std::get_if<Hello>(&packet.message); hello != nullptr && honest) {
    return on_hello(routing, *hello);
  }
  if (!honest || std::holds_alternative<Bye>(packet.message) || std::holds_alternative<Ack>(packet.message)) {
    ++counters_.refused_frames;
    return;
  }
  // Somebody who does not know yet that he was given up: he must learn it, or he would resend for a minute.
  const Status fresh = check_incarnation(packet.envelope.sender);
  refuse(routing, fresh ? Error(ErrorCode::kUnknownPeer, std::string(routing) + " has said no hello") : fresh.error());
}

Status ZmqHub::check_hello(std::string_view routing, const Hello& hello) const {
  if (hello.who.to_string() != routing || hello.who.name.empty() || routing.size() > kRoutingIdMax) {
    return fail(ErrorCode::kMalformed, "the hello of '" + hello.who.to_string() + "' came from another address");
  }
  if (hello.cluster != options_.cluster) {
    return fail(
        ErrorCode::kClusterNotFound,
        hello.who.to_string() + " looks for cluster '" + hello.cluster + "'; this is '" + options_.cluster + "'",
        "check the cluster's name and its run directory");
  }
  return check_incarnation(hello.who);
}

Status ZmqHub::check_incarnation(const ActorId& who) const {
  const auto known = known_.find(who.name);
  if (known == known_.end()) return {};
  const auto [newest, ended] = known->second;
  if (who.incarnation > newest || (who.incarnation == newest && !ended)) return {};
  const std::string of = who.name + "#" + std::to_string(newest);
  return fail(ErrorCode::kStaleIncarnation,
              who.to_string() +
                  (who.incarnation == newest ? " was given up" : " is older than " + of + ", which came after it"),
              "this process must end; its place was given away");
}

void ZmqHub::on_hello(std::string_view routing, const Hello& hello) {
  if (const Status good = check_hello(routing, hello); !good) return refuse(routing, good.error());
  if (const auto found = peers_.find(routing); found != peers_.end()) {
    // The same peer asks again: its Welcome is late. Another process under the same identity is nobody we know.
    if (found->second->pid == hello.pid) return welcome(*found->second);
    return refuse(routing, Error(ErrorCode::kStaleIncarnation, hello.who.to_string() + " is connected already"));
  }
  const std::string key(routing);  // the frame that it points into does not outlive the callbacks' sends
  const auto events = events_;
  const std::weak_ptr<int> alive = alive_;
  replace_older(hello.who);
  if (alive.expired()) return;
  if (peers_.size() >= options_.peers_max) {
    return refuse(key, Error(ErrorCode::kOverloaded, options_.self.to_string() + " has its " +
                                                         std::to_string(options_.peers_max) + " peers already"));
  }
  auto peer = std::make_shared<Peer>(
      Peer{hello.who, key, hello.pid, Channel{Link(options_.self, hello.who, options_.link)}, nullptr});
  peer->channel.link.set_epoch(options_.epoch);
  peers_.emplace(key, peer);
  by_identity_.emplace(hello.who, peer);
  const Status admitted = events->hello ? events->hello(hello) : Status();
  if (alive.expired() || peer->gone) return;
  if (!admitted) {
    remove(peer);
    return refuse(key, admitted.error());
  }
  remember(hello.who, false);
  welcome(*peer);
}

void ZmqHub::replace_older(const ActorId& who) {
  const auto older =
      std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) { return entry.second->id.name == who.name; });
  if (older == peers_.end()) return;
  lose(PeerPtr(older->second),
       Error(ErrorCode::kStaleIncarnation, older->second->id.to_string() + " was replaced by " + who.to_string()));
}

void ZmqHub::remember(const ActorId& who, bool ended) {
  auto [known, fresh] = known_.try_emplace(who.name, Known{who.incarnation, ended});
  if (!fresh && who.incarnation >= known->second.newest) known->second = {who.incarnation, ended};
  if (!fresh) return;
  known_order_.push_back(who.name);
  while (known_order_.size() > std::max(limits::kHubPeersRememberedMax, 2 * options_.peers_max)) {
    const std::string oldest = std::move(known_order_.front());
    known_order_.pop_front();
    // Who is connected stays known; there are at most peers_max of those, so this ends.
    const Known entry = known_.at(oldest);
    if (peers_.contains(ActorId{oldest, entry.newest}.to_string())) {
      known_order_.push_back(oldest);
    } else {
      known_.erase(oldest);
    }
  }
}

void ZmqHub::welcome(Peer& peer) {
  peer.channel.open = put_unnumbered(peer.routing, Welcome{options_.epoch, options_.self}) || peer.channel.open;
  // A Welcome that was not taken is asked for again by the peer's next Hello.
  peer.channel.flush(Clock::now(), putter(peer));
  alarm_.no_later_than(peer.channel.next_due());
}

void ZmqHub::refuse(std::string_view routing, Error why) {
  ++counters_.refused_frames;
  log::info("peer_refused", why.message);
  put_unnumbered(routing, Refused{std::move(why)});  // at once or not at all: nothing is kept for strangers
}

void ZmqHub::remove(const PeerPtr& peer) {
  peer->gone = true;
  counters_.resent += peer->channel.link.counters().resent;
  counters_.duplicates += peer->channel.link.counters().duplicates;
  by_identity_.erase(peer->id);
  peers_.erase(peer->routing);
}

void ZmqHub::lose(const PeerPtr& peer, Error why) {
  const auto events = events_;
  remember(peer->id, true);
  remove(peer);
  if (events->lost) events->lost(peer->id, why);
}

void ZmqHub::on_alarm() {
  const std::weak_ptr<int> alive = alive_;
  const TimePoint now = Clock::now();
  drop_newcomers(now);
  std::vector<PeerPtr> lost;
  for (const auto& [routing, peer] : peers_) {
    if (!peer->channel.on_time(now, putter(*peer))) lost.push_back(peer);
    alarm_.no_later_than(std::max(now, peer->channel.next_due()));
  }
  for (const PeerPtr& peer : lost) {
    if (peer->gone) continue;
    lose(peer, Error(ErrorCode::kPeerLost, peer->id.to_string() + " has not acknowledged a message for too long"));
    if (alive.expired()) return;
  }
}

}  // namespace

Result<std::unique_ptr<Hub>> Hub::bind(Loop& loop, Messenger& messenger, Options options, Events events) {
  auto hub = std::make_unique<ZmqHub>(loop, messenger, std::move(options), std::move(events));
  CALLBOARD_TRY(hub->open());
  return hub;
}

}  // namespace callboard::actors
