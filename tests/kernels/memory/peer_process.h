// A child process that a test talks to in lines of text. Killed and reaped at its end.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "messages/base/fd.h"
#include "tests/support/test.h"

extern char** environ;

namespace callboard::test {

class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments) {
    int to_child[2];
    int from_child[2];
    REQUIRE(::pipe2(to_child, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(from_child, O_CLOEXEC) == 0);
    UniqueFd child_in(to_child[0]);
    UniqueFd child_out(from_child[1]);
    to_.reset(to_child[1]);
    from_.reset(from_child[0]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, child_in.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const int outcome = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    REQUIRE(outcome == 0);
  }
  ~PeerProcess() { kill(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Sends a line and gives the answer's line; fails the test after 30 s.
  std::string ask(const std::string& line) {
    const std::string out = line + "\n";
    REQUIRE(::write(to_.get(), out.data(), out.size()) == static_cast<ssize_t>(out.size()));
    return read_line();
  }
  std::string read_line() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
      if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
        const std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd entry{from_.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) FAIL("no answer from the child");
      char part[512];
      const ssize_t count = ::read(from_.get(), part, sizeof part);
      if (count <= 0) FAIL("the child has ended");
      buffer_.append(part, static_cast<std::size_t>(count));
    }
  }
  /// SIGKILL, and waits for the end.
  void kill() noexcept {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
  std::string buffer_;
};

}  // namespace callboard::test
