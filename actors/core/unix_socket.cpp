#include "actors/core/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "messages/base/fd_passing.h"

namespace callboard::actors {

namespace {

constexpr timeval kConnectWait{.tv_sec = 2, .tv_usec = 0};

Error socket_error(ErrorCode code, const char* what, const std::string& path, int error) {
  return Error(code, std::string("socket ") + path + ": " + what + ": " + std::strerror(error),
               error == EMFILE ? "raise the limit of open files (ulimit -n)" : "");
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kEnvironment,
                "socket " + path + ": a socket's path must have 1 to " + std::to_string(sizeof address.sun_path - 1) +
                    " bytes, this one has " + std::to_string(path.size()),
                "choose a shorter run directory (CALLBOARD_RUN_DIR)");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<UniqueFd> new_socket(const std::string& path, int type, int flags) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | flags, 0));
  if (socket) return socket;
  const ErrorCode code = errno == EMFILE || errno == ENFILE ? ErrorCode::kResourceExhausted : ErrorCode::kEnvironment;
  return fail(socket_error(code, "socket", path, errno));
}

/// Whoever may write the folder may put another socket in our place.
Status check_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) {
    return fail(socket_error(ErrorCode::kEnvironment, "its folder cannot be read", path, errno));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(ErrorCode::kPermission,
                "socket " + path +
                    ": its folder must belong to this user and be writable by "
                    "nobody else",
                "chmod 0700 " + folder);
  }
  return {};
}

/// Removes a socket that nobody listens on any more.
Status clear_path(const std::string& path, int type, const sockaddr_un& address) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return fail(ErrorCode::kAddressInUse, "socket " + path + ": a file that is no socket lies there");
  }
  CALLBOARD_ASSIGN(const UniqueFd probe, new_socket(path, type, SOCK_NONBLOCK));
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN) {
    return fail(ErrorCode::kAddressInUse, "socket " + path + ": another process listens there");
  }
  if (errno != ECONNREFUSED) return fail(socket_error(ErrorCode::kAddressInUse, "probing it", path, errno));
  ::unlink(path.c_str());
  return {};
}

Result<UniqueFd> listen_at(const std::string& path, int type, int backlog) {
  CALLBOARD_ASSIGN(const sockaddr_un address, address_of(path));
  CALLBOARD_TRY(check_folder(path));
  CALLBOARD_TRY(clear_path(path, type, address));
  CALLBOARD_ASSIGN(UniqueFd socket, new_socket(path, type, SOCK_NONBLOCK));
  // On Linux the file gets the socket's mode, so that there is no moment at which others could connect.
  if (::fchmod(socket.get(), 0600) != 0) return fail(socket_error(ErrorCode::kEnvironment, "chmod", path, errno));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const ErrorCode code = errno == EADDRINUSE                 ? ErrorCode::kAddressInUse
                           : errno == EACCES || errno == EPERM ? ErrorCode::kPermission
                                                               : ErrorCode::kEnvironment;
    return fail(socket_error(code, "bind", path, errno));
  }
  if (::listen(socket.get(), backlog) != 0) return fail(socket_error(ErrorCode::kEnvironment, "listen", path, errno));
  return socket;
}

Result<UniqueFd> connect_to(const std::string& path, int type, int flags) {
  CALLBOARD_ASSIGN(const sockaddr_un address, address_of(path));
  CALLBOARD_ASSIGN(UniqueFd socket, new_socket(path, type, flags));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectWait, sizeof kConnectWait);
  int outcome = 0;
  do {
    outcome = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (outcome != 0 && errno == EINTR);
  if (outcome != 0) {
    const ErrorCode code = errno == EACCES || errno == EPERM ? ErrorCode::kPermission : ErrorCode::kPeerLost;
    Error error = socket_error(code, "connect", path, errno);
    if (error.hint.empty()) error.hint = "is the node actor running?";
    return fail(std::move(error));
  }
  if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail(socket_error(ErrorCode::kEnvironment, "fcntl", path, errno));
  }
  return socket;
}

}  // namespace

Result<UniqueFd> listen_seqpacket(const std::string& path, int backlog) {
  return listen_at(path, SOCK_SEQPACKET, backlog);
}
Result<UniqueFd> listen_stream(const std::string& path, int backlog) { return listen_at(path, SOCK_STREAM, backlog); }
Result<UniqueFd> connect_seqpacket(const std::string& path) { return connect_to(path, SOCK_SEQPACKET, 0); }
Result<UniqueFd> connect_stream(const std::string& path) { return connect_to(path, SOCK_STREAM, SOCK_NONBLOCK); }

UniqueFd accept_waiting(int listener, UniqueFd& reserve) noexcept {
  const auto accept_one = [listener] {
    int fd = -1;
    do {
      fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return UniqueFd(fd);
  };
  UniqueFd accepted = accept_one();
  if (!accepted && (errno == EMFILE || errno == ENFILE)) {
    reserve.reset();
    accept_one().reset();
    reserve = reserve_descriptor();
  }
  return accepted;
}

UniqueFd reserve_descriptor() noexcept { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

Result<uid_t> peer_uid(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return fail(ErrorCode::kPermission, std::string("the peer's user is not known: ") + std::strerror(errno));
  }
  return credentials.uid;
}

void enlarge_buffers(int socket) noexcept {
  constexpr int kBytes = 8 * static_cast<int>(kLanePacketBytesMax);  // the system cuts it to what it allows
  ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof kBytes);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &kBytes, sizeof kBytes);
}

SocketOutcome send_packet(int socket, std::string_view bytes, int passed_fd) noexcept {
  if (bytes.size() > kLanePacketBytesMax) return SocketOutcome::kTooLong;
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  if (send_with_fd(socket, {&part, 1}, passed_fd) >= 0) return SocketOutcome::kDone;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return SocketOutcome::kWouldBlock;
  if (errno == EMSGSIZE) return SocketOutcome::kTooLong;
  if (errno == ETOOMANYREFS || errno == EMFILE) return SocketOutcome::kNoDescriptors;
  return SocketOutcome::kClosed;
}

SocketOutcome receive_packet(int socket, ReceivedPacket& packet) {
  packet = {};
  packet.bytes.resize(kLanePacketBytesMax);
  ReceivedWithFds received = receive_with_fds(socket, {packet.bytes.data(), packet.bytes.size()});
  if (received.length < 0) {
    packet.bytes.clear();
    return errno == EAGAIN || errno == EWOULDBLOCK ? SocketOutcome::kWouldBlock : SocketOutcome::kClosed;
  }
  packet.fds = std::move(received.fds);
  packet.fds_lost = received.fds_lost;
  packet.bytes.resize(static_cast<std::size_t>(received.length));
  if (received.length == 0) return SocketOutcome::kClosed;
  return received.truncated ? SocketOutcome::kTooLong : SocketOutcome::kDone;
}

}  // namespace callboard::actors
