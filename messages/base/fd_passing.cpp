#include "messages/base/fd_passing.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace callboard {

ssize_t send_with_fd(int socket, std::span<iovec> parts, int passed_fd) noexcept {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (passed_fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed_fd, sizeof passed_fd);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ReceivedWithFds receive_with_fds(int socket, iovec into) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassedFdsMax * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &into;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ReceivedWithFds received;
  do {
    received.length = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received.length < 0 && errno == EINTR);
  if (received.length < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      received.fds.emplace_back(fd);
    }
  }
  received.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  received.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  return received;
}

}  // namespace callboard
