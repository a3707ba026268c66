#include "tests/simulation/network.h"

#include <utility>

#include "messages/codec.h"

namespace callboard::simulation {

using namespace std::chrono_literals;

std::shared_ptr<Channel> Channel::make(World& world, NetworkFaults& faults, const ActorId& a, const ActorId& b,
                                       Ends ends_a, Ends ends_b) {
  std::shared_ptr<Channel> channel(new Channel(world, faults));
  channel->sides_[0] = std::make_unique<Side>(a, b, std::move(ends_a));
  channel->sides_[1] = std::make_unique<Side>(b, a, std::move(ends_b));
  const std::weak_ptr<Channel> weak = channel;
  for (int side : {0, 1}) {
    channel->sides_[side]->alarm = std::make_unique<Alarm>(world, [weak, side] {
      if (const auto self = weak.lock()) self->on_alarm(side);
    });
  }
  return channel;
}

void Channel::send(int side, const Message& message) {
  Side& from = *sides_[side];
  if (from.dead || from.forgotten) return;
  const bool once = std::holds_alternative<Beat>(message);
  auto frame = once ? from.link.send_once(message) : from.link.send(message, world_.now());
  if (!frame) {
    if (frame.error().code != ErrorCode::kPeerLost)
      world_.violation("a link refused a message: " + frame.error().message);
    return;
  }
  put(side, std::move(*frame));
  arm(side);
}

void Channel::put(int from, std::shared_ptr<const std::string> frame) {
  const int copies = world_.chance(faults_.duplicate) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (world_.chance(faults_.loss) || world_.now() < cut_until_) continue;
    Duration delay = world_.between(20us, 300us);
    if (world_.chance(faults_.slow)) delay = world_.between(1ms, 500ms);
    world_.in(delay, [self = shared_from_this(), to = 1 - from, frame] { self->arrive(to, frame); });
  }
}

void Channel::arrive(int to, const std::shared_ptr<const std::string>& frame) {
  Side& side = *sides_[to];
  if (side.dead) return;
  if (side.forgotten) {
    // The real transport answers Refused; nothing of that message is remembered either.
    if (!sides_[1 - to]->dead) lose(1 - to, Error(ErrorCode::kStaleIncarnation, "refused: its place was given away"));
    return;
  }
  if (!side.open) return;
  if (side.ends.stopped()) {
    world_.in(20ms, [self = shared_from_this(), to, frame] { self->arrive(to, frame); });
    return;
  }
  auto packet = decode_packet(*frame);
  if (!packet) return world_.violation("a frame of ours does not decode: " + packet.error().message);
  if (std::holds_alternative<Bye>(packet->message)) return lose(to, Error(ErrorCode::kPeerLost, "it said goodbye"));
  const auto keep = shared_from_this();
  auto received = side.link.receive(std::move(*packet), world_.now());
  for (Message& message : received.messages) {
    if (!side.dead && !side.forgotten) side.ends.message(std::move(message));
  }
  if (!side.dead) arm(to);
}

void Channel::on_alarm(int which) {
  Side& side = *sides_[which];
  if (side.dead || side.forgotten) return;
  if (side.ends.stopped()) return side.alarm->set(world_.now() + 20ms);
  auto due = side.link.on_time(world_.now());
  for (auto& frame : due.frames) put(which, std::move(frame));
  if (due.lost) return lose(which, Error(ErrorCode::kPeerLost, "the link gave up"));
  arm(which);
}

void Channel::lose(int side, Error why) {
  if (sides_[side]->dead) return;
  sides_[side]->dead = true;
  sides_[side]->ends.lost(std::move(why));
}

void Channel::die(int side) { sides_[side]->dead = true; }

void Channel::bye(int side) {
  if (sides_[side]->dead) return;
  if (auto frame = sides_[side]->link.send_once(Bye{"done"})) put(side, std::move(*frame));
  die(side);
}

void Channel::forget(int side) { sides_[side]->forgotten = true; }

}  // namespace callboard::simulation
