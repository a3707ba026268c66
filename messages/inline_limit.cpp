#include "messages/inline_limit.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "messages/limits.h"

namespace callboard {

namespace {

std::size_t read_limit() noexcept {
  const char* const told = std::getenv("CALLBOARD_INLINE_BYTES");
  if (told == nullptr) return limits::kInlineBytesMax;
  const std::string_view text(told);
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // A copy may start up to a line off its block, like its original.
  return whole && bytes <= limits::kStringBytesMax - limits::kAlignment ? bytes : limits::kInlineBytesMax;
}

}  // namespace

std::size_t inline_bytes_max() noexcept {
  static const std::size_t limit = read_limit();
  return limit;
}

}  // namespace callboard
