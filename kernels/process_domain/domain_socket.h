// One end of the socket pair between a device and a GIL domain's child.
#pragma once

#include <optional>
#include <utility>

#include "messages/base/clock.h"
#include "messages/base/fd.h"
#include "messages/domain_messages.h"

namespace callboard::kernels {

/// Blocking, with deadlines. One thread at a time. Messages may be longer than a packet; a descriptor may ride along.
class DomainSocket {
 public:
  DomainSocket() = default;
  explicit DomainSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  /// Closed on exec. kResourceExhausted.
  static Result<std::pair<DomainSocket, DomainSocket>> pair();

  /// kPeerLost, kTooLarge, kDeadlineExceeded where the other end does not read.
  Status send(const DomainMessage& message, TimePoint deadline, int passed_fd = -1);

  struct Received {
    DomainMessage message;
    UniqueFd fd;
  };
  /// nullopt: nothing has begun to come by `deadline`. kPeerLost when the other end is closed, kMalformed and what
  /// decode_domain_message() says; after an error nothing more can be read.
  Result<std::optional<Received>> receive(TimePoint deadline);

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace callboard::kernels
