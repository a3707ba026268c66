// Hub and Line over real sockets, each on a loop and a thread of its own.
#include "actors/core/transport.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "messages/base/fd.h"
#include "tests/actors/core/station.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Events;
using test::hub_options;
using test::HubStation;
using test::line_options;
using test::LineStation;
using test::numbered;
using test::Seen;
using test::TempDir;

const ActorId kCpu0{"cpu0", 1};

std::string endpoint_in(const TempDir& dir) { return "ipc://" + dir.file("hub.sock"); }

/// Where a test's hub is; most run once with direct lanes and once over ZeroMQ alone.
struct Place {
  explicit Place(bool with_lanes) : direct(with_lanes) {}
  Hub::Options hub() const { return hub_options(endpoint_in(dir), direct); }
  Line::Options line(const ActorId& who = kCpu0) const { return line_options(endpoint_in(dir), who, direct); }

  TempDir dir;
  const bool direct;
};

/// The numbers of the next `count` messages; beats have none.
std::vector<std::uint64_t> numbers(Events& events, std::size_t count) {
  std::vector<std::uint64_t> result;
  while (result.size() < count) {
    const auto seen = events.next_of(Seen::Kind::kMessage);
    if (!seen) break;
    if (const auto* operation = std::get_if<Operation>(&*seen->message)) result.push_back(operation->request);
  }
  return result;
}

std::vector<std::uint64_t> one_to(std::uint64_t count) {
  std::vector<std::uint64_t> result(count);
  for (std::uint64_t i = 0; i < count; ++i) result[i] = i + 1;
  return result;
}

TEST_CASE("a peer says hello, is welcomed, and both talk; its goodbye is a loss that says so") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  hub.on_message = [](Hub& h, const ActorId& from, const Message& message) { (void)h.send(from, message); };
  REQUIRE(hub.open());
  LineStation line(place.line());
  REQUIRE(line.open());
  const auto hello = hub.events().next();
  REQUIRE(hello);
  CHECK(hello->kind == Seen::Kind::kHello);
  CHECK(hello->who == kCpu0);
  const auto welcome = line.events().next();
  REQUIRE(welcome);
  REQUIRE(welcome->kind == Seen::Kind::kWelcome);
  CHECK(std::get<Welcome>(*welcome->message) == Welcome{5, ActorId{"coordinator", 1}});
  for (std::uint64_t i = 1; i <= 100; ++i) REQUIRE(line.send(numbered(i)));
  CHECK(numbers(hub.events(), 100) == one_to(100));
  CHECK(numbers(line.events(), 100) == one_to(100));
  line.close();
  const auto lost = hub.events().next();
  REQUIRE(lost);
  CHECK(lost->kind == Seen::Kind::kLost);
  CHECK(lost->error->message.find("goodbye") != std::string::npos);
  CHECK(hub.send(kCpu0, numbered(1)).error().code == ErrorCode::kUnknownPeer);
}

TEST_CASE("what is sent before the welcome, and before there is a hub at all, arrives in order") {
  const Place place(GENERATE(true, false));
  LineStation line(place.line());
  REQUIRE(line.open());
  for (std::uint64_t i = 1; i <= 50; ++i) REQUIRE(line.send(numbered(i)));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  CHECK(numbers(hub.events(), 50) == one_to(50));
}

TEST_CASE("what the hello callback sends goes out behind the welcome") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  hub.admit = [&](const Hello& hello) {
    for (std::uint64_t i = 1; i <= 3; ++i) (void)hub.hub().send(hello.who, numbered(i));
    return Status();
  };
  REQUIRE(hub.open());
  LineStation line(place.line());
  REQUIRE(line.open());
  CHECK(line.events().next()->kind == Seen::Kind::kWelcome);
  CHECK(numbers(line.events(), 3) == one_to(3));
}

TEST_CASE("a large message arrives whole, one above the limit is refused before it is sent") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  LineStation line(place.line());
  REQUIRE(line.open());
  const std::string large(900'000, 'x');
  REQUIRE(line.send(Operation{1, "large", large}));
  const auto seen = hub.events().next_of(Seen::Kind::kMessage);
  REQUIRE(seen);
  CHECK(std::get<Operation>(*seen->message).arguments == large);
  const Status refused = line.send(Operation{2, "larger", std::string(limits::kMessageBytesMax, 'x')});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kTooLarge);
  REQUIRE(line.send(numbered(3)));
  CHECK(numbers(hub.events(), 1) == std::vector<std::uint64_t>{3});
}

TEST_CASE("a refused hello tells the peer why") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  hub.admit = [](const Hello&) -> Status { return fail(ErrorCode::kUnknownPeer, "no such device"); };
  REQUIRE(hub.open());
  SECTION("by the callback") {
    LineStation line(place.line());
    REQUIRE(line.open());
    const auto lost = line.events().next();
    REQUIRE(lost);
    CHECK(lost->kind == Seen::Kind::kLost);
    CHECK(lost->error->message == "no such device");
    CHECK(hub.send(kCpu0, numbered(1)).error().code == ErrorCode::kUnknownPeer);
    CHECK(line.send(numbered(1)).error().message == "no such device");
  }
  SECTION("because it is for another cluster") {
    auto options = place.line();
    options.hello.cluster = "elsewhere";
    LineStation line(std::move(options));
    REQUIRE(line.open());
    const auto lost = line.events().next();
    REQUIRE(lost);
    CHECK(lost->error->code == ErrorCode::kClusterNotFound);
    CHECK(lost->error->message.find("'elsewhere'") != std::string::npos);
    CHECK(lost->error->message.find("'test'") != std::string::npos);
    CHECK(hub.events().size() == 0);
  }
}

TEST_CASE("the hub takes no more peers than it may") {
  const Place place(GENERATE(true, false));
  auto options = place.hub();
  options.peers_max = 2;
  HubStation hub(std::move(options));
  REQUIRE(hub.open());
  LineStation a(place.line({"a", 1}));
  LineStation b(place.line({"b", 1}));
  REQUIRE(a.open());
  REQUIRE(b.open());
  CHECK(a.events().next()->kind == Seen::Kind::kWelcome);
  CHECK(b.events().next()->kind == Seen::Kind::kWelcome);
  {
    LineStation c(place.line({"c", 1}));
    REQUIRE(c.open());
    CHECK(c.events().next()->error->code == ErrorCode::kOverloaded);
  }
  a.close();
  REQUIRE(hub.events().next_of(Seen::Kind::kLost));
  LineStation d(place.line({"d", 1}));
  REQUIRE(d.open());
  CHECK(d.events().next()->kind == Seen::Kind::kWelcome);
}

TEST_CASE("no answer within the time is a loss") {
  TempDir dir;
  auto options = line_options(endpoint_in(dir), kCpu0);
  options.connect_timeout = milliseconds(50);
  LineStation line(std::move(options));
  REQUIRE(line.open());
  const auto lost = line.events().next();
  REQUIRE(lost);
  CHECK(lost->error->code == ErrorCode::kNotReady);
  CHECK_FALSE(line.events().next(milliseconds(50)));
}

TEST_CASE("a hub that ends tells its peers") {
  const Place place(GENERATE(true, false));
  LineStation line(place.line());
  {
    HubStation hub(place.hub());
    REQUIRE(hub.open());
    REQUIRE(line.open());
    CHECK(line.events().next()->kind == Seen::Kind::kWelcome);
  }
  const auto lost = line.events().next();
  REQUIRE(lost);
  CHECK(lost->error->code == ErrorCode::kPeerLost);
}

TEST_CASE("an older incarnation than one seen is refused, a newer one takes the place") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  LineStation second(place.line({"cpu0", 2}));
  REQUIRE(second.open());
  CHECK(second.events().next()->kind == Seen::Kind::kWelcome);
  CHECK(hub.events().next()->who == ActorId{"cpu0", 2});

  LineStation first(place.line({"cpu0", 1}));
  REQUIRE(first.open());
  CHECK(first.events().next()->error->code == ErrorCode::kStaleIncarnation);

  LineStation third(place.line({"cpu0", 3}));
  REQUIRE(third.open());
  CHECK(third.events().next()->kind == Seen::Kind::kWelcome);
  const auto lost = hub.events().next();
  REQUIRE(lost);
  CHECK(lost->kind == Seen::Kind::kLost);
  CHECK(lost->who == ActorId{"cpu0", 2});
  CHECK(hub.events().next()->kind == Seen::Kind::kHello);

  SECTION("and the replaced one learns it when it sends") {
    REQUIRE(second.send(numbered(1)));
    CHECK(second.events().next_of(Seen::Kind::kLost)->error->code == ErrorCode::kStaleIncarnation);
  }
}

TEST_CASE("R81: a peer that was given up and comes back is told to end, and nothing of it is delivered") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  LineStation line(place.line());
  REQUIRE(line.open());
  CHECK(line.events().next()->kind == Seen::Kind::kWelcome);
  hub.forget(kCpu0);
  REQUIRE(line.send(numbered(1)));
  const auto lost = line.events().next_of(Seen::Kind::kLost);
  REQUIRE(lost);
  CHECK(lost->error->code == ErrorCode::kStaleIncarnation);
  CHECK(hub.events().next()->kind == Seen::Kind::kHello);
  CHECK(hub.events().size() == 0);
  CHECK(hub.counters().refused_frames >= 1);

  hub.forget({"cpu1", 1});  // fenced before it ever came
  LineStation late(place.line({"cpu1", 1}));
  REQUIRE(late.open());
  CHECK(late.events().next()->error->code == ErrorCode::kStaleIncarnation);
}

TEST_CASE("R55: an actor that comes back under its name is heard at once, 50 times") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  hub.on_message = [](Hub& h, const ActorId& from, const Message& message) { (void)h.send(from, message); };
  REQUIRE(hub.open());
  std::vector<std::unique_ptr<LineStation>> lines;  // the old ones stay connected, like half-open connections
  for (std::uint64_t incarnation = 1; incarnation <= 50; ++incarnation) {
    lines.push_back(std::make_unique<LineStation>(place.line({"cpu0", incarnation})));
    REQUIRE(lines.back()->open());
    REQUIRE(lines.back()->send(numbered(incarnation)));
    REQUIRE(numbers(lines.back()->events(), 1) == std::vector<std::uint64_t>{incarnation});
    if (lines.size() > 4) lines.erase(lines.begin());
  }
}

TEST_CASE("R50: a peer that takes nothing costs a bounded amount and an honest kOverloaded; then all arrives") {
  const Place place(GENERATE(true, false));
  auto options = place.hub();
  options.send_high_water = 16;  // so that ZeroMQ is full long before the window is
  options.link.resend_after = milliseconds(100);
  options.link.resends_max = 1'000;
  HubStation hub(std::move(options));
  REQUIRE(hub.open());
  LineStation line(place.line());
  REQUIRE(line.open());
  CHECK(line.events().next()->kind == Seen::Kind::kWelcome);

  test::Busy stopped(line.station().loop());

  const std::string filling(4'000, 'x');
  std::uint64_t accepted = 0;
  ErrorCode refusal = ErrorCode::kOk;
  hub.station().call([&] {
    for (std::uint64_t i = 1; i <= 5'000; ++i) {
      const Status sent = hub.hub().send(kCpu0, Operation{i, "count", filling});
      if (sent) {
        ++accepted;
      } else {
        refusal = sent.error().code;
      }
    }
  });
  CHECK(accepted == limits::kLinkWindowMax);
  CHECK(refusal == ErrorCode::kOverloaded);
  // What is not remembered has less room still; a direct lane has a little where ZeroMQ has none.
  const int beats = hub.station().call([&] {
    int taken = 0;
    while (taken < 10'000 && hub.hub().send_once(kCpu0, Beat{})) ++taken;
    return taken;
  });
  CHECK(beats < (place.direct ? 10'000 : 1));

  stopped.release();
  CHECK(numbers(line.events(), accepted) == one_to(accepted));
  CHECK(hub.send(kCpu0, numbered(accepted + 1)));
  CHECK(numbers(line.events(), 1) == std::vector<std::uint64_t>{accepted + 1});
}

TEST_CASE("R50: the same from the line's side") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  auto options = place.line();
  options.send_high_water = 16;
  LineStation line(std::move(options));
  REQUIRE(line.open());
  CHECK(line.events().next()->kind == Seen::Kind::kWelcome);
  test::Busy stopped(hub.station().loop());
  const std::string filling(4'000, 'x');
  std::uint64_t accepted = 0;
  while (accepted < 5'000 && line.send(Operation{accepted + 1, "count", filling})) ++accepted;
  CHECK(accepted == limits::kLinkWindowMax);
  stopped.release();
  CHECK(numbers(hub.events(), accepted) == one_to(accepted));
}

TEST_CASE("a callback may destroy its line") {
  const Place place(GENERATE(true, false));
  HubStation hub(place.hub());
  REQUIRE(hub.open());
  test::Station station;
  auto messenger = Messenger::create();
  std::unique_ptr<Line> line;
  std::promise<void> done;
  station.call([&] {
    Line::Events events;
    events.welcome = [&](const Welcome&) {
      line.reset();
      done.set_value();
    };
    line = std::move(*Line::connect(station.loop(), *messenger, place.line(), std::move(events)));
  });
  CHECK(done.get_future().wait_for(test::kPatience) == std::future_status::ready);
  CHECK(hub.events().next_of(Seen::Kind::kLost));
}

TEST_CASE("R53: a path that is too long for a socket is refused by name, length and limit") {
  const std::string path = "/tmp/" + std::string(115, 'p') + "/hub.sock";
  const auto endpoint = ipc_endpoint(path);
  REQUIRE_FALSE(endpoint);
  CHECK(endpoint.error().code == ErrorCode::kConfigOutOfRange);
  CHECK(endpoint.error().message.find(path) != std::string::npos);
  CHECK(endpoint.error().message.find(std::to_string(path.size())) != std::string::npos);
  CHECK(endpoint.error().message.find("107") != std::string::npos);
  CHECK(ipc_endpoint("/tmp/" + std::string(102, 'p')));
  CHECK_FALSE(ipc_endpoint("/tmp/" + std::string(103, 'p')));
  CHECK_FALSE(ipc_endpoint(""));
  HubStation hub(hub_options("ipc://" + path));
  CHECK(hub.open().error().code == ErrorCode::kConfigOutOfRange);
  LineStation line(line_options("ipc://" + path, kCpu0));
  CHECK(line.open().error().code == ErrorCode::kConfigOutOfRange);
}

TEST_CASE("R54: a live socket is never taken over, a stale one is replaced") {
  TempDir dir;
  HubStation first(hub_options(endpoint_in(dir)));
  REQUIRE(first.open());
  HubStation second(hub_options(endpoint_in(dir)));
  const Status stolen = second.open();
  REQUIRE_FALSE(stolen);
  CHECK(stolen.error().code == ErrorCode::kAddressInUse);
  LineStation line(line_options(endpoint_in(dir), kCpu0));
  REQUIRE(line.open());
  CHECK(line.events().next()->kind == Seen::Kind::kWelcome);  // the first one is unharmed

  const std::string stale = dir.file("stale.sock");
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  stale.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(fd, 1) == 0);
  ::close(fd);  // as after kill -9: the file is there, nobody is behind it
  HubStation third(hub_options("ipc://" + stale));
  CHECK(third.open());

  const std::string file = dir.file("a-file");
  UniqueFd(::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  HubStation fourth(hub_options("ipc://" + file));
  CHECK(fourth.open().error().code == ErrorCode::kAddressInUse);
}

TEST_CASE("only our user may connect, and only in a directory that is safe") {
  TempDir dir;
  HubStation hub(hub_options(endpoint_in(dir)));
  REQUIRE(hub.open());
  struct stat info = {};
  REQUIRE(::stat(dir.file("hub.sock").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);

  TempDir open_to_all;
  REQUIRE(::chmod(open_to_all.path().c_str(), 0777) == 0);
  HubStation unsafe(hub_options(endpoint_in(open_to_all)));
  CHECK(unsafe.open().error().code == ErrorCode::kPermission);
  HubStation nowhere(hub_options("ipc://" + dir.file("missing/hub.sock")));
  CHECK(nowhere.open().error().code == ErrorCode::kEnvironment);
}

}  // namespace
}  // namespace callboard::actors
