#include "messages/base/plain_text.h"

#include <algorithm>

namespace callboard {

namespace {

bool continues_a_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u; }

/// Bytes of the well-formed UTF-8 character that `text` begins with; 0: there is none.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xC2 && first <= 0xDF ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues_a_character(text[i])) return 0;
  }
  if (length < 3) return length;
  // Overlong forms, halves of surrogate pairs, and what is beyond U+10FFFF.
  const unsigned char second = at(1);
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

bool is_final(char byte) { return byte >= 0x40 && byte <= 0x7E; }

/// Bytes of the sequence behind ESC (or behind the one-character form of "ESC [", where `csi` is already true).
std::size_t sequence_bytes(std::string_view text, bool csi) {
  std::size_t i = 0;
  if (!csi) {
    if (text.empty()) return 0;
    const char kind = text[i++];
    if (kind == ']' || kind == 'P' || kind == '^' || kind == '_' || kind == 'X') {  // a text of the terminal's own
      constexpr std::size_t kTextMax = 4096;  // one without an end must not swallow all that follows
      const std::size_t end = text.substr(0, kTextMax).find_first_of("\x07\x1b\n", i);
      if (end == std::string_view::npos || text[end] == '\n') return i;
      return text[end] == '\x07' ? end + 1 : std::min(end + 2, text.size());  // ESC and a backslash
    }
    if (kind != '[') {
      while (i < text.size() && text[i - 1] >= 0x20 && text[i - 1] <= 0x2F) ++i;  // as in "ESC ( B"
      return kind >= 0x20 && kind <= 0x7E ? i : 0;
    }
  }
  while (i < text.size() && text[i] >= 0x20 && text[i] <= 0x3F) ++i;
  return i < text.size() && is_final(text[i]) ? i + 1 : i;
}

std::string cleaned(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += '?';
      text.remove_prefix(1);
    } else if (first == 0x1B) {
      text.remove_prefix(1);
      text.remove_prefix(sequence_bytes(text, false));
    } else if (length == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0) {  // C1 control characters
      const bool csi = static_cast<unsigned char>(text[1]) == 0x9B;
      text.remove_prefix(2);
      if (csi) text.remove_prefix(sequence_bytes(text, true));
    } else {
      const bool control = length == 1 && (first < 0x20 || first == 0x7F) && first != '\n' && first != '\t';
      if (!control) out.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace

std::string plain_text(std::string_view text, std::size_t bytes_max) {
  std::string clean = cleaned(text);
  if (clean.size() <= bytes_max) return clean;
  // Whole characters on both sides; the line in between comes on top of `bytes_max`' share.
  constexpr std::size_t kNoteBytes = 64;
  const std::size_t room = bytes_max > kNoteBytes ? bytes_max - kNoteBytes : 0;
  std::size_t head = room / 3;
  while (head > 0 && continues_a_character(clean[head])) --head;
  std::size_t tail = clean.size() - (room - room / 3);
  while (tail < clean.size() && continues_a_character(clean[tail])) ++tail;
  const std::string note = "… (" + std::to_string(tail - head) + " bytes left out) …";
  const bool lines = clean.find('\n') != std::string::npos;
  const std::string between = lines ? "\n" + note + "\n" : " " + note + " ";
  return clean.substr(0, head) + between + clean.substr(tail);
}

}  // namespace callboard
