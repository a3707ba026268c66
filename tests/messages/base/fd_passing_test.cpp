#include "messages/base/fd_passing.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "tests/support/test.h"

using namespace callboard;

namespace {

struct Ends {
  Ends() {
    std::array<int, 2> ends{-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    left.reset(ends[0]);
    right.reset(ends[1]);
  }
  ssize_t send(std::string text, int passed_fd) {
    iovec part{text.data(), text.size()};
    return send_with_fd(left.get(), {&part, 1}, passed_fd);
  }
  ReceivedWithFds receive() { return receive_with_fds(right.get(), {buffer.data(), buffer.size()}); }
  std::string text(ssize_t length) const { return {buffer.data(), static_cast<std::size_t>(length)}; }

  UniqueFd left;
  UniqueFd right;
  std::array<char, 16> buffer{};
};

}  // namespace

TEST_CASE("a descriptor rides with its packet, closed on exec, and is another one of the same file", "[fd_passing]") {
  Ends ends;
  std::array<int, 2> pipe{-1, -1};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd out(pipe[0]);
  UniqueFd in(pipe[1]);
  REQUIRE(ends.send("with", in.get()) == 4);
  REQUIRE(ends.send("without", -1) == 7);
  in.reset();

  ReceivedWithFds first = ends.receive();
  CHECK(ends.text(first.length) == "with");
  REQUIRE(first.fds.size() == 1);
  CHECK_FALSE(first.fds_lost);
  CHECK_FALSE(first.truncated);
  CHECK((::fcntl(first.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(::write(first.fds[0].get(), "x", 1) == 1);
  char got = 0;
  REQUIRE(::read(out.get(), &got, 1) == 1);
  CHECK(got == 'x');

  const ReceivedWithFds second = ends.receive();
  CHECK(ends.text(second.length) == "without");
  CHECK(second.fds.empty());
}

TEST_CASE("an empty socket, a full one, a closed one and a packet that is too long are told apart", "[fd_passing]") {
  Ends ends;
  CHECK(ends.receive().length == -1);
  CHECK(errno == EAGAIN);
  REQUIRE(ends.send(std::string(17, 'a'), -1) == 17);
  const ReceivedWithFds cut = ends.receive();
  CHECK(cut.length == 16);
  CHECK(cut.truncated);
  while (ends.send("fill", -1) == 4) {
  }
  CHECK(errno == EAGAIN);
  ends.right.reset();
  CHECK(ends.send("nobody", -1) == -1);
  CHECK(errno == ECONNRESET);  // something was not read
  CHECK(ends.send("nobody", -1) == -1);
  CHECK(errno == EPIPE);
  Ends other;
  other.left.reset();
  CHECK(other.receive().length == 0);
}

TEST_CASE("a descriptor for which this process has no room is said to be lost", "[fd_passing]") {
  Ends ends;
  REQUIRE(ends.send("one too many", ends.left.get()) == 12);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd next(::dup(ends.right.get()));  // all below are taken
  const rlimit full{static_cast<rlim_t>(next.get()), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &full) == 0);
  const ReceivedWithFds received = ends.receive();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(received.length == 12);
  CHECK(received.fds.empty());
  CHECK(received.fds_lost);
}
