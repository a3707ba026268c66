#include "messages/frame.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "messages/base/check.h"
#include "messages/limits.h"

namespace callboard {
namespace {

constexpr char kMagic[] = {'C', 'B', 'R', 'D'};
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kTypeAt = 6;
constexpr std::size_t kLengthAt = 8;
constexpr std::size_t kZeroAt = 12;
constexpr std::size_t kChecksumAt = 16;

template <class T>
void put(char* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<char>(value >> (8 * i));
}

template <class T>
T get(const char* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(static_cast<unsigned char>(at[i])) << (8 * i)));
  }
  return value;
}

// The header is part of it: a flipped bit in version, type or length must not go unnoticed either.
std::uint64_t checksum(const char* header, std::string_view body) {
  return XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(header, kChecksumAt));
}

Error too_large(std::size_t bytes) {
  return Error(ErrorCode::kTooLarge,
               "a message of " + std::to_string(bytes) + " bytes is above the limit of " +
                   std::to_string(limits::kMessageBytesMax),
               "larger data travel as tensors in an arena, not inside a message");
}

Error no_frame() {
  return Error(ErrorCode::kCorrupted, "a message does not begin with 'CBRD'", "the sender is no Callboard process");
}

}  // namespace

Status seal_frame(std::string& frame, std::uint16_t type, std::uint16_t version) {
  CALLBOARD_CHECK(frame.size() >= kFrameHeaderBytes, "the caller left room for the header");
  if (frame.size() > limits::kMessageBytesMax) return fail(too_large(frame.size()));
  const std::string_view body = std::string_view(frame).substr(kFrameHeaderBytes);
  char* header = frame.data();
  std::memcpy(header, kMagic, sizeof(kMagic));
  put<std::uint16_t>(header + kVersionAt, version);
  put<std::uint16_t>(header + kTypeAt, type);
  put<std::uint32_t>(header + kLengthAt, static_cast<std::uint32_t>(body.size()));
  put<std::uint32_t>(header + kZeroAt, 0);
  put<std::uint64_t>(header + kChecksumAt, checksum(header, body));
  return {};
}

Result<std::string> make_frame(std::uint16_t type, std::string_view body, std::uint16_t version) {
  if (body.size() > limits::kMessageBytesMax - kFrameHeaderBytes) return fail(too_large(body.size()));
  std::string frame;
  frame.reserve(kFrameHeaderBytes + body.size());
  frame.resize(kFrameHeaderBytes);
  frame.append(body);
  CALLBOARD_TRY(seal_frame(frame, type, version));
  return frame;
}

Result<std::size_t> frame_bytes(std::string_view beginning) {
  if (beginning.size() < kFrameHeaderBytes) return 0;
  if (std::memcmp(beginning.data(), kMagic, sizeof(kMagic)) != 0) return fail(no_frame());
  const std::size_t length = get<std::uint32_t>(beginning.data() + kLengthAt);
  if (length > limits::kMessageBytesMax - kFrameHeaderBytes) return fail(too_large(length));
  return kFrameHeaderBytes + length;
}

Result<FrameView> read_frame(std::string_view frame) {
  if (frame.size() > limits::kMessageBytesMax) return fail(too_large(frame.size()));
  if (frame.size() < kFrameHeaderBytes) {
    return fail(ErrorCode::kTruncated, "a message of " + std::to_string(frame.size()) +
                                           " bytes is shorter than the header of " + std::to_string(kFrameHeaderBytes));
  }
  const char* header = frame.data();
  if (std::memcmp(header, kMagic, sizeof(kMagic)) != 0) return fail(no_frame());
  const std::size_t length = get<std::uint32_t>(header + kLengthAt);
  if (length > limits::kMessageBytesMax - kFrameHeaderBytes) return fail(too_large(length));
  const std::string_view body = frame.substr(kFrameHeaderBytes);
  if (body.size() < length) {
    return fail(ErrorCode::kTruncated,
                "a message announces " + std::to_string(length) + " bytes and has " + std::to_string(body.size()));
  }
  if (body.size() > length) {
    return fail(ErrorCode::kCorrupted,
                "a message has " + std::to_string(body.size() - length) + " bytes behind its end");
  }
  if (get<std::uint32_t>(header + kZeroAt) != 0 || get<std::uint64_t>(header + kChecksumAt) != checksum(header, body)) {
    return fail(ErrorCode::kCorrupted, "a message's checksum does not fit its content");
  }
  return FrameView{get<std::uint16_t>(header + kVersionAt), get<std::uint16_t>(header + kTypeAt), body};
}

}  // namespace callboard
