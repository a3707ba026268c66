#include "messages/codec_wire.h"

#include <cstring>

#include "messages/limits.h"
#include "tests/support/test.h"

namespace callboard::codec {
namespace {

template <class Write>
std::string written(Write write) {
  Writer writer;
  write(writer);
  return writer.take();
}

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TEST_CASE("integers of all widths are read back, signed and unsigned") {
  for (int shift = 0; shift < 64; ++shift) {
    for (const std::int64_t near : {-1, 0, 1}) {
      const std::uint64_t natural = (std::uint64_t{1} << shift) + static_cast<std::uint64_t>(near);
      const std::string bytes = written([&](Writer& w) { w.natural(natural); });
      std::uint64_t back = 0;
      Reader reader(bytes, "x");
      CHECK((reader.natural(back) && reader.finish() && back == natural));
      const auto integer = static_cast<std::int64_t>(natural);
      for (const std::int64_t wanted : {integer, integer == INT64_MIN ? integer : -integer}) {
        const std::string text = written([&](Writer& w) { w.integer(wanted); });
        std::int64_t got = 0;
        Reader again(text, "x");
        CHECK((again.integer(got) && again.finish() && got == wanted));
      }
    }
  }
}

TEST_CASE("an unsigned number beyond 63 bits is no signed one, a negative one no unsigned one") {
  std::int64_t integer = 0;
  std::uint64_t natural = 0;
  const std::string large = written([](Writer& w) { w.natural(UINT64_MAX); });
  Reader reader(large, "x");
  CHECK_FALSE(reader.integer(integer));
  CHECK(reader.error().code == ErrorCode::kMalformed);
  for (const std::int64_t below :
       {std::int64_t{-1}, std::int64_t{-33}, std::int64_t{-200}, std::int64_t{-70'000}, INT64_MIN}) {
    const std::string negative = written([&](Writer& w) { w.integer(below); });
    Reader second(negative, "x");
    CHECK_FALSE(second.natural(natural));
  }
}

TEST_CASE("R41: floating-point numbers keep every bit") {
  for (const std::uint64_t bits : {bits_of(-0.0), bits_of(1.0), bits_of(1e308), std::uint64_t{0x7ff0000000000000},
                                   std::uint64_t{0xfff0000000000000}, std::uint64_t{0x7ff8000000000001},
                                   std::uint64_t{0xfff123456789abcd}, std::uint64_t{1}}) {
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    const std::string bytes = written([&](Writer& w) { w.real(value); });
    REQUIRE(bytes.size() == 9);
    double back = 0;
    Reader reader(bytes, "x");
    REQUIRE(reader.real(back));
    CHECK(bits_of(back) == bits);
  }
}

TEST_CASE("1, 1.0, true and text stay distinct: none is read as another") {
  const std::string forms[] = {written([](Writer& w) { w.integer(1); }),    written([](Writer& w) { w.real(1.0); }),
                               written([](Writer& w) { w.boolean(true); }), written([](Writer& w) { w.text("1"); }),
                               written([](Writer& w) { w.bytes("1"); }),    written([](Writer& w) { w.nil(); })};
  for (std::size_t i = 0; i < std::size(forms); ++i) {
    std::int64_t integer = 0;
    double real = 0;
    bool boolean = false;
    std::string text;
    std::string bytes;
    CHECK(Reader(forms[i], "x").integer(integer) == (i == 0));
    CHECK(Reader(forms[i], "x").real(real) == (i == 1));
    CHECK(Reader(forms[i], "x").boolean(boolean) == (i == 2));
    CHECK(Reader(forms[i], "x").text(text) == (i == 3));
    CHECK(Reader(forms[i], "x").bytes(bytes) == (i == 4));
    CHECK(Reader(forms[i], "x").nil() == (i == 5));
  }
}

TEST_CASE("texts and bytes of all length classes are read back") {
  for (const std::size_t size : {0u, 31u, 32u, 255u, 256u, 65'535u, 65'536u}) {
    const std::string value(size, 'x');
    const std::string text = written([&](Writer& w) { w.text(value); });
    const std::string bytes = written([&](Writer& w) { w.bytes(value); });
    std::string back;
    CHECK((Reader(text, "x").text(back) && back == value));
    CHECK((Reader(bytes, "x").bytes(back) && back == value));
  }
}

TEST_CASE("a text may have 1 MiB, not one byte more") {
  std::string back;
  const std::string most = written([](Writer& w) { w.text(std::string(limits::kStringBytesMax, 'x')); });
  CHECK(Reader(most, "x").text(back));
  Writer writer;
  writer.text(std::string(limits::kStringBytesMax + 1, 'x'));
  CHECK(writer.check_limits().error().code == ErrorCode::kTooLarge);
  const std::string more = writer.take();
  Reader reader(more, "x");
  CHECK_FALSE(reader.text(back));
  CHECK(reader.error().code == ErrorCode::kTooLarge);
}

TEST_CASE("text that is read is UTF-8, and what is written is made so") {
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "abc\xc3", "\xe2\x80", "12345678\xff"}) {
    INFO(bad);
    CHECK_FALSE(is_utf8(bad));
    CHECK(is_utf8(repaired_utf8(bad)));
    std::string raw = "\xa0";
    raw[0] = static_cast<char>(0xa0 + std::strlen(bad));
    raw += bad;
    std::string back;
    Reader reader(raw, "x");
    CHECK_FALSE(reader.text(back));
    CHECK(reader.error().code == ErrorCode::kMalformed);
    const std::string repaired = written([&](Writer& w) { w.text(bad); });
    CHECK(Reader(repaired, "x").text(back));
  }
  for (const char* good : {"", "abc", "é…𝛼", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "12345678é12345678"})
    CHECK(is_utf8(good));
  CHECK(repaired_utf8("a\xff"
                      "b") ==
        "a\xEF\xBF\xBD"
        "b");
}

TEST_CASE("a text that is cut ends at a character's border and says so") {
  std::string back;
  const std::string cut = written([](Writer& w) { w.text_cut(std::string(30, 'a') + "ééééééééé", 43); });
  REQUIRE(Reader(cut, "x").text(back));
  CHECK(back.size() <= 43);
  CHECK(is_utf8(back));
  CHECK(back.find("… (cut)") != std::string::npos);
  const std::string whole = written([](Writer& w) { w.text_cut("short", 43); });
  REQUIRE(Reader(whole, "x").text(back));
  CHECK(back == "short");
}

TEST_CASE("R60: a count that the bytes cannot hold is refused before anything is reserved") {
  std::size_t count = 0;
  for (const std::string& bytes :
       {std::string("\xdd\xff\xff\xff\xff", 5), std::string("\xdc\xff\xff", 3), std::string("\x9f", 1)}) {
    Reader reader(bytes, "x");
    CHECK_FALSE(reader.open_array(count));
    CHECK(reader.error().code == ErrorCode::kTruncated);
  }
  for (const std::string& bytes :
       {std::string("\xdf\xff\xff\xff\xff", 5), std::string("\xde\xff\xff", 3), std::string("\x81\xc0", 2)}) {
    Reader reader(bytes, "x");
    CHECK_FALSE(reader.open_map(count));
    CHECK(reader.error().code == ErrorCode::kTruncated);
  }
  std::string bytes;
  Reader text("\xdb\xff\xff\xff\xff", "x");
  CHECK_FALSE(text.text(bytes));
  Reader binary("\xc6\xff\xff\xff\xff", "x");
  CHECK_FALSE(binary.bytes(bytes));
}

TEST_CASE("nesting ends at 32") {
  const std::string at_limit = std::string(limits::kDecodeDepthMax, '\x91') + "\xc0";
  CHECK(Reader(at_limit, "x").skip());
  const std::string deeper = std::string(limits::kDecodeDepthMax + 1, '\x91') + "\xc0";
  Reader reader(deeper, "x");
  CHECK_FALSE(reader.skip());
  CHECK(reader.error().code == ErrorCode::kTooDeep);
}

TEST_CASE("a million elements are too many, however they are nested") {
  std::string bytes = std::string("\xdd\x00\x00\x00\x20", 5);
  for (int i = 0; i < 32; ++i) bytes += std::string("\xdd\x00\x00\x80\x00", 5) + std::string(32'768, '\xc0');
  Reader reader(bytes, "x");
  CHECK_FALSE(reader.skip());
  CHECK(reader.error().code == ErrorCode::kTooLarge);
}

TEST_CASE("skip passes over every form and nothing more") {
  const std::string bytes = written([](Writer& w) {
    w.array(9);
    w.integer(-5);
    w.natural(UINT64_MAX);
    w.real(0.5);
    w.text("text");
    w.bytes(std::string(300, 'b'));
    w.boolean(false);
    w.nil();
    w.map(1);
    w.integer(INT64_MIN);
    w.text(std::string(70'000, 't'));
    w.array(0);
    w.integer(42);
  });
  Reader reader(bytes, "x");
  std::int64_t last = 0;
  CHECK(reader.skip());
  CHECK((reader.integer(last) && last == 42 && reader.finish()));
  for (std::size_t size = 0; size + 1 < bytes.size(); size += 7) CHECK_FALSE(Reader(bytes.substr(0, size), "x").skip());
  Reader extension("\xd4\x01\x02", "x");
  CHECK_FALSE(extension.skip());
}

TEST_CASE("the first fault is kept, with its place") {
  const std::string bytes = written([](Writer& w) {
    w.integer(1);
    w.text("x");
  });
  Reader reader(bytes, "message 'demo'");
  std::int64_t integer = 0;
  bool boolean = false;
  CHECK(reader.integer(integer));
  CHECK_FALSE(reader.boolean(boolean));
  CHECK_FALSE(reader.integer(integer));
  CHECK(reader.error().message == "cannot read message 'demo': a boolean is expected, text found, at byte 1");
}

}  // namespace
}  // namespace callboard::codec
