// Unix sockets: seqpacket ones that pass descriptors (both ends of the memory lane), streams (direct lanes).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::actors {

/// Of one packet. Below the system's default limit for one datagram (net.core.wmem_max 212,992); long lists are split.
constexpr std::size_t kLanePacketBytesMax = 128u << 10;
/// Hashes or spans in one packet; a span takes below 64 bytes encoded.
constexpr std::size_t kLaneListMax = 1'000;
static_assert(kLaneListMax * 64 < kLanePacketBytesMax / 2, "a full list must fit one packet");

struct ReceivedPacket {
  std::string bytes;
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  ///< descriptors came along, but this process has no room for them (RLIMIT_NOFILE)
};

enum class SocketOutcome {
  kDone,
  kWouldBlock,
  kClosed,
  kTooLong,        ///< larger than kLanePacketBytesMax
  kNoDescriptors,  ///< too many passed descriptors are on their way (ETOOMANYREFS)
};

/// Non-blocking, closed on exec; a dead owner's socket file is replaced. The socket file has mode 0600, and its folder
/// must be ours and writable by nobody else (kPermission). kAddressInUse if somebody listens there.
Result<UniqueFd> listen_seqpacket(const std::string& path, int backlog);
Result<UniqueFd> listen_stream(const std::string& path, int backlog);
/// Non-blocking afterwards; connecting itself waits up to two seconds. kPeerLost if nobody listens, kPermission.
Result<UniqueFd> connect_seqpacket(const std::string& path);
/// Non-blocking altogether: kPeerLost also where the other end's backlog is full.
Result<UniqueFd> connect_stream(const std::string& path);
/// The next one who waits to be accepted, non-blocking; an invalid descriptor if there is none. If this process has no
/// room for another descriptor, `reserve` is given up for a moment to turn one away: left in the queue it would keep
/// the listener readable, and would wait for an answer.
UniqueFd accept_waiting(int listener, UniqueFd& reserve) noexcept;
/// A descriptor to give up.
UniqueFd reserve_descriptor() noexcept;
/// The effective uid of the process at the other end; kPermission if the system does not tell.
Result<uid_t> peer_uid(int socket);
/// Room for as many packets as the system allows.
void enlarge_buffers(int socket) noexcept;

/// Never blocks, raises no SIGPIPE. `passed_fd` -1: none.
SocketOutcome send_packet(int socket, std::string_view bytes, int passed_fd) noexcept;
/// Never blocks.
SocketOutcome receive_packet(int socket, ReceivedPacket& packet);

}  // namespace callboard::actors
