// Starts cuda_peer and talks to it by lines. Ends it when it goes.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace callboard::testing {

class PeerProcess {
 public:
  explicit PeerProcess(const char* program) {
    int to[2];
    int from[2];
    if (::pipe(to) != 0 || ::pipe(from) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
      ::execl(program, program, nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~PeerProcess() {
    finish();
    ::close(from_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void send(const std::string& line) {
    const std::string whole = line + "\n";
    if (::write(to_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) {
      throw std::runtime_error("the peer is gone");
    }
  }
  /// The next line; empty at its end, or if none came within a minute.
  std::string read() {
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      pollfd fd{from_, POLLIN, 0};
      char part[4096];
      const int ready = ::poll(&fd, 1, 60'000);
      const ssize_t got = ready > 0 ? ::read(from_, part, sizeof part) : 0;
      if (got <= 0) return {};
      buffer_.append(part, static_cast<std::size_t>(got));
    }
  }
  void finish() {
    if (to_ >= 0) ::close(to_);
    to_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffer_;
};

}  // namespace callboard::testing
