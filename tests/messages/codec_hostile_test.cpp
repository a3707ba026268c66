// Bytes that no honest peer sends.
#include "messages/codec.h"
#include "messages/codec_values.h"
#include "messages/limits.h"
#include "tests/golden/golden_messages.h"
#include "tests/messages/allocation_watch.h"
#include "tests/support/random_graph.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

using golden::GoldenPacket;

struct GoldenFrame {
  std::string name;
  std::uint16_t type;
  std::string frame;
  std::string body() const { return frame.substr(kFrameHeaderBytes); }
};

std::vector<GoldenFrame> golden_frames() {
  std::vector<GoldenFrame> frames;
  for (const GoldenPacket& packet : golden::golden_packets()) {
    frames.push_back({packet.name, static_cast<std::uint16_t>(packet.message.index() + 1),
                      encode_packet(packet.envelope, packet.message).value()});
  }
  return frames;
}

/// Whatever the bytes: an error with a code of the 1xx or 3xx block, or a packet whose encoding is stable.
bool decodes_soundly(const std::string& frame) {
  const auto packet = decode_packet(frame);
  if (!packet) {
    const auto code = static_cast<int>(packet.error().code);
    CHECK(((code >= 100 && code < 200) || packet.error().code == ErrorCode::kUnsupported));
    CHECK(packet.error().message.size() < 10'000);
    return false;
  }
  const auto again = encode_packet(packet->envelope, packet->message);
  REQUIRE(again);
  const auto twice = decode_packet(*again);
  REQUIRE(twice);
  CHECK(encode_packet(twice->envelope, twice->message).value() == *again);
  return true;
}

TEST_CASE("a golden frame cut at any byte is refused") {
  for (const GoldenFrame& golden : golden_frames()) {
    INFO(golden.name);
    for (std::size_t size = 0; size < golden.frame.size(); ++size)
      CHECK_FALSE(decode_packet(golden.frame.substr(0, size)));
  }
}

TEST_CASE("a body cut at any byte is refused, though its checksum is right") {
  for (const GoldenFrame& golden : golden_frames()) {
    INFO(golden.name);
    const std::string body = golden.body();
    for (std::size_t size = 0; size < body.size(); ++size) {
      const auto packet = decode_packet(make_frame(golden.type, body.substr(0, size)).value());
      REQUIRE_FALSE(packet);
      CHECK(packet.error().code == ErrorCode::kTruncated);
    }
  }
}

TEST_CASE("bytes behind a body are refused, though its checksum is right") {
  for (const GoldenFrame& golden : golden_frames()) {
    const auto packet = decode_packet(make_frame(golden.type, golden.body() + '\xc0').value());
    REQUIRE_FALSE(packet);
    CHECK(packet.error().code == ErrorCode::kMalformed);
  }
}

TEST_CASE("a flipped bit anywhere in a golden frame never gives a packet") {
  for (const GoldenFrame& golden : golden_frames()) {
    INFO(golden.name);
    std::string damaged = golden.frame;
    for (std::size_t bit = 0; bit < damaged.size() * 8; ++bit) {
      const auto flip = [&] { damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8))); };
      flip();
      if (decode_packet(damaged)) FAIL_CHECK(golden.name << " survives a flip of bit " << bit);
      flip();
    }
  }
}

#if defined(CALLBOARD_SANITIZED)
constexpr std::size_t kStride = 5;  // twenty times slower
#else
constexpr std::size_t kStride = 1;
#endif

TEST_CASE("every byte of every golden body set to every class of form decodes soundly or not at all") {
  constexpr unsigned char kForms[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1,
                                      0xc2, 0xc4, 0xc6, 0xc7, 0xca, 0xcb, 0xcc, 0xcf, 0xd0, 0xd3,
                                      0xd4, 0xd9, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff};
  for (const GoldenFrame& golden : golden_frames()) {
    INFO(golden.name);
    const std::string body = golden.body();
    for (std::size_t at = 0; at < body.size(); at += kStride) {
      std::string changed = body;
      for (const unsigned char form : kForms) {
        changed[at] = static_cast<char>(form);
        decodes_soundly(make_frame(golden.type, changed).value());
      }
    }
  }
}

TEST_CASE("random mutations of random messages decode soundly or not at all") {
  test::Random random(99);
  for (int round = 0; round < 4000; ++round) {
    const std::size_t index = random.below(std::variant_size_v<Message>);
    std::string body = encode_packet({}, test::random_message(random, index)).value().substr(kFrameHeaderBytes);
    for (std::size_t i = 1 + random.below(4); i > 0; --i) {
      const std::size_t at = random.below(body.size());
      switch (random.below(4)) {
        case 0:
          body[at] = static_cast<char>(random.bits());
          break;
        case 1:
          body.insert(at, random.bytes(1 + random.below(4)));
          break;
        case 2:
          body.erase(at, 1 + random.below(4));
          break;
        default:
          body.insert(at, body.substr(random.below(body.size()), random.below(16)));
      }
      if (body.empty()) body = "\xc0";
    }
    INFO("round " << round);
    decodes_soundly(make_frame(static_cast<std::uint16_t>(1 + random.below(50)), body).value());
  }
}

TEST_CASE("R60: five bytes that declare four billion elements cost no memory, wherever they stand") {
  const std::string bombs[] = {std::string("\xdd\xff\xff\xff\xff", 5), std::string("\xdf\xff\xff\xff\xff", 5),
                               std::string("\xdb\xff\xff\xff\xff", 5), std::string("\xc6\xff\xff\xff\xff", 5), [] {
                                 std::string nested;
                                 for (int i = 0; i < 10; ++i) nested += std::string("\xdd\x00\x10\x00\x00", 5);
                                 return nested;
                               }()};
  std::vector<std::string> frames;
  for (const std::string& bomb : bombs) {
    for (std::uint16_t type = 1; type <= std::variant_size_v<Message>; ++type) {
      frames.push_back(make_frame(type, bomb).value());
      frames.push_back(make_frame(type, "\x92\x94\x01\x92\xa1n\x01\x01\x01" + bomb).value());
    }
    for (const GoldenFrame& golden : golden_frames()) {
      const std::string body = golden.body();
      for (std::size_t at = 0; at < body.size(); at += 3)
        frames.push_back(make_frame(golden.type, body.substr(0, at) + bomb).value());
    }
  }
  std::size_t longest = 0;
  for (const std::string& frame : frames) longest = std::max(longest, frame.size());
  test::watch_allocations();
  // A few are sound by chance: the bomb may fill the place of a hash to the byte.
  for (const std::string& frame : frames) (void)decode_packet(frame);
  CHECK(test::largest_allocation() < longest + 4096);
  test::watch_allocations();
  for (const std::string& bomb : bombs) {
    CHECK_FALSE(decode_program(bomb));
    CHECK_FALSE(decode_fragment(bomb));
    CHECK_FALSE(decode_error(bomb));
    CHECK_FALSE(decode_foreign_hello(make_frame(1, bomb, 9).value()));
  }
  CHECK(test::largest_allocation() < 4096);
}

TEST_CASE("R60: a long frame that is only headers cannot make the reader reserve more than it has") {
  // 1 MiB of padding behind a count that the frame could just hold, for the widest element there is.
  codec::Writer writer;
  writer.array(2);
  codec::write(writer, Envelope{});
  writer.array(5);
  writer.natural(1);
  writer.bytes("");
  std::string body = writer.take() + std::string("\xdd\x00\x0f\x00\x00", 5) + std::string(1u << 20, '\xc0');
  const std::string frame = make_frame(10, body).value();
  test::watch_allocations();
  CHECK_FALSE(decode_packet(frame));
  CHECK(test::largest_allocation() < 2 * frame.size());
}

TEST_CASE("nesting without end is refused and does not recurse") {
  for (const char one : {'\x91', '\x81'}) {
    const std::string deep(1'000'000, one);
    for (std::uint16_t type = 1; type <= std::variant_size_v<Message>; ++type) {
      CHECK_FALSE(decode_packet(make_frame(type, deep).value()));
    }
    CHECK_FALSE(decode_foreign_hello(make_frame(1, "\x92" + deep, 9).value()));
    CHECK_FALSE(decode_program(deep));
    CHECK_FALSE(decode_error(deep));
  }
  const std::string nested_error = [] {
    codec::Writer writer;
    for (int i = 0; i < 1000; ++i) {
      writer.array(8);
      writer.natural(900);
      for (int text = 0; text < 4; ++text) writer.text("");
      writer.integer(-1);
      writer.text("");
      writer.array(1);
    }
    return writer.take();
  }();
  CHECK(decode_error(nested_error).error().code == ErrorCode::kTooDeep);
}

TEST_CASE("an error may have 64 causes, not 65") {
  const auto with_causes = [](std::size_t count) {
    codec::Writer writer;
    const auto head = [&writer](std::size_t causes) {
      writer.array(8);
      writer.natural(900);
      for (int text = 0; text < 4; ++text) writer.text("");
      writer.integer(-1);
      writer.text("");
      writer.array(causes);
    };
    head(count);
    for (std::size_t i = 0; i < count; ++i) head(0);
    return writer.take();
  };
  CHECK(decode_error(with_causes(64)));
  CHECK(decode_error(with_causes(65)).error().code == ErrorCode::kTooLarge);
}

/// A submit with one input whose encoding is `input`.
Result<Packet> decode_submit(const std::string& input) {
  codec::Writer writer;
  writer.array(2);
  codec::write(writer, Envelope{});
  writer.array(5);
  writer.natural(1);
  writer.bytes("");
  writer.array(1);
  std::string body = writer.take() + input;
  codec::Writer rest;
  rest.array(0);
  rest.integer(0);
  return decode_packet(make_frame(10, body + rest.take()).value());
}

std::string encoded(const WireValue& value) {
  codec::Writer writer;
  codec::write(writer, value);
  return writer.take();
}

TEST_CASE("R47: a handle that reaches past its data does not get through the decoder") {
  const TensorMeta meta = TensorMeta::contiguous(DType::kFloat32, {4});
  CHECK(decode_submit(encoded(TensorHandle{meta, InlineBytes{std::string(16, 'x')}})));
  const TensorHandle hostile[] = {
      {meta, InlineBytes{std::string(15, 'x')}},
      {meta, ArenaBlock{{"cpu0", 1}, 1, 0, 15, 1}},
      {meta, ArenaBlock{{"cpu0", 1}, 1, UINT64_MAX, 16, 1}},
      {{DType::kFloat32, {4}, {std::int64_t{1} << 40}, 0}, ArenaBlock{{"cpu0", 1}, 1, 0, 1u << 20, 1}},
      {{DType::kFloat32, {4}, {1}, -1}, ArenaBlock{{"cpu0", 1}, 1, 0, 1u << 20, 1}},
      {{DType::kFloat32, {4}, {1, 1}, 0}, ArenaBlock{{"cpu0", 1}, 1, 0, 1u << 20, 1}},
      {{DType::kUndefined, {4}, {1}, 0}, ArenaBlock{{"cpu0", 1}, 1, 0, 1u << 20, 1}},
      {{DType::kFloat32, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1), 0},
       ArenaBlock{{"cpu0", 1}, 1, 0, 1u << 20, 1}},
      {{DType::kFloat32, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {1, 1}, 0},
       ArenaBlock{{"cpu0", 1}, 1, 0, UINT64_MAX, 1}}};
  for (const TensorHandle& handle : hostile) {
    const auto packet = decode_submit(encoded(handle));
    INFO(handle.meta.to_string().substr(0, 100));
    REQUIRE_FALSE(packet);
    CHECK(packet.error().code == ErrorCode::kMalformed);
  }
}

TEST_CASE("R45: a dtype name that is not known is refused with the name") {
  codec::Writer writer;
  writer.array(2);
  writer.natural(1);
  writer.array(3);
  writer.array(4);
  writer.text("quint4x2");
  const auto packet = decode_submit(writer.take());
  REQUIRE_FALSE(packet);
  CHECK(packet.error().code == ErrorCode::kUnsupported);
  CHECK(packet.error().message.find("'quint4x2'") != std::string::npos);
}

TEST_CASE("a wrong number of fields, a kind or an enumerator out of range are malformed") {
  const auto refused = [](const std::string& value) {
    const auto packet = decode_submit(value);
    REQUIRE_FALSE(packet);
    CHECK(packet.error().code == ErrorCode::kMalformed);
  };
  refused("\x92\x05\xc0");                                  // a kind of value that does not exist
  refused("\x93\x02\x01\xc0");                              // an element too many
  refused("\x92\x02\xc3");                                  // true where an integer belongs
  refused("\x92\x03\x01");                                  // 1 where 1.0 belongs
  refused("\x92\x04\x01");                                  // 1 where true belongs
  refused("\x92\x02\xcf\xff\xff\xff\xff\xff\xff\xff\xff");  // 2^64 - 1 is no int64
  CHECK(decode_submit("\x92\x02\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"));
  codec::Writer hello;
  hello.array(2);
  codec::write(hello, Envelope{});
  hello.array(7);
  hello.natural(4);  // a role that does not exist
  for (int i = 0; i < 6; ++i) hello.nil();
  CHECK(decode_packet(make_frame(1, hello.take()).value()).error().code == ErrorCode::kMalformed);
}

TEST_CASE("keys of a map must ascend, each once") {
  const auto annotations = [](const std::vector<std::string>& keys) {
    ProgramGraph program;
    std::string bytes = encode_program(program);
    bytes.pop_back();  // the empty map at the end
    codec::Writer writer;
    writer.map(keys.size());
    for (const std::string& key : keys) {
      writer.text(key);
      writer.text("");
    }
    return decode_program(bytes + writer.take());
  };
  CHECK(annotations({"a", "b"}));
  CHECK(annotations({"b", "a"}).error().code == ErrorCode::kMalformed);
  CHECK(annotations({"a", "a"}).error().code == ErrorCode::kMalformed);
}

TEST_CASE("a hash of any other length than 32 bytes is malformed") {
  for (const std::size_t size : {1u, 31u, 33u, 64u}) {
    codec::Writer writer;
    writer.array(2);
    codec::write(writer, Envelope{});
    writer.array(1);
    writer.bytes(std::string(size, 'h'));
    const auto type = static_cast<std::uint16_t>(Message(UnloadFragments{}).index() + 1);
    CHECK(decode_packet(make_frame(type, writer.take()).value()).error().code == ErrorCode::kMalformed);
  }
}

TEST_CASE("an expression on the wire may have 256 terms and no more, and must end with a whole term") {
  const auto program = [](const Expr& expr) {
    ProgramGraph made;
    made.values = {{"x", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{expr}}};
    return encode_program(made);
  };
  CHECK(decode_program(program(Expr{std::vector<Expr::Term>(256, {ExprOp::kSymbol, 1})})));
  CHECK_FALSE(decode_program(program(Expr{std::vector<Expr::Term>(257, {ExprOp::kSymbol, 1})})));
  std::string bytes = program(Expr{{{ExprOp::kSymbol, 5}}});
  const std::size_t at = bytes.find(std::string("\x92\x01\x05"));
  REQUIRE(at != std::string::npos);
  bytes.replace(at, 3, "\x91\x01");
  CHECK(decode_program(bytes).error().code == ErrorCode::kMalformed);
  bytes.replace(at, 2, "\x91\x03");
  CHECK(decode_program(bytes).error().code == ErrorCode::kMalformed);
}

}  // namespace
}  // namespace callboard
