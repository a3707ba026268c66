#include "actors/core/memory_lane.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/core/unix_socket.h"
#include "messages/base/clock.h"
#include "messages/codec.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

const ActorId kWho{"cpu0", 2};
const ActorId kOwner{"cpu1", 1};

ContentHash hash_of(int number) { return ContentHash::of(&number, sizeof number); }

/// The node actor's end, in the test's own hands: accepts one lane and reads and writes single messages.
struct FakeNode {
  FakeNode() : listener(std::move(*listen_seqpacket(path, 4))) {}

  /// Connects a lane while this end answers its hello with `answer`.
  Result<std::unique_ptr<MemoryLane>> connect(MemoryLane::Events events = {}, Message answer = MemoryWelcome{}) {
    auto lane = std::async(std::launch::async, [&, events = std::move(events)] {
      return MemoryLane::connect(path, Role::kDevice, kWho, events);
    });
    accept();
    const Packet hello = read();
    REQUIRE(std::get<MemoryHello>(hello.message).who == kWho);
    REQUIRE(hello.envelope.sender == kWho);
    write(answer);
    return lane.get();
  }
  void accept() {
    wait(listener.get(), POLLIN);
    socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    REQUIRE(socket);
  }
  static void wait(int fd, short events) {
    pollfd entry{fd, events, 0};
    REQUIRE(::poll(&entry, 1, 20'000) == 1);
  }
  Packet read() {
    wait(socket.get(), POLLIN);
    REQUIRE(receive_packet(socket.get(), received) == SocketOutcome::kDone);
    auto packet = decode_packet(received.bytes);
    if (!packet) FAIL(packet.error().to_string());
    return std::move(*packet);
  }
  template <class T>
  T read_as() {
    Packet packet = read();
    if (!std::holds_alternative<T>(packet.message)) FAIL(std::string(message_name(packet.message)));
    return std::get<T>(packet.message);
  }
  void write(const Message& message, int fd = -1) {
    REQUIRE(send_packet(socket.get(), *encode_packet(Envelope{.sender = {"node", 1}}, message), fd) ==
            SocketOutcome::kDone);
  }

  test::TempDir folder;
  std::string path = folder.path() + "/memory.sock";
  UniqueFd listener;
  UniqueFd socket;
  ReceivedPacket received;
};

/// Something that happens on the lane's thread and is waited for here.
class Signal {
 public:
  void set() {
    std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool reached(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

MemoryLane::Events on_node_gone(Signal& gone) {
  MemoryLane::Events events;
  events.node_gone = [&gone] { gone.set(); };
  return events;
}

TEST_CASE("a lane says who it is and waits for the welcome") {
  FakeNode node;
  REQUIRE(node.connect());
  const auto refused = node.connect({}, Bye{"no"});
  REQUIRE(refused.error().code == ErrorCode::kUnexpectedMessage);
}

TEST_CASE("a lane that the node actor closes at once is refused with a hint") {
  FakeNode node;
  auto lane = std::async(std::launch::async, [&] { return MemoryLane::connect(node.path, Role::kClient, kWho, {}); });
  node.accept();
  node.read();
  node.socket.reset();
  const auto refused = lane.get();
  REQUIRE(refused.error().code == ErrorCode::kPeerLost);
  REQUIRE_FALSE(refused.error().hint.empty());
  REQUIRE(MemoryLane::connect(node.folder.path() + "/none", Role::kClient, kWho, {}).error().code ==
          ErrorCode::kPeerLost);
}

TEST_CASE("a segment is told with its descriptor, and dropped") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  REQUIRE((*lane)->add_segment(7, std::move(file), 4096));
  REQUIRE(node.read_as<SegmentAdded>() == SegmentAdded{7, 4096});
  REQUIRE(node.received.fds.size() == 1);
  (*lane)->drop_segment(7);
  REQUIRE(node.read_as<SegmentDropped>().segment == 7);
  REQUIRE(node.received.fds.empty());
}

TEST_CASE("questions are answered by number, whatever the order") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  auto first = std::async(std::launch::async, [&] { return (*lane)->open_segment(kOwner, 1); });
  const auto question_one = node.read_as<OpenSegment>();
  auto second = std::async(std::launch::async, [&] { return (*lane)->open_segment(kOwner, 2); });
  const auto question_two = node.read_as<OpenSegment>();
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  node.write(SegmentOpened{999, std::nullopt, 1}, file.get());  // of a question whose deadline has passed
  node.write(SegmentOpened{question_two.query, std::nullopt, 222}, file.get());
  node.write(SegmentOpened{question_one.query, Error(ErrorCode::kTensorLost, "gone"), 0});
  const auto opened = second.get();
  REQUIRE(opened);
  REQUIRE(opened->bytes == 222);
  REQUIRE(opened->fd);
  REQUIRE(first.get().error().code == ErrorCode::kTensorLost);

  auto without_fd = std::async(std::launch::async, [&] { return (*lane)->open_segment(kOwner, 3); });
  node.write(SegmentOpened{node.read_as<OpenSegment>().query, std::nullopt, 5});
  const auto lost = without_fd.get();
  REQUIRE(lost.error().code == ErrorCode::kResourceExhausted);
  REQUIRE(lost.error().hint.find("RLIMIT_NOFILE") != std::string::npos);
}

TEST_CASE("a question that is not answered ends at its deadline") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  REQUIRE((*lane)->open_constant(hash_of(1)).error().code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("releases are sent 32 together, or a few after a short while, one message for each owner") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  for (LeaseId lease = 1; lease <= 32; ++lease) (*lane)->release(lease % 2 ? kOwner : kWho, lease);
  std::size_t count = 0;
  while (count < 32) {
    const auto release = node.read_as<ReleaseLeases>();
    for (const LeaseId lease : release.leases) REQUIRE(release.owner == (lease % 2 ? kOwner : kWho));
    count += release.leases.size();
  }
  REQUIRE(count == 32);
  (*lane)->release(kOwner, 33);
  REQUIRE(node.read_as<ReleaseLeases>() == ReleaseLeases{kOwner, {33}});
}

TEST_CASE("posts never block: what the socket does not take is kept in order and sent later") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  constexpr LeaseId kCount = 200'000;
  for (LeaseId lease = 1; lease <= kCount; ++lease) (*lane)->release(kOwner, lease);
  LeaseId next = 1;
  while (next <= kCount) {
    for (const LeaseId lease : node.read_as<ReleaseLeases>().leases) {
      if (lease != next++) FAIL("out of order");
    }
  }
  REQUIRE(next == kCount + 1);
}

TEST_CASE("a node actor that never reads costs the lane, not the memory of its process") {
  FakeNode node;
  Signal gone;
  auto lane = node.connect(on_node_gone(gone));
  REQUIRE(lane);
  std::vector<ContentHash> hashes(1'000, hash_of(1));
  for (int i = 0; i < 1'000; ++i) (*lane)->release_constants(hashes);
  REQUIRE(gone.reached(1));
  REQUIRE((*lane)->open_segment(kOwner, 1).error().code == ErrorCode::kPeerLost);
}

TEST_CASE("events arrive: holders, leases and owners that ended, and the node actor's end") {
  FakeNode node;
  Signal event;
  ActorId holder;
  ActorId owner;
  std::vector<LeaseId> leases;
  auto lane = node.connect({.holder_gone =
                                [&](const ActorId& who) {
                                  holder = who;
                                  event.set();
                                },
                            .lease_released =
                                [&](LeaseId lease) {
                                  leases.push_back(lease);
                                  event.set();
                                },
                            .owner_gone =
                                [&](const ActorId& who) {
                                  owner = who;
                                  event.set();
                                },
                            .node_gone = [&] { event.set(); }});
  REQUIRE(lane);
  node.write(HolderGone{{"client", 1}});
  node.write(ReleaseLeases{kOwner, {1, 2}});  // another owner's: not for us
  node.write(ReleaseLeases{kWho, {3, 4}});
  node.write(OwnerGone{kOwner});
  node.write(ActorStarted{});  // what does not belong here does no harm
  REQUIRE(event.reached(4));
  REQUIRE(holder == ActorId{"client", 1});
  REQUIRE(leases == std::vector<LeaseId>{3, 4});
  REQUIRE(owner == kOwner);
  auto waiting = std::async(std::launch::async, [&] { return (*lane)->open_segment(kOwner, 1); });
  node.read_as<OpenSegment>();
  node.socket.reset();
  REQUIRE(event.reached(5));
  REQUIRE(waiting.get().error().code == ErrorCode::kPeerLost);
  REQUIRE((*lane)->open_segment(kOwner, 1).error().code == ErrorCode::kPeerLost);
  REQUIRE_FALSE((*lane)->add_segment(1, UniqueFd(), 1));
}

TEST_CASE("bytes that are no message end the lane") {
  FakeNode node;
  Signal gone;
  auto lane = node.connect(on_node_gone(gone));
  REQUIRE(lane);
  REQUIRE(send_packet(node.socket.get(), "garbage", -1) == SocketOutcome::kDone);
  REQUIRE(gone.reached(1));
}

TEST_CASE("long lists of constants travel in several questions") {
  FakeNode node;
  auto lane = node.connect();
  REQUIRE(lane);
  std::vector<ContentHash> hashes;
  for (int i = 0; i < 2'500; ++i) hashes.push_back(hash_of(i));
  auto missing = std::async(std::launch::async, [&] { return (*lane)->find_constants(hashes); });
  for (const std::size_t expected : {1'000u, 1'000u, 500u}) {
    const auto question = node.read_as<FindConstants>();
    REQUIRE(question.hashes.size() == expected);
    node.write(ConstantsFound{question.query, std::nullopt, {question.hashes.front()}});
  }
  REQUIRE(*missing.get() == std::vector<ContentHash>{hashes[0], hashes[1'000], hashes[2'000]});

  kernels::ConstantPack pack{UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), 1 << 20, {}, std::nullopt};
  for (int i = 0; i < 1'500; ++i) pack.spans.push_back({hash_of(i), static_cast<std::uint64_t>(i) * 64, 64});
  auto added = std::async(std::launch::async, [&] { return (*lane)->add_constants(std::move(pack)); });
  for (const std::size_t expected : {1'000u, 500u}) {
    const auto question = node.read_as<AddConstants>();
    REQUIRE(question.spans.size() == expected);
    REQUIRE(node.received.fds.size() == 1);
    node.write(ConstantsAdded{question.query, std::nullopt});
  }
  REQUIRE(added.get());
  REQUIRE((*lane)->find_constants({})->empty());
}

}  // namespace
}  // namespace callboard::actors
