// What a test puts at an end of a direct lane, or into the middle.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "actors/core/unix_socket.h"
#include "messages/base/fd.h"
#include "messages/frame.h"
#include "tests/actors/core/station.h"

namespace callboard::test {

inline std::string frame_of(std::string_view body) {
  auto frame = make_frame(20, body);
  if (!frame) throw std::runtime_error(frame.error().message);
  return std::move(*frame);
}

/// A blocking stream socket with a bound for its waits.
class RawEnd {
 public:
  explicit RawEnd(UniqueFd socket) : socket_(std::move(socket)) {
    const timeval wait{.tv_sec = kPatience.count(), .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    ::fcntl(socket_.get(), F_SETFL, 0);
  }
  bool say(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// The next frame; empty at the end.
  std::string hear() {
    for (;;) {
      const auto bytes = frame_bytes(heard_);
      if (!bytes) return {};
      if (*bytes != 0 && *bytes <= heard_.size()) {
        std::string frame = heard_.substr(0, *bytes);
        heard_.erase(0, *bytes);
        return frame;
      }
      if (!receive()) return {};
    }
  }
  /// Whether the other side closes it within the time; what comes before is dropped.
  bool closes() {
    while (receive()) heard_.clear();
    return at_end_;
  }
  void close() { socket_.reset(); }

 private:
  bool receive() {
    std::string part(64u << 10, '\0');
    const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), 0);
    if (got > 0) heard_.append(part, 0, static_cast<std::size_t>(got));
    at_end_ = got == 0 || (got < 0 && errno == ECONNRESET);
    return got > 0;
  }

  UniqueFd socket_;
  std::string heard_;
  bool at_end_ = false;
};

/// Sits between a Line and a Hub and cuts their direct lane when it has carried so many bytes. ZeroMQ goes around it.
class LaneProxy {
 public:
  /// A Line that connects to `path` meets the Hub of `hub_path`.
  LaneProxy(const std::string& path, const std::string& hub_path, std::size_t cut_after)
      : hub_path_(hub_path), cut_after_(cut_after), end_(::eventfd(0, EFD_CLOEXEC)) {
    std::filesystem::create_symlink(hub_path, path);
    auto listener = actors::listen_stream(path + ".d", 1);
    if (!listener) throw std::runtime_error(listener.error().message);
    listener_ = std::move(*listener);
    thread_ = std::thread([this] { run(); });
  }
  ~LaneProxy() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof one);
    thread_.join();
  }
  LaneProxy(const LaneProxy&) = delete;
  LaneProxy& operator=(const LaneProxy&) = delete;

  bool was_cut() const { return cut_; }

 private:
  void run() {
    if (!readable({listener_.get()})) return;
    UniqueFd reserve;
    const UniqueFd line = actors::accept_waiting(listener_.get(), reserve);
    auto hub = actors::connect_stream(hub_path_ + ".d");
    if (!line || !hub) return;
    while (carried_ < cut_after_) {
      if (!readable({line.get(), hub->get()})) return;
      if (!carry(line.get(), hub->get()) || !carry(hub->get(), line.get())) return;
    }
    cut_ = true;
  }
  /// False when it is time to end.
  template <std::size_t N>
  bool readable(const int (&fds)[N]) {
    std::array<pollfd, N + 1> entries{};
    for (std::size_t i = 0; i < N; ++i) entries[i] = {fds[i], POLLIN, 0};
    entries[N] = {end_.get(), POLLIN, 0};
    while (::poll(entries.data(), entries.size(), -1) < 0) {
    }
    return entries[N].revents == 0;
  }
  bool carry(int from, int to) {
    if (carried_ >= cut_after_) return true;
    std::array<char, 4'096> bytes;
    const std::size_t most = std::min(bytes.size(), cut_after_ - carried_);
    const ssize_t got = ::recv(from, bytes.data(), most, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    carried_ += static_cast<std::size_t>(got);
    for (ssize_t sent = 0; sent < got;) {
      pollfd entry{to, POLLOUT, 0};
      ::poll(&entry, 1, -1);
      const ssize_t now =
          ::send(to, bytes.data() + sent, static_cast<std::size_t>(got - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (now < 0 && errno != EAGAIN) return false;
      if (now > 0) sent += now;
    }
    return true;
  }

  const std::string hub_path_;
  const std::size_t cut_after_;
  std::size_t carried_ = 0;
  UniqueFd end_;
  UniqueFd listener_;
  std::atomic<bool> cut_{false};
  std::thread thread_;
};

}  // namespace callboard::test
