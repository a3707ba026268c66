#include "actors/core/memory_lane.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "actors/core/unix_socket.h"
#include "messages/base/check.h"
#include "messages/base/clock.h"
#include "messages/base/log.h"
#include "messages/codec.h"

namespace callboard::actors {

namespace {

constexpr std::chrono::seconds kAnswerWait{2};
constexpr std::chrono::milliseconds kReleaseDelay{5};
constexpr std::size_t kReleaseBatch = 32;
// The node actor reads all the time; one that has left so much unread is not coming back.
constexpr std::size_t kOutboxBytesMax = 16u << 20;
constexpr int kPacketsPerTurn = 64;

struct Outgoing {
  std::string frame;
  UniqueFd fd;
};

struct Answer {
  Message message;
  UniqueFd fd;
  bool fd_lost = false;
};

Error lost_descriptor(const std::string& what) {
  return Error(ErrorCode::kResourceExhausted,
               "the descriptor of " + what + " did not arrive: this process has reached its limit of open files",
               "raise RLIMIT_NOFILE (ulimit -n)");
}

class LaneImpl final : public MemoryLane {
 public:
  LaneImpl(UniqueFd socket, UniqueFd wake, std::string path, ActorId who, Events events)
      : socket_(std::move(socket)),
        wake_(std::move(wake)),
        path_(std::move(path)),
        who_(std::move(who)),
        events_(std::move(events)) {}
  ~LaneImpl() override;

  /// Says hello and waits for the welcome; then the thread runs.
  Status start(Role role);

  Status add_segment(SegmentId segment, UniqueFd read_only, std::uint64_t bytes) override;
  void drop_segment(SegmentId segment) override { post(SegmentDropped{segment}); }
  Result<kernels::OpenedSegment> open_segment(const ActorId& owner, SegmentId segment) override;
  void release(const ActorId& owner, LeaseId lease) override;
  void report_held(const ActorId& owner, std::vector<SegmentId> segments) override;
  Result<std::vector<ContentHash>> find_constants(std::span<const ContentHash> hashes) override;
  Status add_constants(kernels::ConstantPack pack) override;
  Result<OpenedConstant> open_constant(const ContentHash& hash) override;
  void release_constants(std::vector<ContentHash> hashes) override;

 private:
  Result<std::string> encode(const Message& message) const { return encode_packet(Envelope{.sender = who_}, message); }
  Error lost() const { return Error(ErrorCode::kPeerLost, "memory lane " + path_ + ": the node actor has closed it"); }

  // any thread
  Status post(const Message& message, UniqueFd fd = UniqueFd());
  template <class Make>
  Result<Answer> ask(Make make, UniqueFd fd = UniqueFd());
  void wake() noexcept;

  // with mutex_
  Status send_locked(std::string frame, UniqueFd fd);
  void flush_releases_locked();
  void break_locked();

  // on the lane's thread
  void run_on_lane();
  bool receive_on_lane();
  void flush_on_lane();
  void handle_on_lane(Packet packet, ReceivedPacket& received);
  void complete_on_lane(std::uint64_t query, Message message, ReceivedPacket& received);

  const UniqueFd socket_;
  const UniqueFd wake_;  // eventfd
  const std::string path_;
  const ActorId who_;
  const Events events_;
  std::thread thread_;
  std::atomic<std::thread::id> lane_thread_;

  std::mutex mutex_;  // all below; held over sendmsg, which does not wait
  std::condition_variable changed_;
  std::deque<Outgoing> outbox_;
  std::size_t outbox_bytes_ = 0;
  std::uint64_t queued_ = 0;  // packets ever put into outbox_
  std::uint64_t sent_ = 0;    // and of these, sent
  std::map<std::uint64_t, std::optional<Answer>> questions_;
  std::uint64_t last_query_ = 0;
  std::map<ActorId, std::vector<LeaseId>> releases_;
  std::size_t release_count_ = 0;
  TimePoint release_due_ = kNever;
  bool broken_ = false;
  bool stopping_ = false;
};

// -- start and end
// -----------------------------------------------------------------------------------------------------

Status LaneImpl::start(Role role) {
  CALLBOARD_TRY(post(MemoryHello{role, who_, ::getpid()}));
  pollfd entry{socket_.get(), POLLIN, 0};
  const TimePoint deadline = after(Clock::now(), kAnswerWait);
  ReceivedPacket received;
  for (;;) {
    const SocketOutcome outcome = receive_packet(socket_.get(), received);
    if (outcome == SocketOutcome::kDone) break;
    if (outcome != SocketOutcome::kWouldBlock) {
      return fail(ErrorCode::kPeerLost, "memory lane " + path_ + ": the node actor refused " + who_.to_string(),
                  "its log says why; a name must be in use only once");
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      return fail(ErrorCode::kDeadlineExceeded, "memory lane " + path_ + ": no answer from the node actor");
    }
    ::poll(&entry, 1, static_cast<int>(left.count()));
  }
  CALLBOARD_ASSIGN(const Packet packet, decode_packet(received.bytes));
  if (!std::holds_alternative<MemoryWelcome>(packet.message)) {
    return fail(ErrorCode::kUnexpectedMessage,
                "memory lane " + path_ + ": " + std::string(message_name(packet.message)) + " in place of a welcome");
  }
  thread_ = std::thread([this] { run_on_lane(); });
  return {};
}

LaneImpl::~LaneImpl() {
  if (!thread_.joinable()) return;
  CALLBOARD_CHECK(lane_thread_ != std::this_thread::get_id(), "a lane is not destroyed by its own events");
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void LaneImpl::wake() noexcept {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// -- sending
// -----------------------------------------------------------------------------------------------------------

Status LaneImpl::send_locked(std::string frame, UniqueFd fd) {
  if (broken_ || stopping_) return fail(lost());
  if (outbox_.empty()) {
    switch (send_packet(socket_.get(), frame, fd.get())) {
      case SocketOutcome::kDone:
        return {};
      case SocketOutcome::kWouldBlock:
        break;
      case SocketOutcome::kTooLong:
        return fail(ErrorCode::kTooLarge,
                    "memory lane " + path_ + ": a packet of " + std::to_string(frame.size()) + " bytes does not fit");
      case SocketOutcome::kNoDescriptors:
        return fail(ErrorCode::kResourceExhausted,
                    "memory lane " + path_ + ": too many passed descriptors on their way",
                    "raise RLIMIT_NOFILE (ulimit -n)");
      case SocketOutcome::kClosed:
        wake();
        return fail(lost());  // the thread finds the end and tells it
    }
  }
  outbox_bytes_ += frame.size();
  outbox_.push_back({std::move(frame), std::move(fd)});
  ++queued_;
  if (outbox_bytes_ > kOutboxBytesMax) {
    log::error("memory_lane_stuck", "path=" + path_ + "; the node actor does not read, the lane is given up");
    break_locked();
  }
  wake();
  return {};
}

Status LaneImpl::post(const Message& message, UniqueFd fd) {
  CALLBOARD_ASSIGN(std::string frame, encode(message));
  std::lock_guard lock(mutex_);
  return send_locked(std::move(frame), std::move(fd));
}

template <class Make>
Result<Answer> LaneImpl::ask(Make make, UniqueFd fd) {
  CALLBOARD_CHECK(lane_thread_ != std::this_thread::get_id(), "an event of the lane may not wait for the lane");
  std::unique_lock lock(mutex_);
  const std::uint64_t query = ++last_query_;
  CALLBOARD_ASSIGN(std::string frame, encode(make(query)));
  CALLBOARD_TRY(send_locked(std::move(frame), std::move(fd)));
  const auto question = questions_.emplace(query, std::nullopt).first;
  changed_.wait_until(lock, after(Clock::now(), kAnswerWait),
                      [&] { return question->second.has_value() || broken_ || stopping_; });
  std::optional<Answer> answer = std::move(question->second);
  questions_.erase(question);
  if (answer) return std::move(*answer);
  if (broken_ || stopping_) return fail(lost());
  return fail(ErrorCode::kDeadlineExceeded, "memory lane " + path_ + ": no answer from the node actor within " +
                                                std::to_string(kAnswerWait.count()) + " s");
}

void LaneImpl::flush_releases_locked() {
  std::map<ActorId, std::vector<LeaseId>> releases = std::exchange(releases_, {});
  release_count_ = 0;
  release_due_ = kNever;
  for (auto& [owner, leases] : releases) {
    Result<std::string> frame = encode(ReleaseLeases{owner, std::move(leases)});
    Status sent = frame ? send_locked(std::move(*frame), UniqueFd()) : fail(frame.error());
    if (!sent && !broken_ && !stopping_) log::warning("release_lost", sent.error().to_string());
  }
}

void LaneImpl::break_locked() {
  broken_ = true;
  outbox_.clear();
  ::shutdown(socket_.get(), SHUT_RDWR);  // so that the node actor ends what this process holds
  changed_.notify_all();
}

// -- the lane's thread
// -------------------------------------------------------------------------------------------------

void LaneImpl::run_on_lane() {
  lane_thread_ = std::this_thread::get_id();
  for (;;) {
    TimePoint due = kNever;
    bool writing = false;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (broken_) break;
      due = release_due_;
      writing = !outbox_.empty();
    }
    int timeout_ms = -1;
    if (due != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000));
    }
    std::array<pollfd, 2> entries{pollfd{socket_.get(), static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), 0},
                                  pollfd{wake_.get(), POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), timeout_ms) < 0 && errno != EINTR) break;
    if (entries[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &count, sizeof count);
    }
    if ((entries[0].revents & POLLOUT) != 0) flush_on_lane();
    if ((entries[0].revents & ~POLLOUT) != 0 && !receive_on_lane()) break;
    if (due != kNever && Clock::now() >= due) {
      std::lock_guard lock(mutex_);
      flush_releases_locked();
    }
  }
  {
    std::lock_guard lock(mutex_);
    break_locked();
    if (stopping_) return;
  }
  if (events_.node_gone) events_.node_gone();
}

void LaneImpl::flush_on_lane() {
  std::lock_guard lock(mutex_);
  while (!outbox_.empty()) {
    const Outgoing& next = outbox_.front();
    const SocketOutcome outcome = send_packet(socket_.get(), next.frame, next.fd.get());
    if (outcome == SocketOutcome::kWouldBlock) break;
    if (outcome != SocketOutcome::kDone) {
      log::error("memory_lane_send_failed", "path=" + path_);
      break_locked();
      return;
    }
    outbox_bytes_ -= next.frame.size();
    outbox_.pop_front();
    ++sent_;
  }
  changed_.notify_all();
}

bool LaneImpl::receive_on_lane() {
  ReceivedPacket received;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    const SocketOutcome outcome = receive_packet(socket_.get(), received);
    if (outcome == SocketOutcome::kWouldBlock) return true;
    if (outcome != SocketOutcome::kDone) return false;
    Result<Packet> packet = decode_packet(received.bytes);
    if (!packet) {
      log::error("memory_lane_malformed", packet.error().to_string());
      return false;
    }
    handle_on_lane(std::move(*packet), received);
  }
  return true;
}

void LaneImpl::handle_on_lane(Packet packet, ReceivedPacket& received) {
  Message& message = packet.message;
  if (const auto* gone = std::get_if<HolderGone>(&message)) {
    if (events_.holder_gone) events_.holder_gone(gone->holder);
  } else if (const auto* ended = std::get_if<ReleaseLeases>(&message)) {
    if (ended->owner != who_ || !events_.lease_released) return;
    for (const LeaseId lease : ended->leases) events_.lease_released(lease);
  } else if (const auto* owner = std::get_if<OwnerGone>(&message)) {
    if (events_.owner_gone) events_.owner_gone(owner->owner);
  } else if (const auto* opened = std::get_if<SegmentOpened>(&message)) {
    complete_on_lane(opened->query, std::move(message), received);
  } else if (const auto* found = std::get_if<ConstantsFound>(&message)) {
    complete_on_lane(found->query, std::move(message), received);
  } else if (const auto* added = std::get_if<ConstantsAdded>(&message)) {
    complete_on_lane(added->query, std::move(message), received);
  } else if (const auto* constant = std::get_if<ConstantOpened>(&message)) {
    complete_on_lane(constant->query, std::move(message), received);
  } else {
    log::warning("memory_lane_unexpected", "message=" + std::string(message_name(message)));
  }
}

void LaneImpl::complete_on_lane(std::uint64_t query, Message message, ReceivedPacket& received) {
  Answer answer{std::move(message), UniqueFd(), received.fds_lost};
  if (!received.fds.empty()) answer.fd = std::move(received.fds.front());
  std::lock_guard lock(mutex_);
  const auto question = questions_.find(query);
  if (question == questions_.end()) return;  // its deadline has passed
  question->second = std::move(answer);
  changed_.notify_all();
}

// -- owner and reader
// --------------------------------------------------------------------------------------------------

Status LaneImpl::add_segment(SegmentId segment, UniqueFd read_only, std::uint64_t bytes) {
  CALLBOARD_ASSIGN(std::string frame, encode(SegmentAdded{segment, bytes}));
  std::unique_lock lock(mutex_);
  CALLBOARD_TRY(send_locked(std::move(frame), std::move(read_only)));
  // Handles into the segment travel by other ways: it must be in the node actor's socket before the first one exists.
  const std::uint64_t position = queued_;
  const bool sent = changed_.wait_until(lock, after(Clock::now(), kAnswerWait),
                                        [&] { return sent_ >= position || broken_ || stopping_; });
  if (broken_ || stopping_) return fail(lost());
  if (sent) return {};
  return fail(ErrorCode::kDeadlineExceeded, "memory lane " + path_ + ": the node actor does not read");
}

Result<kernels::OpenedSegment> LaneImpl::open_segment(const ActorId& owner, SegmentId segment) {
  CALLBOARD_ASSIGN(Answer answer, ask([&](std::uint64_t query) { return OpenSegment{query, owner, segment}; }));
  auto* opened = std::get_if<SegmentOpened>(&answer.message);
  if (!opened) return fail(ErrorCode::kUnexpectedMessage, "memory lane " + path_ + ": a wrong answer to open_segment");
  if (opened->error) return fail(std::move(*opened->error));
  if (!answer.fd) return fail(lost_descriptor("segment " + std::to_string(segment) + " of " + owner.to_string()));
  return kernels::OpenedSegment{std::move(answer.fd), opened->bytes};
}

void LaneImpl::release(const ActorId& owner, LeaseId lease) {
  std::lock_guard lock(mutex_);
  if (broken_ || stopping_) return;  // the end of the socket has ended the lease, or will
  releases_[owner].push_back(lease);
  if (++release_count_ >= kReleaseBatch) {
    flush_releases_locked();
  } else if (release_count_ == 1) {
    release_due_ = after(Clock::now(), kReleaseDelay);
    wake();
  }
}

void LaneImpl::report_held(const ActorId& owner, std::vector<SegmentId> segments) {
  for (std::size_t first = 0; first < segments.size(); first += kLaneListMax) {
    const std::size_t end = std::min(segments.size(), first + kLaneListMax);
    SegmentsHeld held{
        owner,
        {segments.begin() + static_cast<std::ptrdiff_t>(first), segments.begin() + static_cast<std::ptrdiff_t>(end)}};
    post(held);
  }
}

// -- constants
// ---------------------------------------------------------------------------------------------------------

Result<std::vector<ContentHash>> LaneImpl::find_constants(std::span<const ContentHash> hashes) {
  std::vector<ContentHash> missing;
  while (!hashes.empty()) {
    const auto part = hashes.first(std::min(hashes.size(), kLaneListMax));
    hashes = hashes.subspan(part.size());
    CALLBOARD_ASSIGN(Answer answer, ask([&](std::uint64_t query) {
                       return FindConstants{query, {part.begin(), part.end()}};
                     }));
    auto* found = std::get_if<ConstantsFound>(&answer.message);
    if (!found)
      return fail(ErrorCode::kUnexpectedMessage, "memory lane " + path_ + ": a wrong answer to find_constants");
    if (found->error) return fail(std::move(*found->error));
    std::move(found->missing.begin(), found->missing.end(), std::back_inserter(missing));
  }
  return missing;
}

Status LaneImpl::add_constants(kernels::ConstantPack pack) {
  std::span<const ConstantSpan> spans(pack.spans);
  while (!spans.empty()) {
    const auto part = spans.first(std::min(spans.size(), kLaneListMax));
    spans = spans.subspan(part.size());
    UniqueFd fd(::fcntl(pack.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (!fd) {
      return fail(ErrorCode::kResourceExhausted,
                  std::string("cannot duplicate the descriptor of a segment of constants: ") + std::strerror(errno),
                  "raise RLIMIT_NOFILE (ulimit -n)");
    }
    CALLBOARD_ASSIGN(Answer answer, ask(
                                        [&](std::uint64_t query) {
                                          return AddConstants{query, pack.bytes, {part.begin(), part.end()}, pack.file};
                                        },
                                        std::move(fd)));
    auto* added = std::get_if<ConstantsAdded>(&answer.message);
    if (!added)
      return fail(ErrorCode::kUnexpectedMessage, "memory lane " + path_ + ": a wrong answer to add_constants");
    if (added->error) return fail(std::move(*added->error));
  }
  return {};
}

Result<MemoryLane::OpenedConstant> LaneImpl::open_constant(const ContentHash& hash) {
  CALLBOARD_ASSIGN(Answer answer, ask([&](std::uint64_t query) { return OpenConstant{query, hash}; }));
  auto* opened = std::get_if<ConstantOpened>(&answer.message);
  if (!opened) return fail(ErrorCode::kUnexpectedMessage, "memory lane " + path_ + ": a wrong answer to open_constant");
  if (opened->error) return fail(std::move(*opened->error));
  if (!answer.fd) return fail(lost_descriptor("constant " + hash.hex()));
  return OpenedConstant{std::move(answer.fd), opened->segment, opened->segment_bytes, opened->span,
                        std::move(opened->file)};
}

void LaneImpl::release_constants(std::vector<ContentHash> hashes) {
  std::span<const ContentHash> left(hashes);
  while (!left.empty()) {
    const auto part = left.first(std::min(left.size(), kLaneListMax));
    left = left.subspan(part.size());
    post(ReleaseConstants{{part.begin(), part.end()}});
  }
}

}  // namespace

Result<std::unique_ptr<MemoryLane>> MemoryLane::connect(const std::string& socket_path, Role role, const ActorId& who,
                                                        Events events) {
  CALLBOARD_ASSIGN(UniqueFd socket, connect_seqpacket(socket_path));
  CALLBOARD_ASSIGN(const uid_t uid, peer_uid(socket.get()));
  if (uid != ::geteuid()) {
    return fail(ErrorCode::kPermission,
                "memory lane " + socket_path + ": user " + std::to_string(uid) + " listens there, not ours",
                "is the run directory another user's?");
  }
  enlarge_buffers(socket.get());
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) {
    return fail(ErrorCode::kResourceExhausted, std::string("memory lane: eventfd: ") + std::strerror(errno),
                "raise RLIMIT_NOFILE (ulimit -n)");
  }
  auto lane = std::make_unique<LaneImpl>(std::move(socket), std::move(wake), socket_path, who, std::move(events));
  CALLBOARD_TRY(lane->start(role));
  return lane;
}

}  // namespace callboard::actors
