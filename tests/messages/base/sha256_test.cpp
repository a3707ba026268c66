#include "messages/base/sha256.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "messages/base/ids.h"
#include "tests/support/test.h"

using namespace callboard;

namespace {

std::string hex_of(std::string_view text) {
  Sha256 hasher;
  hasher.update(text.data(), text.size());
  const auto digest = hasher.finish();
  return ContentHash::from_bytes(std::string_view(digest.data(), digest.size()))->hex();
}

}  // namespace

TEST_CASE("the portable SHA-256 gives the digests of the standard") {
  CHECK(hex_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("the portable SHA-256 and OpenSSL's agree on every length around a block's end") {
  std::string text;
  for (std::size_t size = 0; size < 200; ++size) {
    CHECK(hex_of(text) == ContentHash::of(text.data(), text.size()).hex());
    text += static_cast<char>(size * 37 + 11);
  }
}

TEST_CASE("the portable SHA-256 does not care how its content is cut") {
  std::string text;
  for (std::size_t i = 0; i < 1000; ++i) text += static_cast<char>(i * 31 + 7);
  for (const std::size_t piece : {1, 7, 63, 64, 65, 128, 200, 999}) {
    Sha256 hasher;
    for (std::size_t at = 0; at < text.size(); at += piece)
      hasher.update(text.data() + at, std::min(piece, text.size() - at));
    const auto digest = hasher.finish();
    INFO("pieces of " << piece);
    CHECK(ContentHash::from_bytes(std::string_view(digest.data(), digest.size()))->hex() == hex_of(text));
    hasher.update("abc", 3);  // and begins anew
    CHECK(hasher.finish()[0] == static_cast<char>(0xba));
  }
}
