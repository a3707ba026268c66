// Internal to the codec and domain_messages.cpp: msgpack's basic forms, written and read.
//
// The reader pulls one element at a time straight from the frame: no object tree, no zone, no view that outlives the
// call. A type, a count or a length that does not fit is refused before anything is reserved for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"

namespace callboard::codec {

/// Appends to one string. Numbers take their shortest form, so equal values have equal bytes.
class Writer {
 public:
  /// `room` zero bytes are left in front (for a frame header).
  explicit Writer(std::size_t room = 0) : out_(room + kFirstBytes, '\0'), at_(room) {}

  void nil();
  void boolean(bool value);
  void integer(std::int64_t value);
  void natural(std::uint64_t value);
  void real(double value);  ///< always 64 bits, bit for bit
  /// What is not UTF-8 (the end of a log, say) is replaced by U+FFFD, so that whatever is read back is UTF-8.
  void text(std::string_view value);
  /// The same, cut at a character's border where it is longer than `bytes_max`.
  void text_cut(std::string_view value, std::size_t bytes_max);
  void bytes(std::string_view value);
  void array(std::size_t count);
  void map(std::size_t count);

  /// What a reader would refuse by its limits; kTooLarge.
  Status check_limits() const;
  std::string take();
  /// Of msgpack's packer, which hands over one to nine bytes at a time: so it is inline and counts for itself.
  void write(const char* data, std::size_t size) {
    if (out_.size() - at_ < size) grow(size);
    std::memcpy(out_.data() + at_, data, size);
    at_ += size;
  }

 private:
  static constexpr std::size_t kFirstBytes = 256;
  void grow(std::size_t size);

  std::string out_;  // as long as there is room for
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  std::size_t longest_text_ = 0;
};

/// The first fault sticks: after it every call gives false, and error() says what and at which byte.
class Reader {
 public:
  /// `what` is named in errors ("message 'submit'"); both must outlive the reader.
  Reader(std::string_view bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  bool at_nil() const;  ///< whether the next element is nil; does not take it
  bool nil();
  bool boolean(bool& value);
  bool integer(std::int64_t& value);
  bool natural(std::uint64_t& value);
  bool real(double& value);
  bool text(std::string& value);
  bool bytes(std::string& value);
  bool bytes_in_place(std::string_view& value);  ///< points into the frame
  /// Takes an array's header; close() when its elements have been read. The count is at most remaining().
  bool open_array(std::size_t& count);
  bool open_array_of(std::size_t count);
  bool open_map(std::size_t& count);
  void close() { --depth_; }
  bool at_array() const;
  /// Takes one element of any kind with all that is inside; for fields that a later version added.
  bool skip();
  /// Nothing may be left.
  bool finish();

  /// Room for `count` elements, but for no more bytes than the frame still has.
  template <class T>
  void reserve(std::vector<T>& items, std::size_t count) const {
    items.reserve(std::min(count, remaining() / sizeof(T) + 1));
  }

  std::size_t remaining() const { return bytes_.size() - at_; }
  /// Always false. Keeps the first fault.
  bool refuse(ErrorCode code, std::string_view why);
  bool refuse(Error error);
  bool failed() const { return error_.has_value(); }
  Error error() const { return *error_; }

 private:
  bool take(std::size_t count, const char*& data);
  bool head(std::uint8_t& byte);
  template <class T>
  bool big_endian(T& value);
  bool length_of(std::size_t width, std::size_t& length);
  bool open(std::size_t count, std::size_t elements_each);
  bool blob(std::size_t length, std::string& value);
  bool wrong_kind(std::string_view wanted, std::uint8_t found);

  std::string_view bytes_;
  std::string_view what_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  std::size_t elements_ = 0;
  std::optional<Error> error_;
};

bool is_utf8(std::string_view text);
std::string repaired_utf8(std::string_view text);

}  // namespace callboard::codec
