#include "kernels/process_domain/domain_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "messages/base/fd_passing.h"
#include "messages/limits.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kPacketBytesMax = 64u << 10;  // below the system's default for one packet
constexpr char kMore = 1;                           // first byte of a packet: the message goes on in the next one
constexpr char kLast = 0;
// Once a message has begun, the rest of it is on its way.
constexpr std::chrono::seconds kRestOfMessage{10};

Error lost(const char* what) {
  return Error(ErrorCode::kPeerLost, std::string("the other end of a GIL domain's socket is gone: ") + what);
}

/// True when it is ready for `events`; false at the deadline.
bool wait_for(int fd, short events, TimePoint deadline) {
  for (;;) {
    pollfd waiting{fd, events, 0};
    int timeout = -1;
    if (deadline != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
    }
    const int ready = ::poll(&waiting, 1, timeout);
    if (ready > 0) return true;
    if (ready == 0 && (deadline == kNever || Clock::now() >= deadline)) return false;
    if (ready < 0 && errno != EINTR) return true;  // the next call on it says what is wrong
  }
}

}  // namespace

Result<std::pair<DomainSocket, DomainSocket>> DomainSocket::pair() {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(ErrorCode::kResourceExhausted,
                std::string("no socket pair for a GIL domain can be made: ") + std::strerror(errno),
                errno == EMFILE ? "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)" : "");
  }
  return std::pair(DomainSocket(UniqueFd(ends[0])), DomainSocket(UniqueFd(ends[1])));
}

Status DomainSocket::send(const DomainMessage& message, TimePoint deadline, int passed_fd) {
  CALLBOARD_ASSIGN(const std::string bytes, encode_domain_message(message));
  if (bytes.size() > limits::kMessageBytesMax) {
    return fail(ErrorCode::kTooLarge, "a GIL domain's message '" + std::string(domain_message_name(message)) +
                                          "' has " + std::to_string(bytes.size()) + " bytes, " +
                                          std::to_string(limits::kMessageBytesMax) + " are possible");
  }
  std::string_view rest = bytes;
  do {
    const std::string_view part = rest.substr(0, kPacketBytesMax);
    const char flag = part.size() < rest.size() ? kMore : kLast;
    char first = flag;
    std::array<iovec, 2> packet{{{&first, 1}, {const_cast<char*>(part.data()), part.size()}}};
    const ssize_t sent = send_with_fd(fd_.get(), packet, passed_fd);
    if (sent < 0) {
      if (errno != EAGAIN && errno != ENOBUFS) return fail(lost(std::strerror(errno)));
      if (!wait_for(fd_.get(), POLLOUT, deadline)) {
        return fail(ErrorCode::kDeadlineExceeded, "the other end of a GIL domain's socket does not read");
      }
      continue;
    }
    passed_fd = -1;
    rest.remove_prefix(part.size());
    if (flag == kLast) return {};
  } while (true);
}

Result<std::optional<DomainSocket::Received>> DomainSocket::receive(TimePoint deadline) {
  std::array<char, kPacketBytesMax + 1> buffer;
  std::string whole;
  UniqueFd passed;
  bool begun = false;
  for (;;) {
    if (!wait_for(fd_.get(), POLLIN, begun ? after(Clock::now(), kRestOfMessage) : deadline)) {
      if (!begun) return std::nullopt;
      return fail(lost("a message stopped in its middle"));
    }
    ReceivedWithFds packet = receive_with_fds(fd_.get(), {buffer.data(), buffer.size()});
    if (packet.length < 0 && errno == EAGAIN) continue;
    if (packet.length <= 0) return fail(lost(packet.length == 0 ? "closed" : std::strerror(errno)));
    begun = true;
    if (packet.truncated || packet.fds_lost) {
      return fail(ErrorCode::kMalformed, "a GIL domain's packet, or its descriptor, does not fit here");
    }
    if (!packet.fds.empty()) passed = std::move(packet.fds.back());
    const std::string_view part(buffer.data() + 1, static_cast<std::size_t>(packet.length) - 1);
    if (buffer[0] == kLast && whole.empty()) {
      CALLBOARD_ASSIGN(DomainMessage message, decode_domain_message(part));
      return Received{std::move(message), std::move(passed)};
    }
    if (whole.size() + part.size() > limits::kMessageBytesMax) {
      return fail(ErrorCode::kTooLarge, "a GIL domain's message does not end");
    }
    whole += part;
    if (buffer[0] == kMore) continue;
    CALLBOARD_ASSIGN(DomainMessage message, decode_domain_message(whole));
    return Received{std::move(message), std::move(passed)};
  }
}

}  // namespace callboard::kernels
