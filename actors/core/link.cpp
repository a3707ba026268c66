#include "actors/core/link.h"

#include <algorithm>
#include <utility>

namespace callboard::actors {

Link::Link(ActorId self, ActorId peer, Options options)
    : self_(std::move(self)), peer_(std::move(peer)), options_(options) {}

Result<std::shared_ptr<const std::string>> Link::send(const Message& message, TimePoint now) {
  if (lost_) return fail(ErrorCode::kPeerLost, "the link to " + peer_.to_string() + " is lost");
  if (pending_.size() >= options_.window || pending_bytes_ >= options_.window_bytes) {
    return fail(ErrorCode::kOverloaded,
                peer_.to_string() + " has not acknowledged " + std::to_string(pending_.size()) + " messages (" +
                    std::to_string(pending_bytes_) + " bytes); the limit is " + std::to_string(options_.window) +
                    " messages or " + std::to_string(options_.window_bytes) + " bytes",
                "wait for results before sending more");
  }
  CALLBOARD_ASSIGN(std::string bytes, encode_packet(Envelope{epoch_, self_, next_seq_, received_up_to_}, message));
  if (!pending_.empty() && pending_bytes_ + bytes.size() > options_.window_bytes) {
    return fail(ErrorCode::kOverloaded,
                "a message of " + std::to_string(bytes.size()) + " bytes to " + peer_.to_string() +
                    " would exceed the limit of " + std::to_string(options_.window_bytes) + " unacknowledged bytes; " +
                    std::to_string(pending_bytes_) + " wait already",
                "wait for results before sending more");
  }
  if (pending_.empty()) {
    resend_at_ = after(now, options_.resend_after);
    resends_ = 0;
  }
  pending_bytes_ += bytes.size();
  pending_.push_back({next_seq_++, std::make_shared<const std::string>(std::move(bytes))});
  ack_is_on_its_way();
  ++counters_.sent;
  return pending_.back().frame;
}

Result<std::shared_ptr<const std::string>> Link::send_once(const Message& message) {
  CALLBOARD_ASSIGN(std::string bytes, encode_packet(Envelope{epoch_, self_, 0, received_up_to_}, message));
  ack_is_on_its_way();
  ++counters_.sent;
  return std::make_shared<const std::string>(std::move(bytes));
}

Link::Received Link::receive(Packet&& packet, TimePoint now) {
  Received received;
  acknowledged(packet.envelope.ack, now);
  const std::uint64_t seq = packet.envelope.seq;
  if (seq == 0) {
    if (!std::holds_alternative<Ack>(packet.message)) {
      ++counters_.received;
      received.messages.push_back(std::move(packet.message));
    }
    return received;
  }
  if (seq <= received_up_to_) {
    // The peer did not see our acknowledgement: without a new one it would resend for ever.
    ++counters_.duplicates;
    received.ack_now = true;
  } else if (seq == received_up_to_ + 1) {
    deliver(std::move(packet.message), received);
    for (auto next = early_.begin(); next != early_.end() && next->first == received_up_to_ + 1;
         next = early_.erase(next)) {
      deliver(std::move(next->second), received);
    }
    received.ack_now = received_since_ack_ >= options_.ack_every;
  } else if (seq <= received_up_to_ + limits::kLinkReorderMax) {
    ++(early_.try_emplace(seq, std::move(packet.message)).second ? counters_.reordered : counters_.duplicates);
    return received;
  } else {
    return received;  // too far ahead to keep: the peer resends it once the gap is closed
  }
  ack_at_ = std::min(ack_at_, received.ack_now ? now : after(now, options_.ack_delay));
  return received;
}

void Link::deliver(Message&& message, Received& received) {
  ++received_up_to_;
  ++received_since_ack_;
  ++counters_.received;
  received.messages.push_back(std::move(message));
}

void Link::acknowledged(std::uint64_t up_to, TimePoint now) {
  // A number that was never sent is not an acknowledgement, whoever says so.
  if (pending_.empty() || up_to < pending_.front().seq || up_to >= next_seq_) return;
  while (!pending_.empty() && pending_.front().seq <= up_to) {
    pending_bytes_ -= pending_.front().frame->size();
    pending_.pop_front();
  }
  resends_ = 0;
  resend_at_ = pending_.empty() ? kNever : after(now, options_.resend_after);
}

Link::Due Link::on_time(TimePoint now) {
  Due due;
  if (ack_at_ <= now) {
    if (auto ack = make_ack()) due.frames.push_back(std::move(ack));
  }
  if (resend_at_ <= now && !lost_) {
    if (resends_ >= options_.resends_max) {
      lost_ = true;
      due.lost = true;
      return due;
    }
    ++resends_;
    resend_at_ = after(now, options_.resend_after * (1u << std::min(resends_, 16u)));
    recover_up_to_ = pending_.back().seq;
    resent_up_to_ = 0;
  }
  if (resend_pending()) resend_window(due);
  return due;
}

// The peer keeps only kLinkReorderMax messages for a missing one, so no more than that is worth sending again at once;
// what follows goes when an acknowledgement has moved the window.
void Link::resend_window(Due& due) {
  const std::size_t count = std::min(pending_.size(), limits::kLinkReorderMax);
  for (std::size_t i = 0; i < count; ++i) {
    const Pending& message = pending_[i];
    if (message.seq <= resent_up_to_) continue;
    if (message.seq > recover_up_to_) break;
    due.frames.push_back(message.frame);
    resent_up_to_ = message.seq;
    ++counters_.resent;
  }
}

bool Link::resend_pending() const {
  if (lost_ || pending_.empty()) return false;
  const std::size_t count = std::min(pending_.size(), limits::kLinkReorderMax);
  const std::uint64_t reach = std::min(pending_[count - 1].seq, recover_up_to_);
  return reach >= pending_.front().seq && resent_up_to_ < reach;
}

TimePoint Link::next_due() const {
  if (lost_) return kNever;
  if (resend_pending()) return TimePoint::min();
  return std::min(ack_at_, resend_at_);
}

std::shared_ptr<const std::string> Link::make_ack() {
  auto frame = send_once(Ack{});
  ack_is_on_its_way();
  return frame ? std::move(*frame) : nullptr;  // an Ack always encodes; a missing one would be made up by a resend
}

void Link::ack_is_on_its_way() {
  received_since_ack_ = 0;
  ack_at_ = kNever;
}

}  // namespace callboard::actors
