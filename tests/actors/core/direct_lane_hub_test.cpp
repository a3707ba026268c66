// Direct lanes between Hub and Line: who gets one, and what is left when one ends.
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "actors/core/direct_lane.h"
#include "actors/core/unix_socket.h"
#include "messages/codec.h"
#include "tests/actors/core/lane_ends.h"
#include "tests/actors/core/station.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::milliseconds;
using test::frame_of;
using test::hub_options;
using test::HubStation;
using test::LaneProxy;
using test::line_options;
using test::LineStation;
using test::numbered;
using test::RawEnd;
using test::Seen;
using test::TempDir;

const ActorId kDevice{"cpu0", 1};

Hello hello_from(const ActorId& who, std::int64_t pid) {
  Hello hello;
  hello.who = who;
  hello.cluster = "test";
  hello.pid = pid;
  return hello;
}

std::string packet_of(const Message& message, const ActorId& sender, std::uint64_t seq = 0, Epoch epoch = 0,
                      std::uint64_t ack = 0) {
  auto bytes = encode_packet(Envelope{epoch, sender, seq, ack}, message);
  if (!bytes) throw std::runtime_error(bytes.error().message);
  return std::move(*bytes);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// A hub that echoes, and an honest peer.
struct HubScene {
  explicit HubScene(bool peer_direct, Duration hello_wait = test::kPatience)
      : hub(with(hub_options(endpoint()), hello_wait)), peer(line_options(endpoint(), kDevice, peer_direct)) {
    hub.on_message = [](Hub& h, const ActorId& from, const Message& message) { (void)h.send(from, message); };
    REQUIRE(hub.open());
    REQUIRE(peer.open());
    REQUIRE(peer.events().next_of(Seen::Kind::kWelcome));
    check_alive();  // the hub has seen the hello of its lane
  }
  static Hub::Options with(Hub::Options options, Duration hello_wait) {
    options.lane_hello_wait = hello_wait;
    return options;
  }
  std::string endpoint() const { return "ipc://" + dir.file("hub.sock"); }
  RawEnd connect() const {
    const TimePoint until = after(Clock::now(), test::kPatience);
    for (;;) {
      auto socket = connect_stream(dir.file("hub.sock.d"));
      if (socket) return RawEnd(std::move(*socket));
      if (Clock::now() >= until) throw std::runtime_error(socket.error().message);  // else its backlog was full
    }
  }
  void check_alive() {
    REQUIRE(peer.send(numbered(++rounds)));
    const auto echo = peer.events().next_of(Seen::Kind::kMessage);
    REQUIRE(echo);
    CHECK(std::get<Operation>(*echo->message).request == rounds);
  }

  TempDir dir;
  HubStation hub;
  LineStation peer;
  std::uint64_t rounds = 0;
};

TEST_CASE("who is welcome talks directly; the lane's socket is for its user only and goes with the hub") {
  TempDir dir;
  const std::string lane = dir.file("hub.sock.d");
  {
    HubStation hub(hub_options("ipc://" + dir.file("hub.sock")));
    REQUIRE(hub.open());
    struct stat info {};
    REQUIRE(::stat(lane.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    LineStation peer(line_options("ipc://" + dir.file("hub.sock"), kDevice));
    REQUIRE(peer.open());
    REQUIRE(peer.events().next_of(Seen::Kind::kWelcome));
    CHECK(peer.direct());
    LineStation other(line_options("ipc://" + dir.file("hub.sock"), {"cpu1", 1}, false));
    REQUIRE(other.open());
    REQUIRE(other.events().next_of(Seen::Kind::kWelcome));
    CHECK_FALSE(other.direct());
  }
  CHECK_FALSE(std::filesystem::exists(lane));
}

TEST_CASE("a path that is too long for a lane is good for ZeroMQ alone") {
  TempDir dir;
  const std::size_t length = GENERATE(std::size_t{105}, std::size_t{106}, std::size_t{107});
  const std::string endpoint = "ipc://" + dir.file(std::string(length - dir.path().size() - 1, 'p'));
  CHECK(direct_lane_path(endpoint.substr(6)).empty() == (length > 105));
  HubStation hub(hub_options(endpoint));
  REQUIRE(hub.open());
  LineStation peer(line_options(endpoint, kDevice));
  REQUIRE(peer.open());
  REQUIRE(peer.events().next_of(Seen::Kind::kWelcome));
  CHECK(peer.direct() == (length == 105));
  REQUIRE(peer.send(numbered(1)));
  CHECK(hub.events().next_of(Seen::Kind::kMessage));
}

TEST_CASE("only the peer's own process gets its lane, and one only") {
  HubScene scene(GENERATE(true, false));
  const bool direct = scene.peer.direct();
  const std::int64_t pid = line_options("", kDevice).hello.pid;
  const auto refused = [&](const std::string& bytes) {
    const auto before = scene.hub.counters().refused_frames;
    RawEnd raw = scene.connect();
    CHECK(raw.say(bytes));
    CHECK(raw.closes());
    CHECK(scene.hub.counters().refused_frames == before + 1);
  };
  refused(packet_of(hello_from({"eve", 1}, 7), {"eve", 1}));
  refused(packet_of(hello_from(kDevice, pid + 1), kDevice));
  refused(packet_of(hello_from({kDevice.name, 2}, pid), {kDevice.name, 2}));
  refused(packet_of(numbered(1), kDevice, 1, 5));
  refused(frame_of("no packet"));
  RawEnd raw = scene.connect();
  CHECK(raw.say(packet_of(hello_from(kDevice, pid), kDevice)));
  if (direct) {
    CHECK(raw.closes());
  } else {
    // The same process, as far as the hub can tell: what it says counts, what is not its own does not.
    CHECK(raw.say(packet_of(numbered(77), {"eve", 1}, scene.rounds + 1, 5)));
    CHECK(raw.say(packet_of(numbered(78), kDevice, scene.rounds + 1, 4)));
    CHECK(raw.say(packet_of(numbered(79), kDevice, scene.rounds + 1, 5)));
    for (std::uint64_t request = 0; request != 79;) {
      const auto seen = scene.hub.events().next_of(Seen::Kind::kMessage);
      REQUIRE(seen);
      request = std::get<Operation>(*seen->message).request;
      CHECK((request == 79 || request <= scene.rounds));
    }
    return;
  }
  CHECK(scene.peer.direct() == direct);
  scene.check_alive();
}

TEST_CASE("a newcomer that says nothing, or not all of a hello, is dropped after a while") {
  HubScene scene(true, milliseconds(200));
  RawEnd silent = scene.connect();
  RawEnd slow = scene.connect();
  CHECK(slow.say(packet_of(hello_from(kDevice, 1), kDevice).substr(0, 30)));
  CHECK(silent.closes());
  CHECK(slow.closes());
  RawEnd greedy = scene.connect();
  (void)greedy.say(frame_of(std::string(1u << 20, 'x')));  // is not waited for, and not kept
  CHECK(greedy.closes());
  scene.check_alive();
}

TEST_CASE("200 connections that say nothing leave room for honest ones, and no descriptors behind") {
  const std::size_t before = open_descriptors();
  {
    HubScene scene(true);
    std::vector<RawEnd> silent;
    for (int i = 0; i < 200; ++i) silent.push_back(scene.connect());
    std::size_t closed = 0;
    for (std::size_t i = 0; i < 200 - 64; ++i) closed += silent[i].closes() ? 1 : 0;
    CHECK(closed == 200 - 64);
    LineStation late(line_options(scene.endpoint(), {"late", 1}));
    REQUIRE(late.open());
    REQUIRE(late.events().next_of(Seen::Kind::kWelcome));
    CHECK(late.direct());
    REQUIRE(late.send(numbered(1)));
    REQUIRE(late.events().next_of(Seen::Kind::kMessage));
    scene.check_alive();
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a lane that ends in the middle loses nothing: all arrives once and in order, both ways") {
  TempDir dir;
  const std::string endpoint = "ipc://" + dir.file("hub.sock");
  const std::size_t cut_after = GENERATE(std::size_t{100}, std::size_t{20'011}, std::size_t{150'003});
  constexpr std::uint64_t kMessages = 2'000;
  auto hub_side = hub_options(endpoint);
  hub_side.link.resend_after = milliseconds(50);
  hub_side.link.resends_max = 1'000;
  HubStation hub(hub_side);
  REQUIRE(hub.open());
  LaneProxy proxy(dir.file("line.sock"), dir.file("hub.sock"), cut_after);
  auto line_side = line_options("ipc://" + dir.file("line.sock"), kDevice);
  line_side.link = hub_side.link;
  LineStation line(line_side);
  REQUIRE(line.open());
  REQUIRE(line.events().next_of(Seen::Kind::kWelcome));
  REQUIRE(line.send(numbered(1)));
  const auto first = hub.events().next_of(Seen::Kind::kMessage);  // with nothing under way the hub takes the lane, too
  REQUIRE(first);
  for (std::uint64_t i = 2; i <= kMessages; ++i) {
    REQUIRE(line.send(numbered(i)));
    REQUIRE(hub.send(kDevice, numbered(i - 1)));
  }
  REQUIRE(hub.send(kDevice, numbered(kMessages)));
  for (auto* events : {&hub.events(), &line.events()}) {
    const std::uint64_t next = events == &hub.events() ? 2 : 1;
    std::uint64_t right = next - 1;
    for (std::uint64_t i = next; i <= kMessages; ++i) {
      const auto seen = events->next_of(Seen::Kind::kMessage);
      REQUIRE(seen);
      if (std::get<Operation>(*seen->message).request == i) ++right;
    }
    CHECK(right == kMessages);
  }
  CHECK(proxy.was_cut());
  const TimePoint until = after(Clock::now(), test::kPatience);
  while (line.direct() && Clock::now() < until) {
  }
  CHECK_FALSE(line.direct());
  CHECK(hub.events().size() == 0);
  CHECK(line.events().size() == 0);
}

TEST_CASE("a hub that ends while a lane is full says its goodbye over ZeroMQ") {
  HubScene scene(false);
  RawEnd stuck = scene.connect();
  CHECK(stuck.say(packet_of(hello_from(kDevice, line_options("", kDevice).hello.pid), kDevice)));
  // Acknowledges all that came over ZeroMQ; from now on the hub sends over the lane, where nobody reads.
  CHECK(stuck.say(packet_of(numbered(2), kDevice, 2, 5, 1)));
  REQUIRE(stuck.hear().size() > 0);
  scene.hub.station().call([&] {
    for (int i = 0; i < 40; ++i) (void)scene.hub.hub().send(kDevice, Operation{1, "large", std::string(100'000, 'x')});
  });
  scene.hub.close();
  const auto lost = scene.peer.events().next_of(Seen::Kind::kLost);
  REQUIRE(lost);
  CHECK(lost->error->message.find("goodbye") != std::string::npos);
}

TEST_CASE("a message that came over a lane may end its hub or its line") {
  TempDir dir;
  const std::string endpoint = "ipc://" + dir.file("hub.sock");
  test::Station hub_side;
  test::Station line_side;
  auto messenger = Messenger::create();
  std::unique_ptr<Hub> hub;
  std::unique_ptr<Line> line;
  test::Events seen;
  const bool hub_ends = GENERATE(true, false);
  hub_side.call([&] {
    Hub::Events events;
    events.message = [&](const ActorId& from, Message message) {
      (void)hub->send(from, message);
      if (hub_ends) hub.reset();
    };
    events.lost = [&](const ActorId& peer, const Error& why) { seen.put({Seen::Kind::kLost, peer, {}, why}); };
    hub = std::move(*Hub::bind(hub_side.loop(), *messenger, hub_options(endpoint), std::move(events)));
  });
  line_side.call([&] {
    Line::Events events;
    events.welcome = [&](const Welcome&) {
      for (std::uint64_t i = 1; i <= 3; ++i) (void)line->send(numbered(i));
    };
    events.message = [&](Message) {
      if (!hub_ends) line.reset();
    };
    events.lost = [&](const Error& why) { seen.put({Seen::Kind::kLost, {}, {}, why}); };
    line = std::move(*Line::connect(line_side.loop(), *messenger, line_options(endpoint, kDevice), std::move(events)));
  });
  const auto lost = seen.next_of(Seen::Kind::kLost);
  REQUIRE(lost);
  CHECK(lost->error->message.find("goodbye") != std::string::npos);
  line_side.call([&] { line.reset(); });
  hub_side.call([&] { hub.reset(); });
}

}  // namespace
}  // namespace callboard::actors
