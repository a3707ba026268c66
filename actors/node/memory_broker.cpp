#include "actors/node/memory_broker.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "actors/core/unix_socket.h"
#include "actors/node/shared_constants.h"
#include "messages/base/log.h"
#include "messages/codec.h"

namespace callboard::actors {

namespace {

constexpr std::size_t kConnectionsMax = 512;
constexpr std::size_t kBacklogPacketsMax = 4'096;  // of one connection, beyond what the system buffers
constexpr std::size_t kBacklogBytesMax = 4u << 20;
constexpr std::size_t kSegmentsPerOwnerMax = 65'536;
constexpr std::size_t kParkedMax = 4'096;
constexpr int kPacketsPerTurn = 64;  // of one connection, so that none starves the others
constexpr std::chrono::seconds kHelloWait{5};
// A reader may learn of a segment before the owner's SegmentAdded has been read here.
constexpr std::chrono::milliseconds kParkedWait{500};
constexpr std::chrono::seconds kOrphanKept{5};
constexpr std::chrono::seconds kAskEvery{5};
constexpr std::chrono::seconds kAnswerWait{2};
constexpr std::chrono::seconds kHeldKept = kAskEvery + kAnswerWait;
static_assert(kHeldKept > kAskEvery, "a held segment must live until its holder is asked again");

using SharedFd = std::shared_ptr<UniqueFd>;
using ConnectionId = std::uint64_t;
constexpr ConnectionId kListener = 0;

struct Outgoing {
  std::string frame;
  SharedFd fd;
};

struct Connection {
  UniqueFd socket;
  std::optional<ActorId> who;  ///< nothing before its hello
  TimePoint hello_deadline;
  std::deque<Outgoing> backlog;
  std::size_t backlog_bytes = 0;
  bool doomed = false;

  std::string name() const { return who ? who->to_string() : "a process that has not said hello"; }
};

struct KeptSegment {
  SharedFd fd;  ///< holds -1 where this process had no room for the descriptor
  std::uint64_t bytes = 0;
  TimePoint keep_until = kNever;  ///< kNever while the owner lives
};

struct Owner {
  std::optional<ConnectionId> connection;  ///< nothing once it is gone
  std::map<SegmentId, KeptSegment> segments;
  SegmentId highest = 0;
  TimePoint next_ask = kNever;
};

struct ParkedOpen {
  ConnectionId asker = 0;
  OpenSegment question;
  TimePoint deadline;
};

class BrokerImpl final : public MemoryBroker {
 public:
  BrokerImpl(std::string path, UniqueFd listener, UniqueFd epoll, UniqueFd reserve)
      : path_(std::move(path)),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        reserve_(std::move(reserve)) {}
  ~BrokerImpl() override { ::unlink(path_.c_str()); }
  Status start();

  std::vector<int> fds() const override { return {epoll_.get()}; }
  void on_readable(int fd, TimePoint now) override;
  void on_tick(TimePoint now) override;
  TimePoint next_tick() const override;
  Stats stats() const override;

 private:
  void accept_all(TimePoint now);
  void accept_one(UniqueFd socket, TimePoint now);
  void read_from(ConnectionId id, TimePoint now);
  Status handle(ConnectionId id, ReceivedPacket& received, TimePoint now);
  Status hello(ConnectionId id, Connection& connection, const Packet& packet);
  Status add_segment(ConnectionId id, const ActorId& who, const SegmentAdded& added, ReceivedPacket& received,
                     TimePoint now);
  void open_segment(ConnectionId id, const OpenSegment& question, TimePoint now);
  void answer_parked(const ActorId& owner, std::optional<SegmentId> segment, TimePoint now);
  Status add_constants(ConnectionId id, const AddConstants& added, ReceivedPacket& received);
  void open_constant(ConnectionId id, const OpenConstant& question);
  void forward(const ReleaseLeases& release);
  void held(const SegmentsHeld& held, TimePoint now);

  bool send(ConnectionId id, const Message& message, SharedFd fd = nullptr);
  void flush(ConnectionId id);
  void watch(ConnectionId id, int fd, bool writing, int operation);
  void doom(ConnectionId id, std::string_view event, const std::string& why);
  void close_doomed(TimePoint now);
  void close_connection(ConnectionId id, TimePoint now);
  void tell_others(ConnectionId except, const Message& message, bool owners_only);

  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd epoll_;  ///< of the listener and all connections: what the loop watches
  UniqueFd reserve_;      ///< given up for a moment to refuse a connection when there is no descriptor left
  std::map<ConnectionId, Connection> connections_;
  std::map<ActorId, ConnectionId> names_;
  std::map<ActorId, Owner> owners_;
  std::vector<ParkedOpen> parked_;
  std::vector<ConnectionId> doomed_;
  SharedConstants constants_;
  ConnectionId last_connection_ = kListener;
};

Error tensor_lost(const ActorId& owner, SegmentId segment, const std::string& why) {
  return Error(ErrorCode::kTensorLost,
               "memory segment " + std::to_string(segment) + " of " + owner.to_string() + " is gone: " + why,
               "compute the result again");
}

// -- connections
// -------------------------------------------------------------------------------------------------------

Status BrokerImpl::start() {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0) return {};
  return fail(ErrorCode::kEnvironment, "memory lane " + path_ + ": epoll: " + std::strerror(errno));
}

void BrokerImpl::watch(ConnectionId id, int fd, bool writing, int operation) {
  epoll_event event{};
  event.events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) doom(id, "memory_lane_epoll_failed", std::strerror(errno));
}

void BrokerImpl::on_readable(int, TimePoint now) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kListener) {
      accept_all(now);
      continue;
    }
    if ((event.events & EPOLLOUT) != 0) flush(event.data.u64);
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_from(event.data.u64, now);
  }
  close_doomed(now);
}

void BrokerImpl::accept_all(TimePoint now) {
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      accept_one(std::move(socket), now);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EMFILE && errno != ENFILE) return;
    // Left in the queue, the connection would wake the loop for ever.
    log::error("memory_lane_no_descriptors", "a connection is refused: raise RLIMIT_NOFILE (ulimit -n)");
    reserve_.reset();
    UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    refused.reset();
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return;
  }
}

void BrokerImpl::accept_one(UniqueFd socket, TimePoint now) {
  const Result<uid_t> uid = peer_uid(socket.get());
  if (!uid || *uid != ::geteuid()) {
    log::warning("memory_lane_refused", "user=" + (uid ? std::to_string(*uid) : std::string("unknown")) +
                                            "; only this user's processes may connect");
    return;
  }
  if (connections_.size() >= kConnectionsMax) {
    log::warning("memory_lane_refused", "more than " + std::to_string(kConnectionsMax) + " connections");
    return;
  }
  enlarge_buffers(socket.get());
  const ConnectionId id = ++last_connection_;
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  connection.hello_deadline = after(now, kHelloWait);
  watch(id, connection.socket.get(), false, EPOLL_CTL_ADD);
}

void BrokerImpl::read_from(ConnectionId id, TimePoint now) {
  ReceivedPacket received;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    const auto entry = connections_.find(id);
    if (entry == connections_.end() || entry->second.doomed) return;
    const SocketOutcome outcome = receive_packet(entry->second.socket.get(), received);
    if (outcome == SocketOutcome::kWouldBlock) return;
    if (outcome == SocketOutcome::kClosed) return doom(id, "memory_lane_closed", "its process closed it or ended");
    Status handled = outcome == SocketOutcome::kDone
                         ? handle(id, received, now)
                         : Status(fail(ErrorCode::kTooLarge, "a packet above " + std::to_string(kLanePacketBytesMax)));
    if (!handled) return doom(id, "memory_lane_refused", handled.error().to_string());
  }
}

void BrokerImpl::doom(ConnectionId id, std::string_view event, const std::string& why) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end() || entry->second.doomed) return;
  entry->second.doomed = true;
  doomed_.push_back(id);
  const auto level = event == "memory_lane_closed" ? log::Level::kInfo : log::Level::kWarning;
  log::write(level, event, "peer=" + entry->second.name() + " " + why);
}

void BrokerImpl::close_doomed(TimePoint now) {
  while (!doomed_.empty()) {  // telling the others may find more that cannot be reached
    const ConnectionId id = doomed_.back();
    doomed_.pop_back();
    close_connection(id, now);
  }
}

void BrokerImpl::close_connection(ConnectionId id, TimePoint now) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return;
  const std::optional<ActorId> who = entry->second.who;
  connections_.erase(entry);  // closing the socket takes it out of the epoll set
  constants_.user_gone(id);
  std::erase_if(parked_, [id](const ParkedOpen& parked) { return parked.asker == id; });
  if (!who) return;
  names_.erase(*who);
  tell_others(id, HolderGone{*who}, true);
  const auto owner = owners_.find(*who);
  if (owner == owners_.end()) return;
  owner->second.connection.reset();
  owner->second.next_ask = after(now, kAskEvery);
  for (auto& [segment, kept] : owner->second.segments) kept.keep_until = after(now, kOrphanKept);
  if (owner->second.segments.empty()) owners_.erase(owner);
  answer_parked(*who, std::nullopt, now);
  tell_others(id, OwnerGone{*who}, false);
}

void BrokerImpl::tell_others(ConnectionId except, const Message& message, bool owners_only) {
  for (const auto& [id, connection] : connections_) {
    if (id == except || !connection.who || connection.doomed) continue;
    if (!owners_only || owners_.contains(*connection.who)) send(id, message);
  }
}

// -- sending
// -----------------------------------------------------------------------------------------------------------

/// False if the descriptor could not be passed; everything else that fails ends the connection.
bool BrokerImpl::send(ConnectionId id, const Message& message, SharedFd fd) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end() || entry->second.doomed) return true;
  Connection& connection = entry->second;
  Result<std::string> frame = encode_packet(Envelope{}, message);
  if (!frame) {
    doom(id, "memory_lane_encode_failed", frame.error().to_string());
    return true;
  }
  if (connection.backlog.empty()) {
    switch (send_packet(connection.socket.get(), *frame, fd ? fd->get() : -1)) {
      case SocketOutcome::kDone:
        return true;
      case SocketOutcome::kNoDescriptors:
        return false;
      case SocketOutcome::kWouldBlock:
        break;
      case SocketOutcome::kTooLong:
      case SocketOutcome::kClosed:
        doom(id, "memory_lane_closed", "it cannot be written");
        return true;
    }
    watch(id, connection.socket.get(), true, EPOLL_CTL_MOD);
  }
  connection.backlog_bytes += frame->size();
  connection.backlog.push_back({std::move(*frame), std::move(fd)});
  if (connection.backlog.size() > kBacklogPacketsMax || connection.backlog_bytes > kBacklogBytesMax) {
    doom(id, "memory_lane_stuck", "it does not read: " + std::to_string(connection.backlog.size()) + " packets wait");
  }
  return true;
}

void BrokerImpl::flush(ConnectionId id) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end() || entry->second.doomed) return;
  Connection& connection = entry->second;
  while (!connection.backlog.empty()) {
    const Outgoing& next = connection.backlog.front();
    const SocketOutcome outcome = send_packet(connection.socket.get(), next.frame, next.fd ? next.fd->get() : -1);
    if (outcome == SocketOutcome::kWouldBlock) return;
    if (outcome != SocketOutcome::kDone) return doom(id, "memory_lane_closed", "it cannot be written");
    connection.backlog_bytes -= next.frame.size();
    connection.backlog.pop_front();
  }
  watch(id, connection.socket.get(), false, EPOLL_CTL_MOD);
}

// -- messages
// ----------------------------------------------------------------------------------------------------------

Status BrokerImpl::handle(ConnectionId id, ReceivedPacket& received, TimePoint now) {
  CALLBOARD_ASSIGN(Packet packet, decode_packet(received.bytes));
  Connection& connection = connections_.at(id);
  if (!connection.who) return hello(id, connection, packet);
  const ActorId who = *connection.who;
  if (packet.envelope.sender != who) {
    return fail(ErrorCode::kUnknownPeer, "a message in the name of " + packet.envelope.sender.to_string());
  }
  const Message& message = packet.message;
  if (const auto* added = std::get_if<SegmentAdded>(&message)) return add_segment(id, who, *added, received, now);
  if (const auto* pack = std::get_if<AddConstants>(&message)) return add_constants(id, *pack, received);
  if (!received.fds.empty()) {
    return fail(ErrorCode::kMalformed, "a descriptor with " + std::string(message_name(message)));
  }
  if (const auto* dropped = std::get_if<SegmentDropped>(&message)) {
    const auto owner = owners_.find(who);
    if (owner != owners_.end()) owner->second.segments.erase(dropped->segment);
  } else if (const auto* open = std::get_if<OpenSegment>(&message)) {
    open_segment(id, *open, now);
  } else if (const auto* release = std::get_if<ReleaseLeases>(&message)) {
    forward(*release);
  } else if (const auto* report = std::get_if<SegmentsHeld>(&message)) {
    held(*report, now);
  } else if (const auto* find = std::get_if<FindConstants>(&message)) {
    send(id, ConstantsFound{find->query, std::nullopt, constants_.find(id, find->hashes)});
  } else if (const auto* constant = std::get_if<OpenConstant>(&message)) {
    open_constant(id, *constant);
  } else if (const auto* unused = std::get_if<ReleaseConstants>(&message)) {
    constants_.release(id, unused->hashes);
  } else {
    return fail(ErrorCode::kUnexpectedMessage,
                std::string(message_name(message)) + " does not belong on the memory lane");
  }
  return {};
}

Status BrokerImpl::hello(ConnectionId id, Connection& connection, const Packet& packet) {
  const auto* hello = std::get_if<MemoryHello>(&packet.message);
  if (!hello) {
    return fail(ErrorCode::kUnexpectedMessage, std::string(message_name(packet.message)) + " before memory_hello");
  }
  if (hello->who.name.empty() || packet.envelope.sender != hello->who) {
    return fail(ErrorCode::kMalformed, "a memory_hello without a name, or in another's name");
  }
  if (!names_.try_emplace(hello->who, id).second) {
    return fail(ErrorCode::kAddressInUse, hello->who.to_string() + " is connected already");
  }
  connection.who = hello->who;
  connection.hello_deadline = kNever;
  send(id, MemoryWelcome{});
  return {};
}

Status BrokerImpl::add_segment(ConnectionId id, const ActorId& who, const SegmentAdded& added, ReceivedPacket& received,
                               TimePoint now) {
  const std::string what = "segment " + std::to_string(added.segment);
  if (received.fds.size() != 1 && !received.fds_lost)
    return fail(ErrorCode::kMalformed, what + " without one descriptor");
  UniqueFd fd;
  if (received.fds.size() == 1 && !received.fds_lost) {
    fd = std::move(received.fds.front());
    struct stat info {};
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    const int flags = ::fcntl(fd.get(), F_GETFL);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || flags < 0 || (flags & O_ACCMODE) != O_RDONLY ||
        ::fstat(fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != added.bytes) {
      return fail(ErrorCode::kMalformed, what + " is no read-only, sealed memory file of the size told");
    }
  } else {
    log::error("memory_lane_no_descriptors", what + " of " + who.to_string() + " cannot be kept: raise RLIMIT_NOFILE");
  }
  Owner& owner = owners_[who];
  owner.connection = id;
  if (owner.segments.size() >= kSegmentsPerOwnerMax) return fail(ErrorCode::kOverloaded, "too many segments");
  const bool inserted =
      owner.segments.try_emplace(added.segment, KeptSegment{std::make_shared<UniqueFd>(std::move(fd)), added.bytes})
          .second;
  if (!inserted || added.segment == 0) return fail(ErrorCode::kMalformed, what + " was added before");
  owner.highest = std::max(owner.highest, added.segment);
  answer_parked(who, added.segment, now);
  return {};
}

void BrokerImpl::open_segment(ConnectionId id, const OpenSegment& question, TimePoint now) {
  const auto refuse = [&](Error error) { send(id, SegmentOpened{question.query, std::move(error), 0}); };
  const auto owner = owners_.find(question.owner);
  const bool known = owner != owners_.end();
  const bool connected = names_.contains(question.owner);
  if (known) {
    const auto segment = owner->second.segments.find(question.segment);
    if (segment != owner->second.segments.end()) {
      KeptSegment& kept = segment->second;
      const auto no_room = [&] {
        return Error(ErrorCode::kResourceExhausted,
                     "segment " + std::to_string(question.segment) + " of " + question.owner.to_string() +
                         " cannot be passed on: the node actor has no descriptor left",
                     "raise RLIMIT_NOFILE (ulimit -n) where the cluster is started");
      };
      if (!*kept.fd) return refuse(no_room());
      if (kept.keep_until != kNever) kept.keep_until = std::max(kept.keep_until, after(now, kHeldKept));
      if (!send(id, SegmentOpened{question.query, std::nullopt, kept.bytes}, kept.fd)) refuse(no_room());
      return;
    }
  }
  // Numbers grow: a lower one than the highest seen was here and has been dropped.
  if (connected && (!known || question.segment > owner->second.highest) && parked_.size() < kParkedMax) {
    parked_.push_back({id, question, after(now, kParkedWait)});
    return;
  }
  refuse(
      tensor_lost(question.owner, question.segment, connected ? "its owner has given it back" : "its owner has ended"));
}

void BrokerImpl::answer_parked(const ActorId& owner, std::optional<SegmentId> segment, TimePoint now) {
  std::vector<ParkedOpen> ready;
  std::erase_if(parked_, [&](ParkedOpen& parked) {
    if (parked.question.owner != owner || (segment && parked.question.segment != *segment)) return false;
    ready.push_back(std::move(parked));
    return true;
  });
  for (const ParkedOpen& parked : ready) open_segment(parked.asker, parked.question, now);
}

Status BrokerImpl::add_constants(ConnectionId id, const AddConstants& added, ReceivedPacket& received) {
  if (received.fds_lost) {
    send(id, ConstantsAdded{added.query, Error(ErrorCode::kResourceExhausted,
                                               "the node actor has no descriptor left for a segment of constants",
                                               "raise RLIMIT_NOFILE (ulimit -n) where the cluster is started")});
    return {};
  }
  if (received.fds.size() != 1) return fail(ErrorCode::kMalformed, "constants without one descriptor");
  const Status kept = constants_.add(id, std::move(received.fds.front()), added.bytes, added.spans, added.file);
  send(id, ConstantsAdded{added.query, kept ? std::nullopt : std::optional(kept.error())});
  return {};
}

void BrokerImpl::open_constant(ConnectionId id, const OpenConstant& question) {
  const auto refuse = [&](Error error) {
    send(id, ConstantOpened{question.query, std::move(error), 0, 0, {}, std::nullopt});
  };
  Result<SharedConstants::Opened> opened = constants_.open(id, question.hash);
  if (!opened) return refuse(std::move(opened).error());
  const ConstantOpened answer{question.query,        std::nullopt, opened->segment,
                              opened->segment_bytes, opened->span, opened->file};
  if (send(id, answer, opened->fd)) return;
  refuse(Error(ErrorCode::kResourceExhausted,
               "constant " + question.hash.hex() + " cannot be passed on: too many descriptors on their way",
               "raise RLIMIT_NOFILE (ulimit -n)"));
}

void BrokerImpl::forward(const ReleaseLeases& release) {
  const auto owner = names_.find(release.owner);
  if (owner != names_.end()) send(owner->second, release);
}

void BrokerImpl::held(const SegmentsHeld& held, TimePoint now) {
  const auto owner = owners_.find(held.owner);
  if (owner == owners_.end() || owner->second.connection) return;
  for (const SegmentId id : held.segments) {
    const auto segment = owner->second.segments.find(id);
    if (segment == owner->second.segments.end()) continue;
    segment->second.keep_until = std::max(segment->second.keep_until, after(now, kHeldKept));
  }
}

// -- time
// --------------------------------------------------------------------------------------------------------------

void BrokerImpl::on_tick(TimePoint now) {
  for (const auto& [id, connection] : connections_) {
    if (connection.hello_deadline <= now) doom(id, "memory_lane_silent", "no hello in time");
  }
  std::vector<ParkedOpen> expired;
  std::erase_if(parked_, [&](ParkedOpen& parked) {
    if (parked.deadline > now) return false;
    expired.push_back(std::move(parked));
    return true;
  });
  for (const ParkedOpen& parked : expired) {
    send(parked.asker,
         SegmentOpened{parked.question.query,
                       tensor_lost(parked.question.owner, parked.question.segment, "its owner has not told of it"), 0});
  }
  std::vector<ActorId> ask;
  for (auto entry = owners_.begin(); entry != owners_.end();) {
    Owner& owner = entry->second;
    if (owner.next_ask <= now) {
      // What was reported held since the last asking stays until the holder can have answered, however late this tick
      // is.
      for (auto& [id, kept] : owner.segments) {
        if (kept.keep_until > owner.next_ask) kept.keep_until = std::max(kept.keep_until, after(now, kAnswerWait));
      }
      owner.next_ask = after(now, kAskEvery);
      ask.push_back(entry->first);
    }
    std::erase_if(owner.segments, [now](const auto& segment) { return segment.second.keep_until <= now; });
    if (!owner.connection && owner.segments.empty()) {
      entry = owners_.erase(entry);
      continue;
    }
    ++entry;
  }
  for (const ActorId& owner : ask) tell_others(kListener, OwnerGone{owner}, false);
  close_doomed(now);
}

TimePoint BrokerImpl::next_tick() const {
  TimePoint next = kNever;
  for (const auto& [id, connection] : connections_) next = std::min(next, connection.hello_deadline);
  for (const ParkedOpen& parked : parked_) next = std::min(next, parked.deadline);
  for (const auto& [who, owner] : owners_) {
    if (owner.connection) continue;
    next = std::min(next, owner.next_ask);
    for (const auto& [segment, kept] : owner.segments) next = std::min(next, kept.keep_until);
  }
  return next;
}

MemoryBroker::Stats BrokerImpl::stats() const {
  Stats stats;
  stats.connections = connections_.size();
  for (const auto& [who, owner] : owners_) {
    stats.segments += owner.segments.size();
    if (!owner.connection) stats.orphaned_segments += owner.segments.size();
    for (const auto& [id, kept] : owner.segments) stats.segment_bytes += kept.bytes;
  }
  stats.constants = constants_.constants();
  stats.constant_bytes = constants_.bytes();
  return stats;
}

}  // namespace

Result<std::unique_ptr<MemoryBroker>> MemoryBroker::create(const std::string& socket_path) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd reserve(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll || !reserve) {
    return fail(ErrorCode::kResourceExhausted, "memory lane " + socket_path + ": " + std::strerror(errno),
                "raise RLIMIT_NOFILE (ulimit -n)");
  }
  CALLBOARD_ASSIGN(UniqueFd listener, listen_seqpacket(socket_path, static_cast<int>(kConnectionsMax)));
  auto broker = std::make_unique<BrokerImpl>(socket_path, std::move(listener), std::move(epoll), std::move(reserve));
  CALLBOARD_TRY(broker->start());
  return broker;
}

}  // namespace callboard::actors
