// A reliable, ordered stream of messages to one peer over a transport that may lose, double, delay and reorder. Pure:
// no clock, no I/O; the simulator runs this very code.
//
//   LK-1  The receiver sees each numbered message once, in order, whatever the transport does.
//   LK-2  At most `window` messages and `window_bytes` bytes wait for an acknowledgement; more is kOverloaded.
//   LK-3  A message that `resends_max` resends did not bring through makes the link lost, once. The wait doubles after
//         each resend, and starts anew when an acknowledgement makes progress: a slow peer is not a lost one.
//   LK-4  An idle link sends nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/container/small_vector.hpp>

#include "messages/base/clock.h"
#include "messages/codec.h"
#include "messages/limits.h"

namespace callboard::actors {

class Link {
 public:
  struct Options {
    std::size_t window = limits::kLinkWindowMax;
    std::size_t window_bytes = limits::kLinkWindowBytesMax;
    Duration resend_after = limits::kLinkResendAfter;
    std::uint32_t resends_max = limits::kLinkResendsMax;
    Duration ack_delay = limits::kLinkAckDelay;
    std::uint32_t ack_every = limits::kLinkAckEvery;
  };
  Link(ActorId self, ActorId peer, Options options);

  const ActorId& peer() const { return peer_; }
  /// For who learns only from the Welcome whom it talks to.
  void set_peer(ActorId peer) { peer_ = std::move(peer); }
  void set_epoch(Epoch epoch) { epoch_ = epoch; }

  /// Numbers, encodes and remembers a message; the frame to put on the transport is returned. The remembered copy
  /// shares the bytes. kOverloaded, kTooLarge, kPeerLost (after LK-3).
  Result<std::shared_ptr<const std::string>> send(const Message& message, TimePoint now);
  /// Not numbered, not remembered (beats, handshake).
  Result<std::shared_ptr<const std::string>> send_once(const Message& message);

  struct Received {
    boost::container::small_vector<Message, 1> messages;  ///< now deliverable, in order
    bool ack_now = false;           ///< next_due() is `now`: on_time() gives the Ack, unless a message carries it first
  };
  /// Handshake messages and beats (seq 0) come through as they are; an Ack is consumed.
  Received receive(Packet&& packet, TimePoint now);

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
  };
  std::shared_ptr<const std::string> make_ack();
  void acknowledged(std::uint64_t up_to, TimePoint now);
  void deliver(Message&& message, Received& received);
  void resend_window(Due& due);
  bool resend_pending() const;
  void ack_is_on_its_way();

  ActorId self_;
  ActorId peer_;
  Options options_;
  Epoch epoch_ = 0;
  bool lost_ = false;

  // sending
  std::uint64_t next_seq_ = 1;
  std::deque<Pending> pending_;        // sent, not acknowledged, by seq without gaps
  std::size_t pending_bytes_ = 0;
  TimePoint resend_at_ = kNever;       // kNever exactly while pending_ is empty
  std::uint32_t resends_ = 0;          // of the oldest pending message
  std::uint64_t recover_up_to_ = 0;    // what was sent before the last time-out and may be lost
  std::uint64_t resent_up_to_ = 0;     // how far that has been resent

  // receiving
  std::uint64_t received_up_to_ = 0;
  std::uint32_t received_since_ack_ = 0;
  TimePoint ack_at_ = kNever;
  std::map<std::uint64_t, Message> early_;  // at most kLinkReorderMax, all above received_up_to_ + 1

  Counters counters_;
};

}  // namespace callboard::actors
