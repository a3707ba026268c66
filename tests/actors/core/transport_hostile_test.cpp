// What strangers may put on a Hub's socket: nothing of it reaches an actor, nothing of it does harm.
#include <zmq.h>

#include <random>
#include <string>
#include <vector>

#include "actors/core/transport.h"
#include "messages/codec.h"
#include "messages/frame.h"
#include "tests/actors/core/station.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::hub_options;
using test::HubStation;
using test::line_options;
using test::LineStation;
using test::numbered;
using test::Seen;
using test::TempDir;

const ActorId kEve{"eve", 1};

/// A bare DEALER that says what it likes.
class Stranger {
 public:
  Stranger(const std::string& endpoint, const std::string& routing_id, int type = ZMQ_DEALER)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int linger = 1'000;
    const int wait_ms = 20'000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    if (!routing_id.empty()) zmq_setsockopt(socket_, ZMQ_ROUTING_ID, routing_id.data(), routing_id.size());
    REQUIRE(zmq_connect(socket_, endpoint.c_str()) == 0);
  }
  ~Stranger() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void say(const std::string& bytes, bool more = false) {
    REQUIRE(zmq_send(socket_, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0) >= 0);
  }
  /// The next answer; a Message of another kind or silence fails the test.
  template <class M>
  M hear() {
    std::string bytes(1u << 20, '\0');
    const int size = zmq_recv(socket_, bytes.data(), bytes.size(), 0);
    REQUIRE(size >= 0);
    bytes.resize(static_cast<std::size_t>(size));
    auto packet = decode_packet(bytes);
    REQUIRE(packet);
    REQUIRE(std::holds_alternative<M>(packet->message));
    return std::get<M>(std::move(packet->message));
  }

 private:
  void* context_;
  void* socket_;
};

std::string packet(const Message& message, const ActorId& sender, std::uint64_t seq = 0, Epoch epoch = 0) {
  auto bytes = encode_packet(Envelope{epoch, sender, seq, 0}, message);
  REQUIRE(bytes);
  return std::move(*bytes);
}

Hello hello_of(const ActorId& who) {
  Hello hello;
  hello.who = who;
  hello.cluster = "test";
  hello.pid = 7;
  return hello;
}

/// A hub with an honest peer, which still works when a test is over.
struct Scene {
  Scene() : hub(hub_options("ipc://" + dir.file("hub.sock"))), honest(line_options(endpoint(), {"cpu0", 1})) {
    hub.on_message = [](Hub& h, const ActorId& from, const Message& message) { (void)h.send(from, message); };
    REQUIRE(hub.open());
    REQUIRE(honest.open());
    REQUIRE(honest.events().next());
    REQUIRE(hub.events().next());
  }
  std::string endpoint() const { return "ipc://" + dir.file("hub.sock"); }

  /// After this everything that strangers sent before has been looked at, too: they ask and are answered behind it.
  void check_alive() {
    REQUIRE(honest.send(numbered(++rounds)));
    const auto echo = honest.events().next();
    REQUIRE(echo);
    CHECK(std::get<Operation>(*echo->message).request == rounds);
    REQUIRE(hub.events().next()->kind == Seen::Kind::kMessage);
  }

  TempDir dir;
  HubStation hub;
  LineStation honest;
  std::uint64_t rounds = 0;
};

/// Who asks for a welcome at the end knows that all before it has been handled.
void finish_with_hello(Scene& scene, Stranger& stranger, const ActorId& who) {
  stranger.say(packet(hello_of(who), who));
  stranger.hear<Welcome>();
  const auto seen = scene.hub.events().next();
  REQUIRE(seen);
  CHECK(seen->kind == Seen::Kind::kHello);  // and nothing came before it
}

TEST_CASE("junk is counted and does no harm") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  std::mt19937_64 random(11);
  constexpr int kJunk = 2'000;
  for (int i = 0; i < kJunk; ++i) {
    std::string bytes(random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    stranger.say(bytes);
  }
  finish_with_hello(scene, stranger, kEve);
  CHECK(scene.hub.counters().refused_frames == kJunk);
  scene.check_alive();
}

TEST_CASE("a good frame with any one byte changed is refused or means the same") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  const std::string good = packet(numbered(1), kEve, 1);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    stranger.say(bad);
    stranger.say(good.substr(0, i));
  }
  finish_with_hello(scene, stranger, kEve);
  scene.check_alive();
}

TEST_CASE("messages of many parts, of no bytes and from sockets of another kind are refused") {
  Scene scene;
  {
    Stranger stranger(scene.endpoint(), kEve.to_string());
    for (int i = 0; i < 20; ++i) stranger.say("part", true);
    stranger.say(packet(hello_of(kEve), kEve));
    stranger.say("");
    finish_with_hello(scene, stranger, kEve);
    CHECK(scene.hub.counters().refused_frames == 2);
  }
  {
    Stranger request(scene.endpoint(), "req#1", ZMQ_REQ);  // puts an empty part in front
    request.say(packet(hello_of({"req", 1}), {"req", 1}));
    Stranger witness(scene.endpoint(), "witness#1");
    finish_with_hello(scene, witness, {"witness", 1});
  }
  scene.check_alive();
}

TEST_CASE("another version's hello is refused with both versions named") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  const std::string ours = packet(hello_of(kEve), kEve);
  const auto view = read_frame(ours);
  REQUIRE(view);
  const auto theirs = make_frame(view->type, view->body, kProtocolVersion + 41);
  REQUIRE(theirs);
  stranger.say(*theirs);
  const Error why = stranger.hear<Refused>().error;
  CHECK(why.code == ErrorCode::kVersionMismatch);
  CHECK(why.message.find(std::to_string(kProtocolVersion)) != std::string::npos);
  CHECK(why.message.find(std::to_string(kProtocolVersion + 41)) != std::string::npos);

  // What is no hello gets no answer.
  const auto other = make_frame(20, view->body, kProtocolVersion + 41);
  REQUIRE(other);
  stranger.say(*other);
  finish_with_hello(scene, stranger, kEve);
  scene.check_alive();
}

TEST_CASE("a hub of another version is named as the reason that a line is lost") {
  TempDir dir;
  const std::string endpoint = "ipc://" + dir.file("hub.sock");
  void* context = zmq_ctx_new();
  void* router = zmq_socket(context, ZMQ_ROUTER);
  REQUIRE(zmq_bind(router, endpoint.c_str()) == 0);
  {
    LineStation line(line_options(endpoint, {"cpu0", 1}));
    REQUIRE(line.open());
    std::string bytes(4'096, '\0');
    REQUIRE(zmq_recv(router, bytes.data(), bytes.size(), 0) > 0);
    REQUIRE(zmq_recv(router, bytes.data(), bytes.size(), 0) > 0);
    const auto frame = make_frame(2, "whatever it says", kProtocolVersion + 1);
    REQUIRE(frame);
    REQUIRE(zmq_send(router, "cpu0#1", 6, ZMQ_SNDMORE) >= 0);
    REQUIRE(zmq_send(router, frame->data(), frame->size(), 0) >= 0);
    const auto lost = line.events().next();
    REQUIRE(lost);
    CHECK(lost->error->code == ErrorCode::kVersionMismatch);
  }
  zmq_close(router);
  zmq_ctx_term(context);
}

TEST_CASE("a sender that is not who its address says is refused") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  const ActorId victim{"cpu0", 1};
  stranger.say(packet(numbered(1), victim, 1, 5));     // in the name of a connected peer
  stranger.say(packet(hello_of(victim), victim));      // a hello likewise
  stranger.say(packet(Bye{"so long"}, victim));        // the victim is not thrown out
  stranger.say(packet(hello_of({"other", 1}), kEve));  // hello and envelope differ
  CHECK(stranger.hear<Refused>().error.code == ErrorCode::kMalformed);
  finish_with_hello(scene, stranger, kEve);
  stranger.say(packet(numbered(1), victim, 1, 5));  // and once it is welcome itself
  stranger.say(packet(numbered(2), kEve, 1, 5));
  const auto seen = scene.hub.events().next();
  REQUIRE(seen);
  CHECK(seen->who == kEve);
  CHECK(std::get<Operation>(*seen->message).request == 2);
  CHECK(scene.hub.counters().refused_frames == 5);
  scene.check_alive();
}

TEST_CASE("a process under the identity of a connected peer gets nothing") {
  Scene scene;
  {
    Stranger stranger(scene.endpoint(), "cpu0#1");
    stranger.say(packet(hello_of({"cpu0", 1}), {"cpu0", 1}));
    scene.check_alive();
  }
  scene.check_alive();
}

TEST_CASE("who has said no hello is told so, and its messages go nowhere") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  stranger.say(packet(numbered(1), kEve, 1));
  CHECK(stranger.hear<Refused>().error.code == ErrorCode::kUnknownPeer);
  CHECK(scene.hub.counters().refused_frames == 1);
  finish_with_hello(scene, stranger, kEve);
  scene.check_alive();
}

TEST_CASE("messages of another epoch are refused") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  finish_with_hello(scene, stranger, kEve);
  stranger.say(packet(numbered(1), kEve, 1, 4));
  stranger.say(packet(numbered(2), kEve, 1, 5));
  const auto seen = scene.hub.events().next();
  REQUIRE(seen);
  CHECK(std::get<Operation>(*seen->message).request == 2);
  CHECK(scene.hub.counters().refused_frames == 1);
}

TEST_CASE("a message above the limit costs its sender the connection, not the hub") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  finish_with_hello(scene, stranger, kEve);
  stranger.say(std::string(limits::kMessageBytesMax + 4'096, 'x'));
  scene.check_alive();
  Stranger next(scene.endpoint(), "next#1");
  finish_with_hello(scene, next, {"next", 1});
  scene.check_alive();
}

TEST_CASE("a hello that is asked again is welcomed again without a second admission") {
  Scene scene;
  Stranger stranger(scene.endpoint(), kEve.to_string());
  finish_with_hello(scene, stranger, kEve);
  stranger.say(packet(hello_of(kEve), kEve));
  stranger.hear<Welcome>();
  scene.check_alive();  // which sees no second hello
}

TEST_CASE("many strangers with names of their own leave the hub bounded and working") {
  Scene scene;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    const ActorId who{"client-" + std::to_string(i), 1};
    Stranger stranger(scene.endpoint(), who.to_string());
    finish_with_hello(scene, stranger, who);
    stranger.say(packet(Bye{"done"}, who));
    const auto lost = scene.hub.events().next();
    REQUIRE(lost);
    CHECK(lost->kind == Seen::Kind::kLost);
  }
  scene.check_alive();
}

}  // namespace
}  // namespace callboard::actors
