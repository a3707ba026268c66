// Messages between actors: the only code that knows ZeroMQ. A Hub is where peers come to (ROUTER), a Line goes to one
// Hub (DEALER). Both number, acknowledge and resend through Link, and refuse what does not fit before anyone sees it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/core/link.h"
#include "actors/core/loop.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// A process's ZeroMQ context. One per process; outlives its Hubs and Lines.
class Messenger {
 public:
  virtual ~Messenger() = default;
  static std::unique_ptr<Messenger> create(int io_threads = 1);
  virtual void* native() = 0;
};

/// Lives on the loop's thread. Its callbacks may call it, and may destroy it.
class Hub {
 public:
  struct Events {
    /// A peer said Hello with our protocol version. Answer: accept (Welcome goes out) or an Error (Refused goes out).
    /// What is sent to the peer from within goes out behind the Welcome.
    std::function<Status(const Hello& hello)> hello;
    std::function<void(const ActorId& from, Message message)> message;
    /// The link gave up (LK-3), or the peer said Bye, or a newer incarnation replaced it.
    std::function<void(const ActorId& peer, const Error& why)> lost;
  };
  struct Options {
    ActorId self;
    Epoch epoch = 1;
    std::string endpoint;  ///< "ipc:///path/…"; the path is checked (length, directory) before the bind
    std::string cluster;   ///< a Hello for another cluster is refused
    std::size_t peers_max = 512;
    Link::Options link;
    int send_high_water = limits::kSocketQueueMax;  ///< frames ZeroMQ may hold for a peer; the rest wait in the link
    bool direct = true;                             ///< offers a direct lane (direct_lane.h) beside an ipc endpoint
    Duration lane_hello_wait = std::chrono::seconds(5);  ///< a direct lane that says nothing so long is closed
  };
  virtual ~Hub() = default;  ///< says Bye to all; ZeroMQ goes on sending what is queued for at most 100 ms
  static Result<std::unique_ptr<Hub>> bind(Loop& loop, Messenger& messenger, Options options, Events events);

  /// kUnknownPeer (not connected or an old incarnation), kOverloaded (LK-2), kTooLarge. Otherwise the link has it.
  virtual Status send(const ActorId& to, const Message& message) = 0;
  /// Also kOverloaded while the peer takes nothing: what is not remembered is not queued either.
  virtual Status send_once(const ActorId& to, const Message& message) = 0;
  /// Forgets a peer (its process ended); later frames of this incarnation are refused with kStaleIncarnation.
  virtual void forget(const ActorId& peer) = 0;
  struct Counters {
    std::uint64_t frames_in = 0, frames_out = 0, refused_frames = 0, resent = 0, duplicates = 0;
  };  ///< resent and duplicates: also of peers that are gone
  virtual Counters counters() const = 0;
};

/// Lives on the loop's thread. Its callbacks may call it, and may destroy it.
class Line {
 public:
  struct Events {
    std::function<void(const Welcome& welcome)> welcome;
    std::function<void(Message message)> message;
    /// Refused, or no Welcome in time, or the link gave up, or the Hub said Bye. Called at most once, never from within
    /// a call of ours.
    std::function<void(const Error& why)> lost;
  };
  struct Options {
    Hello hello;  ///< says who we are
    std::string endpoint;
    Duration connect_timeout = std::chrono::seconds(10);
    Link::Options link;
    int send_high_water = limits::kSocketQueueMax;
    bool direct = true;  ///< takes the direct lane where the Hub offers one
  };
  virtual ~Line() = default;  ///< says Bye
  static Result<std::unique_ptr<Line>> connect(Loop& loop, Messenger& messenger, Options options, Events events);

  virtual Status send(const Message& message) = 0;  ///< may be called before the Welcome: the link keeps it until then
  virtual Status send_once(const Message& message) = 0;
  virtual bool connected() const = 0;
  virtual bool direct() const = 0;  ///< frames go over a direct lane
};

/// "ipc://" + path. Too long a path (above 107 bytes) is refused with path, length and limit (kConfigOutOfRange).
Result<std::string> ipc_endpoint(const std::string& path);

}  // namespace callboard::actors
