#include "actors/core/unix_socket.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

/// No room for another descriptor, as long as it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit low{64, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    while (UniqueFd fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}) fill_.push_back(std::move(fd));
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> fill_;
};

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    first.reset(fds[0]);
    second.reset(fds[1]);
  }
  UniqueFd first;
  UniqueFd second;
};

TEST_CASE("packets keep their borders and their descriptors") {
  Pair pair;
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE(send_packet(pair.first.get(), "one", -1) == SocketOutcome::kDone);
  REQUIRE(send_packet(pair.first.get(), "two", file.get()) == SocketOutcome::kDone);
  ReceivedPacket packet;
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kDone);
  REQUIRE(packet.bytes == "one");
  REQUIRE(packet.fds.empty());
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kDone);
  REQUIRE(packet.bytes == "two");
  REQUIRE(packet.fds.size() == 1);
  REQUIRE((::fcntl(packet.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kWouldBlock);
  pair.first.reset();
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kClosed);
  REQUIRE(send_packet(pair.second.get(), "x", -1) == SocketOutcome::kClosed);
}

TEST_CASE("a packet above the bound is neither sent nor taken") {
  Pair pair;
  enlarge_buffers(pair.first.get());
  const std::string largest(kLanePacketBytesMax, 'x');
  REQUIRE(send_packet(pair.first.get(), largest, -1) == SocketOutcome::kDone);
  REQUIRE(send_packet(pair.first.get(), largest + "x", -1) == SocketOutcome::kTooLong);
  ReceivedPacket packet;
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kDone);
  REQUIRE(packet.bytes.size() == largest.size());
  const std::string larger = largest + "x";
  REQUIRE(::send(pair.first.get(), larger.data(), larger.size(), 0) > 0);
  REQUIRE(receive_packet(pair.second.get(), packet) == SocketOutcome::kTooLong);
}

TEST_CASE("a full socket says so") {
  Pair pair;
  const std::string part(60'000, 'x');
  SocketOutcome outcome = SocketOutcome::kDone;
  for (int i = 0; i < 1'000 && outcome == SocketOutcome::kDone; ++i) outcome = send_packet(pair.first.get(), part, -1);
  REQUIRE(outcome == SocketOutcome::kWouldBlock);
}

TEST_CASE("R1: a descriptor that this process has no room for is told as lost") {
  Pair pair;
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE(send_packet(pair.first.get(), "one", file.get()) == SocketOutcome::kDone);
  ReceivedPacket packet;
  SocketOutcome outcome = SocketOutcome::kClosed;
  {
    const NoDescriptors full;
    outcome = receive_packet(pair.second.get(), packet);
  }
  REQUIRE(outcome == SocketOutcome::kDone);
  REQUIRE(packet.bytes == "one");
  REQUIRE(packet.fds.empty());
  REQUIRE(packet.fds_lost);
}

TEST_CASE("who connects while there is no descriptor for it is turned away at once, and not left waiting") {
  const test::TempDir folder;
  const auto listener = listen_stream(folder.path() + "/lane", 4);
  REQUIRE(listener);
  UniqueFd reserve = reserve_descriptor();
  const auto client = connect_stream(folder.path() + "/lane");
  REQUIRE(client);
  {
    const NoDescriptors full;
    REQUIRE_FALSE(accept_waiting(listener->get(), reserve));
    REQUIRE(reserve);
  }
  char byte = 0;
  REQUIRE(::recv(client->get(), &byte, 1, MSG_DONTWAIT) == 0);
  const auto next = connect_stream(folder.path() + "/lane");
  REQUIRE(next);
  REQUIRE(accept_waiting(listener->get(), reserve));
  REQUIRE_FALSE(accept_waiting(listener->get(), reserve));
}

TEST_CASE("a listening socket is for its user only, and there is one of it") {
  const test::TempDir folder;
  const std::string path = folder.path() + "/memory.sock";
  auto listener = listen_seqpacket(path, 4);
  REQUIRE(listener);
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0600);
  REQUIRE(listen_seqpacket(path, 4).error().code == ErrorCode::kAddressInUse);
  const auto client = connect_seqpacket(path);
  REQUIRE(client);
  REQUIRE(peer_uid(client->get()) == ::geteuid());

  listener->reset();  // as a killed process leaves it
  REQUIRE(connect_seqpacket(path).error().code == ErrorCode::kPeerLost);
  REQUIRE(listen_seqpacket(path, 4));
}

TEST_CASE("a folder that others can write, a path that is too long and a file in the way are refused") {
  const test::TempDir folder;
  REQUIRE(listen_seqpacket(folder.path() + "/" + std::string(120, 'x'), 4).error().code == ErrorCode::kEnvironment);
  REQUIRE(listen_seqpacket(folder.path() + "/missing/s", 4).error().code == ErrorCode::kEnvironment);
  std::ofstream(folder.path() + "/file") << "text";
  REQUIRE(listen_seqpacket(folder.path() + "/file", 4).error().code == ErrorCode::kAddressInUse);
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  REQUIRE(listen_seqpacket(folder.path() + "/s", 4).error().code == ErrorCode::kPermission);
  REQUIRE(connect_seqpacket(folder.path() + "/none").error().code == ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace callboard::actors
