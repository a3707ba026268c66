#include "actors/core/direct_lane.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "messages/frame.h"

namespace callboard::actors {
namespace {

constexpr std::size_t kReadStep = 64u << 10;
constexpr std::size_t kReadKept = 256u << 10;  // a buffer that one large frame made larger is given back
constexpr std::size_t kFramesAtOnce = 64;      // of one writev
constexpr std::size_t kFramesMax = static_cast<std::size_t>(limits::kSocketQueueMax);
constexpr std::size_t kBytesMax = limits::kLinkWindowBytesMax;
constexpr int kReadsPerTurn = 8;    // then the other descriptors have their turn; more than a socket's buffer holds
constexpr int kWritesPerTurn = 64;  // likewise, for a peer that reads as fast as this writes

}  // namespace

DirectLane::DirectLane(Loop& loop, UniqueFd socket, Events events, std::size_t frame_max)
    : loop_(loop),
      socket_(std::move(socket)),
      events_(std::make_shared<const Events>(std::move(events))),
      frame_max_(frame_max) {
  loop_.watch(socket_.get(), [this] { on_ready(); });
}

DirectLane::~DirectLane() { finish(); }

bool DirectLane::finish() {
  quiet_ = true;
  flush();
  end("finished");
  return waiting_.empty();
}

bool DirectLane::put(const Frame& frame) {
  if (ended_ || waiting_.size() >= kFramesMax) return false;
  if (!waiting_.empty() && waiting_bytes_ + frame->size() > kBytesMax) return false;
  waiting_bytes_ += frame->size();
  waiting_.push_back(frame);
  if (flush_planned_ || blocked_) return true;
  flush_planned_ = true;
  loop_.before_park([this, alive = std::weak_ptr<int>(alive_)] {
    if (alive.expired()) return;
    flush_planned_ = false;
    flush();
  });
  return true;
}

void DirectLane::flush() {
  if (ended_) return;
  for (int writes = 0; !waiting_.empty(); ++writes) {
    if (writes == kWritesPerTurn && !quiet_) return block(true);
    std::array<iovec, kFramesAtOnce> parts;
    const std::size_t count = std::min(parts.size(), waiting_.size());
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t skip = i == 0 ? written_ : 0;
      // The system only reads what it sends.
      parts[i] = {const_cast<char*>(waiting_[i]->data()) + skip, waiting_[i]->size() - skip};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    const bool full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS);
    if (sent < 0 && !full) return on_write_failed(std::string("writing: ") + std::strerror(errno));
    if (full) return block(true);
    written_ += static_cast<std::size_t>(sent);
    while (!waiting_.empty() && written_ >= waiting_.front()->size()) {
      written_ -= waiting_.front()->size();
      waiting_bytes_ -= waiting_.front()->size();
      waiting_.pop_front();
    }
  }
  block(false);
}

void DirectLane::block(bool on) {
  if (on != blocked_) loop_.watch_for_writing(socket_.get(), on);
  blocked_ = on;
}

/// The peer has closed it. What it had sent before is still to be read: its last messages and its goodbye.
void DirectLane::on_write_failed(const std::string& why) {
  const std::weak_ptr<int> alive = alive_;
  if (!quiet_) read_in();
  if (!alive.expired()) end(why);
}

void DirectLane::on_ready() {
  const std::weak_ptr<int> alive = alive_;
  if (blocked_) flush();
  if (!alive.expired() && !ended_) read_in();
}

void DirectLane::read_in() {
  const std::weak_ptr<int> alive = alive_;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    if (read_.size() - end_ < kReadStep / 2) read_.resize(end_ + kReadStep);
    const std::size_t room = read_.size() - end_;
    const ssize_t got = ::recv(socket_.get(), read_.data() + end_, room, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return end(got == 0 ? "the other side closed it" : std::strerror(errno));
    end_ += static_cast<std::size_t>(got);
    if (!take_frames() || alive.expired()) return;
    if (static_cast<std::size_t>(got) < room) return;  // there was no more
  }
}

bool DirectLane::take_frames() {
  const std::weak_ptr<int> alive = alive_;
  const auto events = events_;
  while (begin_ < end_) {
    const std::string_view rest(read_.data() + begin_, end_ - begin_);
    const Result<std::size_t> bytes = frame_bytes(rest);
    if (!bytes) {
      end(bytes.error().message);
      return false;
    }
    if (*bytes > frame_max_) {
      end("a frame of " + std::to_string(*bytes) + " bytes where at most " + std::to_string(frame_max_) + " may come");
      return false;
    }
    if (*bytes == 0 || *bytes > rest.size()) break;
    begin_ += *bytes;
    events->frame(rest.substr(0, *bytes));
    if (alive.expired() || ended_) return false;
  }
  if (begin_ == 0) return true;
  // What is left is the beginning of a frame: to the front, so that the buffer is no longer than the longest one.
  std::memmove(read_.data(), read_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == 0 && read_.size() > kReadKept) {
    read_.resize(kReadStep);
    read_.shrink_to_fit();
  }
  return true;
}

void DirectLane::end(const std::string& why) {
  if (ended_) return;
  ended_ = true;
  loop_.unwatch(socket_.get());
  socket_.reset();
  const auto events = events_;
  if (events->ended && !quiet_) events->ended(why);
}

std::string direct_lane_path(const std::string& ipc_path) {
  std::string path = ipc_path + ".d";
  return ipc_path.empty() || path.size() >= sizeof(sockaddr_un::sun_path) ? std::string() : path;
}

}  // namespace callboard::actors
