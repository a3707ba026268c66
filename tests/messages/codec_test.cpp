#include "messages/codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "messages/limits.h"
#include "tests/golden/golden_messages.h"
#include "tests/support/random_graph.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

constexpr std::size_t kMessages = std::variant_size_v<Message>;

/// Compared as bytes: a NaN is equal to nothing, its bytes are to themselves.
void check_round_trip(const Envelope& envelope, const Message& message) {
  const auto frame = encode_packet(envelope, message);
  REQUIRE(frame);
  const auto packet = decode_packet(*frame);
  if (!packet) FAIL(packet.error().to_string());
  CHECK(packet->envelope == envelope);
  CHECK(packet->message.index() == message.index());
  CHECK(encode_packet(packet->envelope, packet->message).value() == *frame);
}

ProgramGraph program_with(Argument argument) {
  ProgramGraph program;
  Node node;
  node.op = "demo::op";
  node.args = {std::move(argument)};
  program.nodes = {std::move(node)};
  return program;
}

Argument through_the_wire(Argument argument) {
  const auto program = decode_program(encode_program(program_with(std::move(argument))));
  REQUIRE(program);
  return program->nodes.at(0).args.at(0);
}

TEST_CASE("every golden packet comes back equal") {
  std::set<std::size_t> seen;
  for (const golden::GoldenPacket& packet : golden::golden_packets()) {
    INFO(packet.name);
    check_round_trip(packet.envelope, packet.message);
    seen.insert(packet.message.index());
  }
  CHECK(seen.size() == kMessages);
}

TEST_CASE("random messages of every kind come back equal") {
  test::Random random(20260711);
  for (std::size_t round = 0; round < 40; ++round) {
    for (std::size_t index = 0; index < kMessages; ++index) {
      INFO("round " << round << ", " << message_name(index));
      Envelope envelope{random.natural(), {random.text(), random.natural()}, random.natural(), random.natural()};
      check_round_trip(envelope, test::random_message(random, index));
    }
  }
}

TEST_CASE("every kind of argument comes back as the kind it was") {
  const Argument arguments[] = {ArgNone{},
                                ArgValue{7},
                                ArgValueList{{1, 2}},
                                ArgOptionalValueList{{1, kNoValue}},
                                true,
                                std::int64_t{1},
                                ArgSymbol{Expr::symbol(3)},
                                1.0,
                                std::complex<double>{1, -2},
                                std::string("1"),
                                ArgDType{DType::kBFloat16},
                                ArgLayout{"sparse_coo"},
                                ArgMemoryFormat{"channels_last"},
                                ArgDeviceSlot{0},
                                ArgLiteralDevice{"cuda:1"},
                                ArgIntList{{Expr::constant(INT64_MIN), Expr::value(2)}},
                                ArgFloatList{{0.5}},
                                ArgBoolList{{true, false, true}},
                                ArgStringList{{"a", ""}},
                                ArgScalar{true},
                                ArgScalar{std::int64_t{1}},
                                ArgScalar{1.0},
                                ArgScalar{std::complex<double>{0, 1}}};
  std::set<std::size_t> kinds;
  for (const Argument& argument : arguments) {
    const Argument back = through_the_wire(argument);
    INFO(argument.index());
    CHECK(back == argument);
    kinds.insert(argument.index());
  }
  CHECK(kinds.size() == std::variant_size_v<Argument>);
}

TEST_CASE("R41: infinities, NaN payloads and negative zero come back bit for bit") {
  for (const std::uint64_t bits : {std::uint64_t{0x7ff0000000000000}, std::uint64_t{0xfff0000000000000},
                                   std::uint64_t{0x7ff8dead0000beef}, std::uint64_t{0x8000000000000000}}) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    const Argument kinds[] = {value, ArgScalar{value}, ArgFloatList{{value}}, std::complex<double>{value, value}};
    const double back[] = {std::get<double>(through_the_wire(kinds[0])),
                           std::get<double>(std::get<ArgScalar>(through_the_wire(kinds[1])).value),
                           std::get<ArgFloatList>(through_the_wire(kinds[2])).items.at(0),
                           std::get<std::complex<double>>(through_the_wire(kinds[3])).imag()};
    for (const double one : back) CHECK(std::memcmp(&one, &bits, sizeof(one)) == 0);
  }
}

TEST_CASE("R62: what was decoded on one thread is whole on another, after the frame is gone") {
  const std::string long_name = "demo::" + std::string(300, 'n');
  std::optional<Packet> packet;
  std::thread decoder([&] {
    ProgramGraph program = program_with(std::string(500, 's'));
    program.nodes[0].op = long_name;
    std::string frame = encode_packet({}, LoadProgram{1, program, {}, 0}).value();
    packet = decode_packet(frame).value();
    std::fill(frame.begin(), frame.end(), '\xee');
  });
  decoder.join();
  const Node& node = std::get<LoadProgram>(packet->message).program.nodes.at(0);
  CHECK(node.op == long_name);
  CHECK(std::get<std::string>(node.args.at(0)) == std::string(500, 's'));
}

TEST_CASE("another protocol version is refused with both numbers") {
  const std::string body = encode_packet({}, Ack{}).value().substr(kFrameHeaderBytes);
  const auto refused = decode_packet(make_frame(5, body, kProtocolVersion + 1).value());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kVersionMismatch);
  const std::string both = "speaks protocol " + std::to_string(kProtocolVersion + 1) + ", this program speaks " +
                           std::to_string(kProtocolVersion);
  CHECK(refused.error().message.find(both) != std::string::npos);
}

TEST_CASE("a type without a message is unexpected") {
  for (const std::uint16_t type : {std::uint16_t{0}, static_cast<std::uint16_t>(kMessages + 1), std::uint16_t{65535}}) {
    const auto refused = decode_packet(make_frame(type, "\x92").value());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kUnexpectedMessage);
  }
}

TEST_CASE("a hello of another version can be read by its frozen part") {
  codec::Writer later;
  later.array(3);
  later.array(5);  // the envelope has a field more
  later.natural(4);
  codec::write(later, ActorId{"cpu0", 2});
  later.natural(0);
  later.real(0.5);
  later.map(0);
  later.array(6);  // the hello has other fields behind the frozen ones
  codec::write(later, Role::kDevice);
  codec::write(later, ActorId{"cpu0", 2});
  later.text("demo");
  later.text("0.9.0");
  later.array(1);
  later.text("new");
  later.nil();
  later.bytes("and something behind the hello");
  const std::string frame = make_frame(1, later.take(), 9).value();
  const Packet packet = decode_foreign_hello(frame).value();
  CHECK(packet.envelope.epoch == 4);
  CHECK(packet.envelope.sender == ActorId{"cpu0", 2});
  const Hello& hello = std::get<Hello>(packet.message);
  CHECK(hello.role == Role::kDevice);
  CHECK(hello.who == ActorId{"cpu0", 2});
  CHECK(hello.cluster == "demo");
  CHECK(hello.build == "0.9.0");
  CHECK(decode_packet(frame).error().code == ErrorCode::kVersionMismatch);
}

TEST_CASE("our own hello can be read as a foreign one, another message cannot") {
  const Hello hello{Role::kClient, {"c", 1}, "demo", "0.1.0", 4, "", "{}"};
  CHECK(std::get<Hello>(decode_foreign_hello(encode_packet({}, hello).value()).value().message).build == "0.1.0");
  CHECK(decode_foreign_hello(encode_packet({}, Ack{}).value()).error().code == ErrorCode::kUnexpectedMessage);
  CHECK(decode_foreign_hello(make_frame(1, "\x91\xc0", 9).value()).error().code == ErrorCode::kMalformed);
}

TEST_CASE("the same program has the same bytes and the same hash, another one has others") {
  const ProgramGraph program = golden::golden_program();
  Placement placement;
  CHECK(encode_program(program) == encode_program(decode_program(encode_program(program)).value()));
  CHECK(program_hash(program, placement) == program_hash(program, placement));
  ProgramGraph other = program;
  other.nodes[0].args[0] = ArgValue{1};
  CHECK(program_hash(other, placement) != program_hash(program, placement));
  placement.devices = {"cpu1"};
  CHECK(program_hash(program, placement) != program_hash(program, {}));
}

TEST_CASE("a graph of another schema is refused with both numbers, whatever else it holds") {
  ProgramGraph program = golden::golden_program();
  program.schema_version = 7;
  const auto refused = decode_program(encode_program(program));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kVersionMismatch);
  CHECK(refused.error().message.find("schema 7, this program reads 1") != std::string::npos);
  codec::Writer later;
  later.array(2);
  later.natural(2);
  later.text("all other fields are different");
  CHECK(decode_fragment(later.take()).error().code == ErrorCode::kVersionMismatch);
}

TEST_CASE("fragments and errors come back equal") {
  const Fragment fragment = golden::golden_fragment();
  CHECK(decode_fragment(encode_fragment(fragment)).value() == fragment);
  CHECK(decode_error(encode_error(golden::golden_error())).value() == golden::golden_error());
  Error all(static_cast<ErrorCode>(65535), "m");
  all.node = INT64_MIN;
  CHECK(decode_error(encode_error(all)).value() == all);
}

TEST_CASE("an error always travels: what is too much of it is cut") {
  Error error(ErrorCode::kInternal, std::string(2u << 20, 'm'));
  for (int i = 0; i < 100; ++i) error.causes.emplace_back(ErrorCode::kBadGraph, "cause " + std::to_string(i));
  Error* deepest = &error.causes[0];
  for (int i = 0; i < 10; ++i) deepest = &deepest->causes.emplace_back(ErrorCode::kCycle, "deeper");
  const auto back = decode_error(encode_error(error));
  REQUIRE(back);
  CHECK(back->message.size() <= limits::kErrorTextBytesMax);
  CHECK(back->causes.size() == limits::kErrorCausesMax);
  std::size_t depth = 0;
  for (const Error* at = &*back; !at->causes.empty(); at = &at->causes[0]) ++depth;
  CHECK(depth == limits::kErrorDepthMax);
  CHECK(decode_packet(encode_packet({}, Refused{error}).value()));
}

TEST_CASE("what a reader would refuse for its size is not sent") {
  CHECK(encode_packet({}, Bye{std::string(limits::kStringBytesMax, 'x')}));
  CHECK(encode_packet({}, Bye{std::string(limits::kStringBytesMax + 1, 'x')}).error().code == ErrorCode::kTooLarge);
  Submit submit;
  submit.symbols.assign(limits::kDecodeElementsMax, 0);
  CHECK(encode_packet({}, submit).error().code == ErrorCode::kTooLarge);
  submit.symbols.clear();
  submit.inputs = {
      TensorHandle{TensorMeta::contiguous(DType::kUInt8, {17 << 20}), InlineBytes{std::string(17u << 20, 'x')}}};
  CHECK(encode_packet({}, submit).error().code == ErrorCode::kTooLarge);
}

TEST_CASE("text that is not UTF-8 arrives as text that is") {
  ActorExited exited;
  exited.log_tail = "cut in a character: \xe2\x80";
  const auto packet = decode_packet(encode_packet({}, exited).value());
  REQUIRE(packet);
  CHECK(std::get<ActorExited>(packet->message).log_tail == "cut in a character: \xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("a random program passes the check and its fragments' bytes are stable") {
  test::Random random(7);
  const ProgramGraph program = test::random_program(random, 200);
  const std::string bytes = encode_program(program);
  CHECK(decode_program(bytes).value() == program);
}

}  // namespace
}  // namespace callboard
