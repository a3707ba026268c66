// Packets over Unix sockets, with descriptors riding along (SCM_RIGHTS; unix(7)).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "messages/base/fd.h"

namespace callboard {

/// Of one packet. More than one is never sent; more are seen, so that their receiver can refuse and close them.
constexpr std::size_t kPassedFdsMax = 4;

/// sendmsg() without blocking and without SIGPIPE, again after EINTR. `passed_fd` -1: none. As sendmsg: the bytes sent,
/// or -1 with errno.
ssize_t send_with_fd(int socket, std::span<iovec> parts, int passed_fd) noexcept;

struct ReceivedWithFds {
  ssize_t length = 0;  ///< as recvmsg says: 0 is the end, -1 is errno
  std::vector<UniqueFd> fds;
  bool fds_lost = false;   ///< descriptors came along for which there was no room here (RLIMIT_NOFILE, kPassedFdsMax)
  bool truncated = false;  ///< the packet was longer than `into`
};
/// recvmsg() without blocking, again after EINTR; descriptors are closed on exec.
ReceivedWithFds receive_with_fds(int socket, iovec into);

}  // namespace callboard
