// The broker against single messages: what it answers, what it refuses, what it keeps and for how long.
#include "actors/node/memory_broker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "actors/core/unix_socket.h"
#include "kernels/memory/constant_pack.h"
#include "kernels/memory/segment.h"
#include "messages/codec.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/actors/node/broker_thread.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

const ActorId kOwner{"cpu0", 1};

/// One end of a lane in the test's own hands.
struct RawClient {
  RawClient(const std::string& path, ActorId name)
      : who(std::move(name)), socket(std::move(*connect_seqpacket(path))) {}

  static RawClient welcome(const std::string& path, const ActorId& who) {
    RawClient client(path, who);
    client.write(MemoryHello{Role::kDevice, who, 1});
    client.read_as<MemoryWelcome>();
    return client;
  }
  void write(const Message& message, int fd = -1) {
    REQUIRE(send_packet(socket.get(), *encode_packet(Envelope{.sender = who}, message), fd) == SocketOutcome::kDone);
  }
  SocketOutcome receive() {
    pollfd entry{socket.get(), POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 20'000) == 1);
    return receive_packet(socket.get(), received);
  }
  template <class T>
  T read_as() {
    REQUIRE(receive() == SocketOutcome::kDone);
    auto packet = decode_packet(received.bytes);
    if (!packet) FAIL(packet.error().to_string());
    if (!std::holds_alternative<T>(packet->message)) FAIL(std::string(message_name(packet->message)));
    return std::get<T>(packet->message);
  }
  /// The broker has closed this connection.
  bool closed() {
    while (receive() == SocketOutcome::kDone) {
    }
    return receive_packet(socket.get(), received) == SocketOutcome::kClosed;
  }
  /// Still served: asks something and gets the answer.
  bool served() {
    write(FindConstants{77, {ContentHash::of("x", 1)}});
    for (;;) {  // others' ends may be told in between
      if (receive() != SocketOutcome::kDone) return false;
      const auto packet = decode_packet(received.bytes);
      if (!packet) return false;
      if (const auto* found = std::get_if<ConstantsFound>(&packet->message)) return found->query == 77;
    }
  }

  ActorId who;
  UniqueFd socket;
  ReceivedPacket received;
};

struct BrokerFixture {
  test::TempDir folder;
  std::string path = folder.file("memory.sock");
  test::BrokerThread broker{path};

  RawClient client(const ActorId& who) { return RawClient::welcome(path, who); }
};

kernels::Segment make_segment(std::uint64_t bytes = 4096) {
  return std::move(*kernels::Segment::create(bytes, "test"));
}

TEST_CASE("the hello comes first, in the sender's own name, and a name is in use once") {
  BrokerFixture fixture;
  RawClient good = fixture.client(kOwner);
  RawClient silent(fixture.path, {"silent", 1});
  silent.write(OpenSegment{1, kOwner, 1});
  REQUIRE(silent.closed());
  RawClient masked(fixture.path, {"masked", 1});
  masked.write(MemoryHello{Role::kDevice, {"another", 1}, 1});
  REQUIRE(masked.closed());
  RawClient twin(fixture.path, kOwner);
  twin.write(MemoryHello{Role::kDevice, kOwner, 1});
  REQUIRE(twin.closed());
  RawClient thief = fixture.client({"thief", 1});
  thief.who = kOwner;
  thief.write(SegmentDropped{1});
  REQUIRE(thief.closed());
  REQUIRE(good.served());
  REQUIRE(fixture.broker.stats().connections == 1);
}

TEST_CASE("who says no hello in time is disconnected") {
  BrokerFixture fixture;
  RawClient good = fixture.client(kOwner);
  RawClient silent(fixture.path, {"silent", 1});
  REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.connections == 2; }));
  fixture.broker.advance(std::chrono::seconds(6));
  REQUIRE(silent.closed());
  REQUIRE(good.served());
}

TEST_CASE("malformed frames, descriptors where none belong and foreign messages cost only their sender") {
  BrokerFixture fixture;
  RawClient good = fixture.client({"good", 1});
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<std::function<void(RawClient&)>> attacks{
      [](RawClient& bad) { send_packet(bad.socket.get(), "garbage", -1); },
      [](RawClient& bad) {
        std::string frame = *encode_packet(Envelope{.sender = bad.who}, SegmentDropped{1});
        frame.back() = static_cast<char>(frame.back() ^ 1);
        send_packet(bad.socket.get(), frame, -1);
      },
      [](RawClient& bad) { bad.write(Bye{"x"}); },
      [&](RawClient& bad) { bad.write(SegmentDropped{1}, file.get()); },
      [](RawClient& bad) {
        bad.write(SegmentAdded{1, 4096});
      },
      [](RawClient& bad) {
        bad.write(AddConstants{1, 4096, {}, std::nullopt});
      },
      [&](RawClient& bad) {
        bad.write(SegmentAdded{1, 4096}, file.get());
      },
      [](RawClient& bad) {  // a descriptor that others could write through
        const kernels::Segment segment = make_segment();
        bad.write(SegmentAdded{1, 4096}, segment.fd());
      },
      [](RawClient& bad) {  // a file that could be cut short under its readers
        const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
        REQUIRE(::ftruncate(unsealed.get(), 4096) == 0);
        const UniqueFd reopened(
            ::open(("/proc/self/fd/" + std::to_string(unsealed.get())).c_str(), O_RDONLY | O_CLOEXEC));
        bad.write(SegmentAdded{1, 4096}, reopened.get());
      },
      [](RawClient& bad) {
        const kernels::Segment segment = make_segment();
        bad.write(SegmentAdded{1, 8192}, segment.open_read_only()->get());
      },
      [](RawClient& bad) {
        const kernels::Segment segment = make_segment();
        const auto read_only = segment.open_read_only();
        bad.write(SegmentAdded{1, 4096}, read_only->get());
        bad.write(SegmentAdded{1, 4096}, read_only->get());
      },
      [](RawClient& bad) {
        enlarge_buffers(bad.socket.get());
        const std::string large(kLanePacketBytesMax + 1, 'x');
        REQUIRE(::write(bad.socket.get(), large.data(), large.size()) > 0);
      },
  };
  Incarnation number = 0;
  for (const auto& attack : attacks) {
    CAPTURE(number);
    RawClient bad = fixture.client({"bad", ++number});
    attack(bad);
    REQUIRE(bad.closed());
    REQUIRE(good.served());
  }
}

TEST_CASE("a segment is passed on until it is dropped; what is gone is a lost tensor") {
  BrokerFixture fixture;
  RawClient owner = fixture.client(kOwner);
  RawClient reader = fixture.client({"client", 1});
  const kernels::Segment segment = make_segment();
  segment.data()[5] = std::byte{42};
  owner.write(SegmentAdded{3, 4096}, segment.open_read_only()->get());
  reader.write(OpenSegment{10, kOwner, 3});
  const auto opened = reader.read_as<SegmentOpened>();
  REQUIRE_FALSE(opened.error);
  REQUIRE(opened.bytes == 4096);
  REQUIRE(reader.received.fds.size() == 1);
  char value = 0;
  REQUIRE(::pread(reader.received.fds[0].get(), &value, 1, 5) == 1);
  REQUIRE(value == 42);
  REQUIRE(fixture.broker.stats().segment_bytes == 4096);
  owner.write(SegmentDropped{3});
  REQUIRE(owner.served());
  reader.write(OpenSegment{11, kOwner, 3});
  REQUIRE(reader.read_as<SegmentOpened>().error->code == ErrorCode::kTensorLost);
  reader.write(OpenSegment{12, {"nobody", 1}, 1});
  REQUIRE(reader.read_as<SegmentOpened>().error->code == ErrorCode::kTensorLost);
  REQUIRE(fixture.broker.stats().segments == 0);
}

TEST_CASE("a reader that asks before the owner's word has arrived gets the segment all the same") {
  BrokerFixture fixture;
  RawClient owner = fixture.client(kOwner);
  RawClient reader = fixture.client({"client", 1});
  reader.write(OpenSegment{1, kOwner, 1});
  REQUIRE(reader.served());  // the question has been read
  const kernels::Segment segment = make_segment();
  owner.write(SegmentAdded{1, 4096}, segment.open_read_only()->get());
  const auto opened = reader.read_as<SegmentOpened>();
  REQUIRE(opened.query == 1);
  REQUIRE_FALSE(opened.error);

  reader.write(OpenSegment{2, kOwner, 9});
  REQUIRE(reader.served());
  fixture.broker.advance(std::chrono::seconds(1));
  const auto expired = reader.read_as<SegmentOpened>();
  REQUIRE(expired.query == 2);
  REQUIRE(expired.error->code == ErrorCode::kTensorLost);

  reader.write(OpenSegment{3, kOwner, 10});
  REQUIRE(reader.served());
  owner.socket.reset();
  const auto lost = reader.read_as<SegmentOpened>();
  REQUIRE(lost.query == 3);
  REQUIRE(lost.error->code == ErrorCode::kTensorLost);
}

TEST_CASE("the end of a process is told to owners as a holder's and to readers as an owner's") {
  BrokerFixture fixture;
  RawClient owner = fixture.client(kOwner);
  RawClient other = fixture.client({"cpu1", 1});
  RawClient reader = fixture.client({"client", 1});
  const kernels::Segment segment = make_segment();
  owner.write(SegmentAdded{1, 4096}, segment.open_read_only()->get());
  other.write(SegmentAdded{1, 4096}, segment.open_read_only()->get());
  REQUIRE(owner.served());
  REQUIRE(other.served());
  reader.write(ReleaseLeases{kOwner, {5, 6}});
  REQUIRE(owner.read_as<ReleaseLeases>() == ReleaseLeases{kOwner, {5, 6}});
  reader.write(ReleaseLeases{{"nobody", 1}, {5}});
  other.socket.reset();
  REQUIRE(owner.read_as<HolderGone>().holder == ActorId{"cpu1", 1});
  REQUIRE(owner.read_as<OwnerGone>().owner == ActorId{"cpu1", 1});
  REQUIRE(reader.read_as<OwnerGone>().owner == ActorId{"cpu1", 1});
  REQUIRE(fixture.broker.stats().orphaned_segments == 1);
}

TEST_CASE("an owner's segments outlive it for five seconds, and as long as somebody holds them") {
  BrokerFixture fixture;
  RawClient owner = fixture.client(kOwner);
  RawClient reader = fixture.client({"client", 1});
  std::vector<kernels::Segment> segments;
  for (SegmentId id = 1; id <= 3; ++id) {
    segments.push_back(make_segment());
    owner.write(SegmentAdded{id, 4096}, segments.back().open_read_only()->get());
  }
  REQUIRE(owner.served());
  owner.socket.reset();
  REQUIRE(reader.read_as<OwnerGone>().owner == kOwner);
  reader.write(SegmentsHeld{kOwner, {2, 99}});
  fixture.broker.advance(std::chrono::seconds(4));
  REQUIRE(fixture.broker.stats().orphaned_segments == 3);
  reader.write(OpenSegment{1, kOwner, 3});
  REQUIRE_FALSE(reader.read_as<SegmentOpened>().error);

  fixture.broker.advance(std::chrono::seconds(2));  // asked again; 2 is held, 3 was opened lately
  REQUIRE(reader.read_as<OwnerGone>().owner == kOwner);
  REQUIRE(fixture.broker.stats().orphaned_segments == 2);
  reader.write(OpenSegment{2, kOwner, 1});
  REQUIRE(reader.read_as<SegmentOpened>().error->code == ErrorCode::kTensorLost);
  for (int round = 0; round < 5; ++round) {
    reader.write(SegmentsHeld{kOwner, {2}});
    REQUIRE(reader.served());
    fixture.broker.advance(std::chrono::seconds(6));
    REQUIRE(reader.read_as<OwnerGone>().owner == kOwner);
  }
  REQUIRE(fixture.broker.stats().orphaned_segments == 1);
  fixture.broker.advance(std::chrono::seconds(6));
  fixture.broker.advance(std::chrono::seconds(6));
  REQUIRE(fixture.broker.stats().segments == 0);
}

TEST_CASE("constants are found, added, opened and closed with their last user") {
  BrokerFixture fixture;
  RawClient adder = fixture.client({"client", 1});
  RawClient user = fixture.client(kOwner);
  const std::string text = "weights";
  const ContentHash hash = ContentHash::of(text.data(), text.size());
  const auto pack = kernels::pack_constants(std::vector<kernels::ConstantSource>{{hash, text.data(), text.size()}});
  adder.write(FindConstants{1, {hash}});
  REQUIRE(adder.read_as<ConstantsFound>().missing == std::vector<ContentHash>{hash});
  user.write(OpenConstant{1, hash});
  REQUIRE(user.read_as<ConstantOpened>().error->code == ErrorCode::kConstantMissing);
  adder.write(AddConstants{2, pack->bytes, pack->spans, std::nullopt}, pack->fd.get());
  REQUIRE_FALSE(adder.read_as<ConstantsAdded>().error);
  user.write(OpenConstant{2, hash});
  const auto opened = user.read_as<ConstantOpened>();
  REQUIRE_FALSE(opened.error);
  REQUIRE(opened.span == pack->spans.front());
  REQUIRE(user.received.fds.size() == 1);
  adder.socket.reset();
  REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.connections == 1; }));
  REQUIRE(fixture.broker.stats().constants == 1);
  user.write(ReleaseConstants{{hash}});
  REQUIRE(user.served());
  REQUIRE(fixture.broker.stats().constants == 0);
  REQUIRE(fixture.broker.stats().constant_bytes == 0);

  const kernels::Segment unsealed = make_segment();
  user.write(AddConstants{3, 4096, {{hash, 0, 7}}, std::nullopt}, unsealed.open_read_only()->get());
  REQUIRE(user.read_as<ConstantsAdded>().error->code == ErrorCode::kMalformed);
  REQUIRE(user.served());
}

TEST_CASE("a process that asks and never reads is disconnected, and the others are served meanwhile") {
  BrokerFixture fixture;
  RawClient good = fixture.client({"good", 1});
  RawClient stuck = fixture.client({"stuck", 1});
  const std::vector<ContentHash> hashes(1'000, ContentHash::of("x", 1));
  const std::string frame = *encode_packet(Envelope{.sender = stuck.who}, FindConstants{1, hashes});
  SocketOutcome outcome = SocketOutcome::kDone;
  while (outcome == SocketOutcome::kDone || outcome == SocketOutcome::kWouldBlock) {
    outcome = send_packet(stuck.socket.get(), frame, -1);
    if (outcome != SocketOutcome::kWouldBlock) continue;
    pollfd entry{stuck.socket.get(), POLLOUT, 0};
    REQUIRE(::poll(&entry, 1, 20'000) == 1);
  }
  REQUIRE(outcome == SocketOutcome::kClosed);
  REQUIRE(good.served());
  REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.connections == 1; }));
}

TEST_CASE("the 513th connection is refused, and the others are served") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit high{std::min<rlim_t>(4'096, before.rlim_max), before.rlim_max};
  if (high.rlim_cur < 1'200) {
    std::cout << "skipped: the hard limit of open files is below 1200\n";
    return;
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &high) == 0);
  {
    BrokerFixture fixture;
    std::vector<RawClient> clients;
    for (Incarnation i = 1; i <= 512; ++i) clients.push_back(fixture.client({"client", i}));
    RawClient refused(fixture.path, {"client", 513});
    REQUIRE(refused.closed());
    REQUIRE(clients.front().served());
    REQUIRE(clients.back().served());
    clients.pop_back();
    REQUIRE(fixture.broker.eventually([](const auto& stats) { return stats.connections == 511; }));
    REQUIRE(fixture.client({"client", 514}).served());
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a second broker on the same socket is refused, one after the first is not") {
  test::TempDir folder;
  const std::string path = folder.file("memory.sock");
  {
    const auto first = MemoryBroker::create(path);
    REQUIRE(first);
    REQUIRE((*first)->next_tick() == kNever);
    REQUIRE(MemoryBroker::create(path).error().code == ErrorCode::kAddressInUse);
  }
  REQUIRE(::access(path.c_str(), F_OK) != 0);
  REQUIRE(MemoryBroker::create(path));
}

}  // namespace
}  // namespace callboard::actors
