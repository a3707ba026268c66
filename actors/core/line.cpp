#include "actors/core/transport.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "actors/core/channel.h"
#include "actors/core/direct_lane.h"
#include "actors/core/ipc_path.h"
#include "actors/core/socket.h"
#include "actors/core/unix_socket.h"
#include "messages/base/log.h"
#include "messages/codec.h"

namespace callboard::actors {
namespace {

constexpr Duration kHelloAgain = std::chrono::seconds(1);

class ZmqLine final : public Line {
 public:
  ZmqLine(Loop& loop, Messenger& messenger, Options options, Events events)
      : loop_(loop),
        options_(std::move(options)),
        events_(std::make_shared<const Events>(std::move(events))),
        channel_{Link(options_.hello.who, ActorId{options_.endpoint, 0}, options_.link)},
        socket_(messenger, options_.send_high_water),
        alarm_(loop, [this] { on_alarm(); }) {}
  ~ZmqLine() override;

  Status open();
  Status send(const Message& message) override;
  Status send_once(const Message& message) override;
  bool connected() const override { return channel_.open && !lost_; }
  bool direct() const override { return lane_ != nullptr; }

 private:
  auto putter() {
    return [this](const Frame& frame) { return put(frame); };
  }
  bool put(const Frame& frame);
  void open_lane();
  void on_ready();
  void on_frame(std::string_view bytes);
  void on_answer(const Packet& packet);
  void on_alarm();
  void say_hello(TimePoint now);
  void set_alarm();
  void lose(Error why);

  Loop& loop_;
  Options options_;
  std::shared_ptr<const Events> events_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Channel channel_;
  Socket socket_;
  std::unique_ptr<DirectLane> lane_;
  Frame hello_;
  TimePoint hello_at_ = kNever;
  TimePoint deadline_ = kNever;  // of the Welcome
  Epoch epoch_ = 0;
  std::optional<Error> lost_;
  Alarm alarm_;
};

bool ZmqLine::put(const Frame& frame) {
  if (lane_) return lane_->put(frame);
  loop_.socket_used();
  return socket_.put(frame);
}

/// Nothing numbered has been sent yet, so that nothing can overtake it.
void ZmqLine::open_lane() {
  const std::string path = options_.direct ? direct_lane_path(ipc_path_of(options_.endpoint)) : std::string();
  if (path.empty()) return;
  Result<UniqueFd> socket = connect_stream(path);
  if (!socket) return log::debug("no_direct_lane", socket.error().message);
  DirectLane::Events events;
  events.frame = [this](std::string_view frame) { on_frame(frame); };
  events.ended = [this](const std::string& why) {
    log::debug("direct_lane_ended", channel_.link.peer().to_string() + ": " + why);
    lane_.reset();
  };
  lane_ = std::make_unique<DirectLane>(loop_, std::move(*socket), std::move(events));
  lane_->put(hello_);
}

ZmqLine::~ZmqLine() {
  if (socket_.native() != nullptr) loop_.unwatch_socket(socket_.native());
  if (!connected()) return;
  channel_.flush(Clock::now(), putter());
  const auto bye = channel_.link.send_once(Bye{"closed"});
  if (!bye) return;
  if (lane_ && channel_.send_once(*bye, putter()) && lane_->finish()) return;
  // A lane that is full now loses what it holds; ZeroMQ goes on for a moment.
  lane_.reset();
  channel_.send_once(*bye, putter());
}

Status ZmqLine::open() {
  const std::string routing = options_.hello.who.to_string();
  if (options_.hello.who.name.empty() || routing.size() > kRoutingIdMax) {
    return fail(ErrorCode::kBadArgument, "'" + routing + "' is no name for an actor: 1 to 200 bytes");
  }
  CALLBOARD_ASSIGN(hello_, channel_.link.send_once(options_.hello));
  CALLBOARD_TRY(socket_.connect(options_.endpoint, routing));
  loop_.watch_socket(socket_.native(), [this] { on_ready(); });
  const TimePoint now = Clock::now();
  deadline_ = after(now, options_.connect_timeout);
  say_hello(now);
  set_alarm();
  return {};
}

void ZmqLine::say_hello(TimePoint now) {
  put(hello_);
  hello_at_ = after(now, kHelloAgain);
}

Status ZmqLine::send(const Message& message) {
  if (lost_) return fail(*lost_);
  const TimePoint now = Clock::now();
  CALLBOARD_ASSIGN(Frame frame, channel_.link.send(message, now));
  channel_.send(std::move(frame), now, putter());
  set_alarm();
  return {};
}

Status ZmqLine::send_once(const Message& message) {
  if (lost_) return fail(*lost_);
  CALLBOARD_ASSIGN(Frame frame, channel_.link.send_once(message));
  if (channel_.send_once(frame, putter())) return {};
  return fail(ErrorCode::kOverloaded, "'" + options_.endpoint + "' takes nothing at the moment");
}

void ZmqLine::on_ready() {
  const std::weak_ptr<int> alive = alive_;
  for (std::size_t count = 0; count < kDrainMax; ++count) {
    const Socket::Got got = socket_.receive();
    if (got == Socket::Got::kNothing) break;
    if (got == Socket::Got::kFrame) on_frame(socket_.frame());
    if (alive.expired() || lost_) return;
  }
  const TimePoint now = Clock::now();
  if (channel_.retry_at != kNever) channel_.flush(now, putter());
  set_alarm();
}

void ZmqLine::on_frame(std::string_view bytes) {
  Result<Packet> packet = decode_packet(bytes);
  if (!packet) {
    if (packet.error().code == ErrorCode::kVersionMismatch && !channel_.open) return lose(packet.error());
    return log::debug("frame_refused", packet.error().message);
  }
  if (!channel_.open) return on_answer(*packet);
  if (packet->envelope.sender != channel_.link.peer() || packet->envelope.epoch != epoch_) return;
  const auto events = events_;
  const std::weak_ptr<int> alive = alive_;
  Link::Received received = channel_.link.receive(std::move(*packet), Clock::now());
  for (Message& message : received.messages) {
    if (const auto* bye = std::get_if<Bye>(&message)) {
      return lose(Error(ErrorCode::kPeerLost, channel_.link.peer().to_string() + " said goodbye: " + bye->reason));
    }
    if (const auto* refused = std::get_if<Refused>(&message)) return lose(refused->error);
    if (std::holds_alternative<Welcome>(message) || std::holds_alternative<Hello>(message)) continue;
    if (events->message) events->message(std::move(message));
    if (alive.expired() || lost_) return;
  }
  set_alarm();
}

void ZmqLine::on_answer(const Packet& packet) {
  if (const auto* refused = std::get_if<Refused>(&packet.message)) return lose(refused->error);
  const auto* welcome = std::get_if<Welcome>(&packet.message);
  if (welcome == nullptr || welcome->coordinator != packet.envelope.sender) return;
  epoch_ = welcome->epoch;
  channel_.link.set_epoch(epoch_);
  channel_.link.set_peer(welcome->coordinator);
  channel_.open = true;
  open_lane();
  channel_.flush(Clock::now(), putter());
  const auto events = events_;
  if (events->welcome) events->welcome(*welcome);
}

void ZmqLine::on_alarm() {
  const TimePoint now = Clock::now();
  if (!channel_.open) {
    if (deadline_ <= now) {
      return lose(Error(ErrorCode::kNotReady, "'" + options_.endpoint + "' did not answer in time",
                        "check with 'callboard status' that the cluster is running"));
    }
    if (hello_at_ <= now) say_hello(now);
  } else if (!channel_.on_time(now, putter())) {
    return lose(
        Error(ErrorCode::kPeerLost, channel_.link.peer().to_string() + " has not acknowledged a message for too long"));
  }
  set_alarm();
}

void ZmqLine::set_alarm() {
  if (lost_) return;
  alarm_.no_later_than(channel_.open ? channel_.next_due() : std::min(hello_at_, deadline_));
}

void ZmqLine::lose(Error why) {
  const auto events = events_;
  lost_ = why;
  lane_.reset();
  loop_.unwatch_socket(socket_.native());
  alarm_.clear();
  if (events->lost) events->lost(why);
}

}  // namespace

Result<std::unique_ptr<Line>> Line::connect(Loop& loop, Messenger& messenger, Options options, Events events) {
  auto line = std::make_unique<ZmqLine>(loop, messenger, std::move(options), std::move(events));
  CALLBOARD_TRY(line->open());
  return line;
}

}  // namespace callboard::actors
