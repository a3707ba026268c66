// The link under a transport that loses, doubles, delays and reorders, with a virtual clock.
#include "actors/core/link.h"

#include <functional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using Frame = std::shared_ptr<const std::string>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(1'000)};

Message numbered(std::uint64_t number) { return Operation{number, "count", ""}; }

std::uint64_t number_of(const Message& message) { return std::get<Operation>(message).request; }

Packet decoded(const Frame& frame) {
  auto packet = decode_packet(*frame);
  REQUIRE(packet);
  return std::move(*packet);
}

Link make_link(const std::string& self, const std::string& peer, Link::Options options = {}) {
  return Link(ActorId{self, 1}, ActorId{peer, 1}, options);
}

struct Faults {
  double drop = 0;
  double twice = 0;
  milliseconds delay_max{0};
};

/// Two links and what lies between them.
class Wire {
 public:
  Wire(std::uint64_t seed, Faults faults, Link::Options options = {})
      : random_(seed), faults_(faults), links_{make_link("a", "b", options), make_link("b", "a", options)} {}

  Result<Frame> send(int from, std::uint64_t number) {
    auto frame = links_[from].send(numbered(number), now_);
    if (frame) put(from, *frame);
    return frame;
  }

  /// Until nothing is on its way and no link has anything due before `until`.
  void run(TimePoint until) {
    while (true) {
      TimePoint next = std::min(links_[0].next_due(), links_[1].next_due());
      if (!in_flight_.empty()) next = std::min(next, in_flight_.top().arrives);
      if (next > until || next == kNever) break;
      now_ = std::max(now_, next);
      for (int side = 0; side < 2; ++side) {
        if (links_[side].next_due() > now_) continue;
        const Link::Due due = links_[side].on_time(now_);
        lost_[side] += due.lost ? 1 : 0;
        for (const Frame& frame : due.frames) put(side, frame);
      }
      while (!in_flight_.empty() && in_flight_.top().arrives <= now_) {
        const OnTheWay arrived = in_flight_.top();
        in_flight_.pop();
        for (const Message& message : links_[arrived.to].receive(decoded(arrived.frame), now_).messages) {
          received_[arrived.to].push_back(number_of(message));
        }
      }
    }
    if (until != kNever) now_ = std::max(now_, until);
  }

  void set_faults(Faults faults) { faults_ = faults; }
  Link& link(int side) { return links_[side]; }
  const std::vector<std::uint64_t>& received(int side) const { return received_[side]; }
  int lost(int side) const { return lost_[side]; }
  std::size_t frames_put() const { return frames_put_; }
  TimePoint now() const { return now_; }

 private:
  struct OnTheWay {
    TimePoint arrives;
    std::uint64_t order = 0;
    int to = 0;
    Frame frame;
    bool operator<(const OnTheWay& other) const {
      return std::pair(arrives, order) > std::pair(other.arrives, other.order);
    }
  };

  void put(int from, const Frame& frame) {
    ++frames_put_;
    std::uniform_real_distribution<double> chance(0, 1);
    const int copies = chance(random_) < faults_.drop ? 0 : chance(random_) < faults_.twice ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      std::uniform_int_distribution<std::int64_t> delay(0, faults_.delay_max.count());
      in_flight_.push({now_ + milliseconds(delay(random_)), order_++, 1 - from, frame});
    }
  }

  std::mt19937_64 random_;
  Faults faults_;
  Link links_[2];
  TimePoint now_ = kStart;
  std::uint64_t order_ = 0;
  std::priority_queue<OnTheWay> in_flight_;
  std::vector<std::uint64_t> received_[2];
  int lost_[2] = {0, 0};
  std::size_t frames_put_ = 0;
};

std::vector<std::uint64_t> one_to(std::uint64_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::uint64_t i = 0; i < count; ++i) numbers[i] = i + 1;
  return numbers;
}

TEST_CASE("LK-1: each message arrives once and in order through loss, doubling, delay and reordering") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const Faults faults{static_cast<double>(random() % 30) / 100, static_cast<double>(random() % 50) / 100,
                        milliseconds(random() % 300)};
    Wire wire(seed, faults);
    const std::uint64_t count = 1 + random() % 300;
    std::uint64_t sent[2] = {0, 0};
    while (sent[0] < count || sent[1] < count) {
      const int side = sent[0] >= count ? 1 : sent[1] >= count ? 0 : static_cast<int>(random() % 2);
      REQUIRE(wire.send(side, ++sent[side]));
      if (random() % 8 == 0) wire.run(wire.now() + milliseconds(random() % 100));
    }
    wire.run(wire.now() + seconds(600));
    wire.set_faults({});  // what 30 % loss held up for long comes through in the end, or the link says that it is lost
    wire.run(wire.now() + seconds(200));
    if (wire.lost(0) + wire.lost(1) == 0) {
      REQUIRE(wire.received(0) == one_to(count));
      REQUIRE(wire.received(1) == one_to(count));
      REQUIRE(wire.link(0).unacknowledged() == 0);
      REQUIRE(wire.link(1).unacknowledged() == 0);
    } else {
      for (int side = 0; side < 2; ++side) {
        REQUIRE(wire.received(side) == one_to(wire.received(side).size()));
      }
    }
  }
}

TEST_CASE("LK-1: a whole window that was lost comes through without waiting a time-out for each part of it") {
  Wire wire(7, {.drop = 1.0});
  for (std::uint64_t i = 1; i <= 1'000; ++i) REQUIRE(wire.send(0, i));
  wire.run(wire.now() + milliseconds(500));
  REQUIRE(wire.received(1).empty());
  wire.set_faults({});
  wire.run(wire.now() + seconds(3));
  REQUIRE(wire.received(1) == one_to(1'000));
}

TEST_CASE("LK-1: what is too far ahead of a gap is not kept, and arrives all the same") {
  Link receiver = make_link("b", "a");
  Link sender = make_link("a", "b");
  std::vector<Frame> frames;
  for (std::uint64_t i = 1; i <= limits::kLinkReorderMax + 5; ++i) frames.push_back(*sender.send(numbered(i), kStart));
  for (std::size_t i = 1; i < frames.size(); ++i) {
    CHECK(receiver.receive(decoded(frames[i]), kStart).messages.empty());
  }
  const auto received = receiver.receive(decoded(frames[0]), kStart).messages;
  CHECK(received.size() == limits::kLinkReorderMax);
  CHECK(receiver.receive(decoded(frames[limits::kLinkReorderMax]), kStart).messages.size() == 1);
}

TEST_CASE("R59: a frame that comes again is delivered once and acknowledged again") {
  Wire wire(3, {.twice = 1.0});
  for (std::uint64_t i = 1; i <= 100; ++i) REQUIRE(wire.send(0, i));
  wire.run(wire.now() + seconds(10));
  CHECK(wire.received(1) == one_to(100));
  CHECK(wire.link(1).counters().duplicates == 100);

  Link sender = make_link("a", "b");
  Link receiver = make_link("b", "a");
  const Frame frame = *sender.send(numbered(1), kStart);
  CHECK(receiver.receive(decoded(frame), kStart).messages.size() == 1);
  receiver.on_time(kStart + seconds(1));  // its Ack is lost on the way
  const auto again = receiver.receive(decoded(frame), kStart + seconds(2));
  CHECK(again.messages.empty());
  CHECK(again.ack_now);
  const Link::Due due = receiver.on_time(kStart + seconds(2));
  REQUIRE(due.frames.size() == 1);
  sender.receive(decoded(due.frames[0]), kStart + seconds(2));
  CHECK(sender.unacknowledged() == 0);
}

TEST_CASE("LK-2: a window of messages, then kOverloaded until an acknowledgement") {
  Wire wire(1, {}, {.window = 10});
  for (std::uint64_t i = 1; i <= 10; ++i) REQUIRE(wire.send(0, i));
  const auto refused = wire.send(0, 11);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
  CHECK(wire.link(0).unacknowledged() == 10);
  wire.run(wire.now() + seconds(1));
  CHECK(wire.send(0, 11));
  wire.run(wire.now() + seconds(1));
  CHECK(wire.received(1) == one_to(11));
}

TEST_CASE("LK-2: a window of bytes, but one message of any size goes alone") {
  Link link = make_link("a", "b", {.window_bytes = 1'000});
  const Message large = Operation{1, "count", std::string(5'000, 'x')};
  REQUIRE(link.send(large, kStart));
  const auto second = link.send(numbered(2), kStart);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kOverloaded);

  Link other = make_link("a", "b", {.window_bytes = 1'000});
  REQUIRE(other.send(numbered(1), kStart));
  const auto too_much = other.send(large, kStart);
  REQUIRE_FALSE(too_much);
  CHECK(too_much.error().code == ErrorCode::kOverloaded);
  CHECK(other.send(numbered(2), kStart));
}

TEST_CASE("LK-2: a refused message leaves no gap in the numbers") {
  Wire wire(1, {});
  REQUIRE(wire.send(0, 1));
  const auto refused = wire.link(0).send(Operation{0, "x", std::string(limits::kMessageBytesMax + 1, 'x')}, wire.now());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kTooLarge);
  REQUIRE(wire.send(0, 2));
  wire.run(wire.now() + seconds(1));
  CHECK(wire.received(1) == one_to(2));
}

TEST_CASE("LK-3: a message that no resend brings through makes the link lost, once") {
  Wire wire(1, {.drop = 1.0});
  REQUIRE(wire.send(0, 1));
  wire.run(wire.now() + seconds(62));
  CHECK(wire.lost(0) == 0);
  CHECK(wire.link(0).counters().resent == limits::kLinkResendsMax);
  wire.run(wire.now() + seconds(2));
  CHECK(wire.lost(0) == 1);
  wire.run(wire.now() + seconds(1'000));
  CHECK(wire.lost(0) == 1);
  CHECK(wire.link(0).next_due() == kNever);
  const auto refused = wire.send(0, 2);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kPeerLost);
}

TEST_CASE("LK-3: a peer that acknowledges slowly is not lost") {
  Link sender = make_link("a", "b");
  Link receiver = make_link("b", "a");
  std::vector<Frame> frames;
  for (std::uint64_t i = 1; i <= 20; ++i) frames.push_back(*sender.send(numbered(i), kStart));
  TimePoint now = kStart;
  for (const Frame& frame : frames) {  // 20 times 30 s: far more than five resends of any one message
    now += seconds(30);
    while (sender.next_due() <= now) REQUIRE_FALSE(sender.on_time(std::max(sender.next_due(), kStart)).lost);
    receiver.receive(decoded(frame), now);
    for (const Frame& ack : receiver.on_time(now + seconds(1)).frames) sender.receive(decoded(ack), now);
  }
  CHECK(sender.unacknowledged() == 0);
}

TEST_CASE("LK-4: an idle link sends nothing") {
  Wire wire(1, {});
  CHECK(wire.link(0).next_due() == kNever);
  for (std::uint64_t i = 1; i <= 5; ++i) REQUIRE(wire.send(0, i));
  wire.run(wire.now() + seconds(1));
  const std::size_t before = wire.frames_put();
  CHECK(wire.link(0).next_due() == kNever);
  CHECK(wire.link(1).next_due() == kNever);
  CHECK(wire.link(0).on_time(wire.now() + seconds(10'000)).frames.empty());
  CHECK(wire.link(1).on_time(wire.now() + seconds(10'000)).frames.empty());
  CHECK(wire.frames_put() == before);
  CHECK(wire.link(1).counters().sent == 1);  // one Ack for the five
}

TEST_CASE("an acknowledgement rides on a message where one is sent in time") {
  Link a = make_link("a", "b");
  Link b = make_link("b", "a");
  b.receive(decoded(*a.send(numbered(1), kStart)), kStart);
  CHECK(b.next_due() == kStart + limits::kLinkAckDelay);
  a.receive(decoded(*b.send(numbered(1), kStart)), kStart);
  CHECK(a.unacknowledged() == 0);
  CHECK(b.next_due() > kStart + limits::kLinkAckDelay);  // its own resend, no Ack
}

TEST_CASE("many messages are acknowledged before the delay is over") {
  Link a = make_link("a", "b");
  Link b = make_link("b", "a");
  for (std::uint64_t i = 1; i < limits::kLinkAckEvery; ++i) {
    CHECK_FALSE(b.receive(decoded(*a.send(numbered(i), kStart)), kStart).ack_now);
  }
  CHECK(b.receive(decoded(*a.send(numbered(64), kStart)), kStart).ack_now);
  CHECK(b.next_due() == kStart);
}

TEST_CASE("an acknowledgement of what was never sent counts for nothing") {
  Link a = make_link("a", "b");
  REQUIRE(a.send(numbered(1), kStart));
  a.receive(Packet{Envelope{0, ActorId{"b", 1}, 0, 1'000'000}, Ack{}}, kStart);
  CHECK(a.unacknowledged() == 1);
  a.receive(Packet{Envelope{0, ActorId{"b", 1}, 0, 1}, Ack{}}, kStart);
  CHECK(a.unacknowledged() == 0);
}

TEST_CASE("messages without a number come through as they are and are never resent") {
  Link a = make_link("a", "b");
  Link b = make_link("b", "a");
  const Frame beat = *a.send_once(Beat{7});
  CHECK(a.next_due() == kNever);
  for (int i = 0; i < 2; ++i) {
    const auto received = b.receive(decoded(beat), kStart).messages;
    REQUIRE(received.size() == 1);
    CHECK(std::get<Beat>(received[0]).count == 7);
  }
  CHECK(b.next_due() == kNever);
}

}  // namespace
}  // namespace callboard::actors
