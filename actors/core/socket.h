// A ZeroMQ socket as Hub and Line need it. Only transport.cpp, which implements it, knows ZeroMQ.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "actors/core/channel.h"
#include "actors/core/transport.h"
#include "messages/base/error.h"

namespace callboard::actors {

constexpr std::size_t kDrainMax = 1'024;  ///< frames taken from one socket before the others have their turn

/// Of one thread. Never blocks: what is not possible now is answered with false.
class Socket {
 public:
  Socket(Messenger& messenger, int high_water);
  ~Socket();  ///< ZeroMQ goes on sending what it has taken, for at most 100 ms
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// As the side where peers come to. Sockets of the file system are checked before (ipc_path.h).
  Status bind(const std::string& endpoint);
  /// As the side that goes there, under this routing id. Tries again until somebody is there.
  Status connect(const std::string& endpoint, const std::string& routing_id);
  /// For Loop::watch_socket(); null before bind() or connect().
  void* native() const;

  enum class Got { kNothing, kFrame, kMalformed };
  /// The views are good until the next receive(). kMalformed: a message of another form than one frame.
  Got receive();
  std::string_view routing() const;  ///< who sent it; only on a bound socket
  std::string_view frame() const;

  /// On a connected socket. False: full. Taken frames wait for a connection where there is none.
  bool put(const Frame& frame);
  /// On a bound socket. False: full, or nobody has that routing id.
  bool put_to(std::string_view routing, const Frame& frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

constexpr std::size_t kRoutingIdMax = 255;  // of ZeroMQ

}  // namespace callboard::actors
