// Links between simulated processes over a network that loses, doubles, delays, reorders and cuts.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/core/link.h"
#include "tests/simulation/world.h"

namespace callboard::simulation {

struct NetworkFaults {
  double loss = 0;
  double duplicate = 0;
  double slow = 0;  ///< share of frames that take up to half a second
};

/// What a process hears of one of its links.
struct Ends {
  std::function<void(Message)> message;
  std::function<void(Error)> lost;
  std::function<bool()> stopped;  ///< SIGSTOP: nothing is taken in, no timer runs
};

/// One link between two processes, with the product's Link at both ends. Side 0 connects, side 1 was connected to.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  static std::shared_ptr<Channel> make(World& world, NetworkFaults& faults, const ActorId& a, const ActorId& b,
                                       Ends ends_a, Ends ends_b);
  /// Frames that come before a side is open are dropped, as before the handshake.
  void open(int side) { sides_[side]->open = true; }
  void send(int side, const Message& message);
  /// The process is gone: nothing goes in or out any more.
  void die(int side);
  /// The process goes in order.
  void bye(int side);
  /// The process does not want to hear of the other any more; the other learns that when it sends something.
  void forget(int side);
  void cut_until(TimePoint when) { cut_until_ = std::max(cut_until_, when); }
  std::size_t unacknowledged(int side) const { return sides_[side]->link.unacknowledged(); }

 private:
  struct Side {
    Side(const ActorId& self, const ActorId& peer, Ends e) : link(self, peer, {}), ends(std::move(e)) {}
    actors::Link link;
    Ends ends;
    std::unique_ptr<Alarm> alarm;
    bool open = false;
    bool dead = false;
    bool forgotten = false;
  };
  Channel(World& world, NetworkFaults& faults) : world_(world), faults_(faults) {}
  void put(int from, std::shared_ptr<const std::string> frame);
  void arrive(int to, const std::shared_ptr<const std::string>& frame);
  void on_alarm(int side);
  void arm(int side) { sides_[side]->alarm->set(sides_[side]->link.next_due()); }
  void lose(int side, Error why);

  World& world_;
  NetworkFaults& faults_;
  std::array<std::unique_ptr<Side>, 2> sides_;
  TimePoint cut_until_;
};

}  // namespace callboard::simulation
