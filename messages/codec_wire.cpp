#include "messages/codec_wire.h"

#include <cstring>

#include <msgpack/pack.hpp>

#include "messages/limits.h"

namespace callboard::codec {
namespace {

using Packer = msgpack::packer<Writer>;

// Length of the well-formed character at `at` (no overlong forms, no surrogates, at most U+10FFFF), or 0.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return follows(1) ? 2 : 0;
  if (first < 0xF0) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return byte(1) >= low && byte(1) <= high && follows(2) ? 3 : 0;
  }
  if (first > 0xF4) return 0;
  const unsigned low = first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
  return byte(1) >= low && byte(1) <= high && follows(2) && follows(3) ? 4 : 0;
}

std::string_view kind_name(std::uint8_t byte) {
  if (byte <= 0x7f || byte >= 0xe0) return "an integer";
  if (byte <= 0x8f) return "a map";
  if (byte <= 0x9f) return "an array";
  if (byte <= 0xbf) return "text";
  switch (byte) {
    case 0xc0:
      return "nil";
    case 0xc2:
    case 0xc3:
      return "a boolean";
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return "bytes";
    case 0xca:
    case 0xcb:
      return "a floating-point number";
    case 0xd9:
    case 0xda:
    case 0xdb:
      return "text";
    case 0xdc:
    case 0xdd:
      return "an array";
    case 0xde:
    case 0xdf:
      return "a map";
    default:
      break;
  }
  if (byte >= 0xcc && byte <= 0xd3) return "an integer";
  return "a form that is not used here";
}

}  // namespace

bool is_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= sizeof(std::uint64_t)) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string repaired_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    repaired.append(length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(at, length));
    at += std::max<std::size_t>(length, 1);
  }
  return repaired;
}

// -- Writer --------------------------------------------------------------------------------------------------------

void Writer::nil() {
  Packer(*this).pack_nil();
}

void Writer::boolean(bool value) {
  Packer packer(*this);
  value ? packer.pack_true() : packer.pack_false();
}

void Writer::integer(std::int64_t value) {
  Packer(*this).pack_int64(value);
}

void Writer::natural(std::uint64_t value) {
  Packer(*this).pack_uint64(value);
}

// Not packer.pack_double(): msgpack-c may write a whole number as an integer, and 1.0 must stay a float.
void Writer::real(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  char form[1 + sizeof(bits)] = {'\xcb'};
  for (std::size_t i = 0; i < sizeof(bits); ++i) form[1 + i] = static_cast<char>(bits >> (56 - 8 * i));
  write(form, sizeof(form));
}

void Writer::text(std::string_view value) {
  if (!is_utf8(value)) return text(repaired_utf8(value));
  longest_text_ = std::max(longest_text_, value.size());
  Packer packer(*this);
  packer.pack_str(static_cast<std::uint32_t>(value.size()));
  packer.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
}

void Writer::text_cut(std::string_view value, std::size_t bytes_max) {
  if (!is_utf8(value)) return text_cut(repaired_utf8(value), bytes_max);
  if (value.size() <= bytes_max) return text(value);
  constexpr std::string_view kMark = "… (cut)";
  std::size_t end = bytes_max > kMark.size() ? bytes_max - kMark.size() : 0;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0u) == 0x80u) --end;
  text(std::string(value.substr(0, end)).append(kMark));
}

void Writer::bytes(std::string_view value) {
  Packer packer(*this);
  packer.pack_bin(static_cast<std::uint32_t>(value.size()));
  packer.pack_bin_body(value.data(), static_cast<std::uint32_t>(value.size()));
}

void Writer::array(std::size_t count) {
  elements_ += count;
  Packer(*this).pack_array(static_cast<std::uint32_t>(count));
}

void Writer::map(std::size_t count) {
  elements_ += 2 * count;
  Packer(*this).pack_map(static_cast<std::uint32_t>(count));
}

void Writer::grow(std::size_t size) { out_.resize(std::max(2 * out_.size(), at_ + size)); }

std::string Writer::take() {
  out_.resize(at_);
  return std::move(out_);
}

Status Writer::check_limits() const {
  if (elements_ > limits::kDecodeElementsMax) {
    return fail(ErrorCode::kTooLarge, "a message of " + std::to_string(elements_) + " elements is above the limit of " +
                                          std::to_string(limits::kDecodeElementsMax));
  }
  if (longest_text_ > limits::kStringBytesMax) {
    return fail(ErrorCode::kTooLarge, "a text of " + std::to_string(longest_text_) + " bytes is above the limit of " +
                                          std::to_string(limits::kStringBytesMax));
  }
  return {};
}

// -- Reader --------------------------------------------------------------------------------------------------------

bool Reader::refuse(ErrorCode code, std::string_view why) {
  if (error_) return false;
  std::string message = "cannot read ";
  message.append(what_).append(": ").append(why).append(", at byte ").append(std::to_string(at_));
  error_ = Error(code, std::move(message));
  return false;
}

bool Reader::refuse(Error error) {
  if (error_) return false;
  std::string message = "cannot read ";
  message.append(what_).append(": ").append(error.message);
  error.message = std::move(message);
  error_ = std::move(error);
  return false;
}

bool Reader::wrong_kind(std::string_view wanted, std::uint8_t found) {
  --at_;
  return refuse(ErrorCode::kMalformed,
                std::string(wanted).append(" is expected, ").append(kind_name(found)).append(" found"));
}

bool Reader::take(std::size_t count, const char*& data) {
  if (error_) return false;
  if (count > remaining()) return refuse(ErrorCode::kTruncated, "it ends too early");
  data = bytes_.data() + at_;
  at_ += count;
  return true;
}

bool Reader::head(std::uint8_t& byte) {
  const char* data = nullptr;
  if (!take(1, data)) return false;
  byte = static_cast<std::uint8_t>(*data);
  return true;
}

template <class T>
bool Reader::big_endian(T& value) {
  const char* data = nullptr;
  if (!take(sizeof(T), data)) return false;
  value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>((static_cast<std::uint64_t>(value) << 8) | static_cast<unsigned char>(data[i]));
  }
  return true;
}

bool Reader::length_of(std::size_t width, std::size_t& length) {
  if (width == 1) {
    std::uint8_t value = 0;
    if (!big_endian(value)) return false;
    length = value;
  } else if (width == 2) {
    std::uint16_t value = 0;
    if (!big_endian(value)) return false;
    length = value;
  } else {
    std::uint32_t value = 0;
    if (!big_endian(value)) return false;
    length = value;
  }
  return true;
}

bool Reader::at_nil() const { return !error_ && at_ < bytes_.size() && static_cast<std::uint8_t>(bytes_[at_]) == 0xc0; }

bool Reader::at_array() const {
  if (error_ || at_ >= bytes_.size()) return false;
  const auto byte = static_cast<std::uint8_t>(bytes_[at_]);
  return (byte >= 0x90 && byte <= 0x9f) || byte == 0xdc || byte == 0xdd;
}

bool Reader::nil() {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  return byte == 0xc0 || wrong_kind("nil", byte);
}

bool Reader::boolean(bool& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  if (byte != 0xc2 && byte != 0xc3) return wrong_kind("a boolean", byte);
  value = byte == 0xc3;
  return true;
}

bool Reader::natural(std::uint64_t& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  if (byte <= 0x7f) {
    value = byte;
    return true;
  }
  if (byte >= 0xcc && byte <= 0xcf) {
    if (byte == 0xcf) return big_endian(value);
    std::size_t narrow = 0;
    if (!length_of(std::size_t{1} << (byte - 0xcc), narrow)) return false;
    value = narrow;
    return true;
  }
  if (byte >= 0xe0 || (byte >= 0xd0 && byte <= 0xd3)) {
    --at_;
    std::int64_t number = 0;
    if (!integer(number)) return false;
    if (number < 0) return refuse(ErrorCode::kMalformed, "a number is negative that must not be");
    value = static_cast<std::uint64_t>(number);
    return true;
  }
  return wrong_kind("an integer", byte);
}

bool Reader::integer(std::int64_t& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  if (byte <= 0x7f || byte >= 0xe0) {
    value = static_cast<std::int8_t>(byte);
    return true;
  }
  if (byte >= 0xcc && byte <= 0xcf) {
    --at_;
    std::uint64_t number = 0;
    if (!natural(number)) return false;
    if (number > static_cast<std::uint64_t>(INT64_MAX)) {
      return refuse(ErrorCode::kMalformed, "an integer is beyond 63 bits and a sign");
    }
    value = static_cast<std::int64_t>(number);
    return true;
  }
  if (byte == 0xd3) {
    std::uint64_t number = 0;
    if (!big_endian(number)) return false;
    value = static_cast<std::int64_t>(number);
    return true;
  }
  if (byte < 0xd0 || byte > 0xd2) return wrong_kind("an integer", byte);
  std::size_t number = 0;
  const std::size_t width = std::size_t{1} << (byte - 0xd0);
  if (!length_of(width, number)) return false;
  if (width == 1) value = static_cast<std::int8_t>(number);
  if (width == 2) value = static_cast<std::int16_t>(number);
  if (width == 4) value = static_cast<std::int32_t>(number);
  return true;
}

bool Reader::real(double& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  if (byte != 0xcb) return wrong_kind("a floating-point number of 64 bits", byte);
  std::uint64_t bits = 0;
  if (!big_endian(bits)) return false;
  std::memcpy(&value, &bits, sizeof(value));
  return true;
}

bool Reader::blob(std::size_t length, std::string& value) {
  const char* data = nullptr;
  if (!take(length, data)) return false;
  value.assign(data, length);
  return true;
}

bool Reader::text(std::string& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  std::size_t length = byte & 0x1fu;
  if (byte >= 0xd9 && byte <= 0xdb) {
    if (!length_of(std::size_t{1} << (byte - 0xd9), length)) return false;
  } else if ((byte & 0xe0u) != 0xa0u) {
    return wrong_kind("text", byte);
  }
  if (length > limits::kStringBytesMax) return refuse(ErrorCode::kTooLarge, "a text is above the limit of 1 MiB");
  if (!blob(length, value)) return false;
  return is_utf8(value) || refuse(ErrorCode::kMalformed, "a text is not UTF-8");
}

bool Reader::bytes_in_place(std::string_view& value) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  if (byte < 0xc4 || byte > 0xc6) return wrong_kind("a piece of bytes", byte);
  std::size_t length = 0;
  const char* data = nullptr;
  if (!length_of(std::size_t{1} << (byte - 0xc4), length) || !take(length, data)) return false;
  value = {data, length};
  return true;
}

bool Reader::bytes(std::string& value) {
  std::string_view in_place;
  if (!bytes_in_place(in_place)) return false;
  value.assign(in_place);
  return true;
}

bool Reader::open(std::size_t count, std::size_t elements_each) {
  if (++depth_ > limits::kDecodeDepthMax) return refuse(ErrorCode::kTooDeep, "it is nested too deeply");
  // Each element has a byte at least: a count that the frame cannot hold is known to be false here.
  if (count > remaining() / elements_each) return refuse(ErrorCode::kTruncated, "it has fewer elements than it says");
  elements_ += count * elements_each;
  if (elements_ > limits::kDecodeElementsMax) return refuse(ErrorCode::kTooLarge, "it has too many elements");
  return true;
}

bool Reader::open_array(std::size_t& count) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  count = byte & 0x0fu;
  if (byte == 0xdc || byte == 0xdd) {
    if (!length_of(byte == 0xdc ? 2 : 4, count)) return false;
  } else if ((byte & 0xf0u) != 0x90u) {
    return wrong_kind("an array", byte);
  }
  return open(count, 1);
}

bool Reader::open_array_of(std::size_t count) {
  std::size_t found = 0;
  if (!open_array(found)) return false;
  if (found == count) return true;
  return refuse(ErrorCode::kMalformed,
                "an array has " + std::to_string(found) + " elements in place of " + std::to_string(count));
}

bool Reader::open_map(std::size_t& count) {
  std::uint8_t byte = 0;
  if (!head(byte)) return false;
  count = byte & 0x0fu;
  if (byte == 0xde || byte == 0xdf) {
    if (!length_of(byte == 0xde ? 2 : 4, count)) return false;
  } else if ((byte & 0xf0u) != 0x80u) {
    return wrong_kind("a map", byte);
  }
  return open(count, 2);
}

// Recursion is bounded by kDecodeDepthMax: open() counts.
bool Reader::skip() {
  if (error_) return false;
  if (at_ >= bytes_.size()) return refuse(ErrorCode::kTruncated, "it ends too early");
  const auto byte = static_cast<std::uint8_t>(bytes_[at_]);
  const bool is_map = (byte & 0xf0u) == 0x80u || byte == 0xde || byte == 0xdf;
  if (is_map || at_array()) {
    std::size_t count = 0;
    if (!(is_map ? open_map(count) : open_array(count))) return false;
    for (std::size_t i = 0; i < (is_map ? 2 * count : count); ++i) {
      if (!skip()) return false;
    }
    close();
    return true;
  }
  ++at_;
  std::size_t length = 0;
  const char* data = nullptr;
  if (byte <= 0x7f || byte >= 0xe0 || byte == 0xc0 || byte == 0xc2 || byte == 0xc3) return true;
  if (byte <= 0xbf) return take(byte & 0x1fu, data);
  if (byte >= 0xc4 && byte <= 0xc6) return length_of(std::size_t{1} << (byte - 0xc4), length) && take(length, data);
  if (byte >= 0xd9 && byte <= 0xdb) return length_of(std::size_t{1} << (byte - 0xd9), length) && take(length, data);
  if (byte == 0xca || byte == 0xcb) return take(byte == 0xca ? 4 : 8, data);
  if (byte >= 0xcc && byte <= 0xcf) return take(std::size_t{1} << (byte - 0xcc), data);
  if (byte >= 0xd0 && byte <= 0xd3) return take(std::size_t{1} << (byte - 0xd0), data);
  return wrong_kind("a value", byte);
}

bool Reader::finish() {
  if (error_) return false;
  return remaining() == 0 || refuse(ErrorCode::kMalformed, std::to_string(remaining()) + " bytes are left over");
}

}  // namespace callboard::codec
