// A reliable, ordered stream of messages to one peer over a transport that may lose, double, delay and reorder. Pure: no
// clock, no I/O; the simulator runs this very code.
//
//   LK-1  The receiver sees each numbered message once, in order, whatever the transport does.
//   LK-2  At most kLinkWindowMax messages wait for an acknowledgement; then send() answers kOverloaded.
//   LK-3  A message that kLinkResendsMax resends did not bring through makes the link lost, once.
//   LK-4  An idle link sends nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/base/clock.h"
#include "messages/codec.h"
#include "messages/limits.h"

namespace callboard::actors {

class Link {
 public:
  struct Options {
    std::size_t window = limits::kLinkWindowMax;
    Duration resend_after = limits::kLinkResendAfter;
    std::uint32_t resends_max = limits::kLinkResendsMax;
    Duration ack_delay = limits::kLinkAckDelay;
    std::uint32_t ack_every = limits::kLinkAckEvery;
  };
  Link(ActorId self, ActorId peer, Options options);

  const ActorId& peer() const { return peer_; }
  void set_epoch(Epoch epoch) { epoch_ = epoch; }

  /// Numbers, encodes and remembers a message; the frame to put on the transport is returned. The remembered copy shares
  /// the bytes. kOverloaded, kTooLarge.
  Result<std::shared_ptr<const std::string>> send(const Message& message, TimePoint now);
  /// Not numbered, not remembered (beats, handshake).
  Result<std::shared_ptr<const std::string>> send_once(const Message& message);

  struct Received {
    std::vector<Message> messages;  ///< now deliverable, in order
    bool ack_now = false;           ///< put make_ack() on the transport at once
  };
  Received receive(Packet packet, TimePoint now);

  struct Due {
    std::vector<std::shared_ptr<const std::string>> frames;  ///< resends and a delayed Ack
    bool lost = false;
  };
  /// What is due at `now`; call when next_due() has come.
  Due on_time(TimePoint now);
  TimePoint next_due() const;

  struct Counters {
    std::uint64_t sent = 0, resent = 0, received = 0, duplicates = 0, reordered = 0;
  };
  const Counters& counters() const { return counters_; }
  std::size_t unacknowledged() const { return pending_.size(); }

 private:
  struct Pending {
    std::uint64_t seq = 0;
    std::shared_ptr<const std::string> frame;
    TimePoint resend_at;
    std::uint32_t resends = 0;
  };
  std::shared_ptr<const std::string> make_ack();

  ActorId self_;
  ActorId peer_;
  Options options_;
  Epoch epoch_ = 0;
  std::uint64_t next_seq_ = 1;
  std::uint64_t received_up_to_ = 0;
  std::uint32_t received_since_ack_ = 0;
  TimePoint ack_at_ = kNever;
  bool lost_ = false;
  std::deque<Pending> pending_;
  std::map<std::uint64_t, Message> early_;
  Counters counters_;
};

}  // namespace callboard::actors
