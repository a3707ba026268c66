#include "messages/base/ids.h"

#include "tests/support/test.h"

namespace callboard {
namespace {

TEST_CASE("an actor's identity is written name#incarnation and read back") {
  for (const ActorId& id : {ActorId{"cpu0", 1}, ActorId{"client-7f3a.x", 18446744073709551615u}, ActorId{"n", 0}}) {
    CHECK(ActorId::parse(id.to_string()).value() == id);
  }
  CHECK(ActorId{"cpu0", 3}.to_string() == "cpu0#3");
}

TEST_CASE("what is no identity is refused as malformed") {
  for (const char* text : {"", "cpu0", "#1", "cpu0#", "cpu0#-1", "cpu0#+1", "cpu0# 1", "cpu0#1x", "cpu0#01", "cpu 0#1",
                           "a#b#1", "cpu0#18446744073709551616", "cpu\n#1"}) {
    INFO(text);
    const auto parsed = ActorId::parse(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == ErrorCode::kMalformed);
  }
}

TEST_CASE("identities are ordered by name, then by incarnation") {
  CHECK(ActorId{"a", 2} < ActorId{"b", 1});
  CHECK(ActorId{"a", 1} < ActorId{"a", 2});
  CHECK(std::hash<ActorId>()(ActorId{"a", 1}) != std::hash<ActorId>()(ActorId{"a", 2}));
}

TEST_CASE("a content hash is SHA-256") {
  CHECK(ContentHash::of("abc", 3).hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(ContentHash::of(nullptr, 0).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(ContentHash::of("abc", 3).bytes().size() == 32);
}

TEST_CASE("a content hash is read back from its hexadecimal form, and nothing else is") {
  const ContentHash hash = ContentHash::of("abc", 3);
  CHECK(ContentHash::from_hex(hash.hex()).value() == hash);
  std::string upper = hash.hex();
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  CHECK(ContentHash::from_hex(upper).value() == hash);
  for (const std::string& text : {std::string(), hash.hex() + "0", hash.hex().substr(1), std::string(64, 'g')}) {
    const auto parsed = ContentHash::from_hex(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == ErrorCode::kMalformed);
  }
  CHECK(ContentHash().empty());
}

}  // namespace
}  // namespace callboard
