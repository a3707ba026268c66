#include "messages/base/ids.h"

#include <charconv>

namespace callboard {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_actor_name(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '#') return false;
  }
  return true;
}

}  // namespace

Result<ActorId> ActorId::parse(std::string_view text) {
  const auto malformed = [text] {
    return fail(ErrorCode::kMalformed, "'" + std::string(text.substr(0, 80)) + "' is not an actor's identity",
                "an identity is name#incarnation, for example cpu0#1");
  };
  const std::size_t mark = text.rfind('#');
  if (mark == std::string_view::npos) return malformed();
  const std::string_view name = text.substr(0, mark);
  const std::string_view number = text.substr(mark + 1);
  if (!is_actor_name(name) || number.empty() || (number.size() > 1 && number[0] == '0')) return malformed();
  ActorId id{std::string(name), 0};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), id.incarnation);
  if (error != std::errc() || end != number.data() + number.size()) return malformed();
  return id;
}

std::string ContentHash::hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes().size() * 2);
  for (const char c : bytes()) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<ContentHash> ContentHash::from_bytes(std::string_view bytes) {
  ContentHash hash;
  if (bytes.empty()) return hash;
  if (bytes.size() != kBytes) {
    return fail(ErrorCode::kMalformed, "a content hash has " + std::to_string(bytes.size()) + " bytes, not 32");
  }
  bytes.copy(hash.bytes_.data(), kBytes);
  hash.set_ = true;
  return hash;
}

Result<ContentHash> ContentHash::from_hex(std::string_view text) {
  const auto malformed = [text] {
    return fail(ErrorCode::kMalformed, "'" + std::string(text.substr(0, 80)) + "' is not a content hash",
                "a content hash has 64 hexadecimal digits");
  };
  if (text.size() != kBytes * 2) return malformed();
  ContentHash hash;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = hex_digit(text[i]);
    const int low = hex_digit(text[i + 1]);
    if (high < 0 || low < 0) return malformed();
    hash.bytes_[i / 2] = static_cast<char>(high * 16 + low);
  }
  hash.set_ = true;
  return hash;
}

}  // namespace callboard
