// The outer form of every message: a fixed header that any version can read, then the msgpack body.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "messages/base/error.h"

namespace callboard {

/// Version of envelope and messages together. Two processes talk only if theirs are equal.
constexpr std::uint16_t kProtocolVersion = 5;

/// 24 bytes, little endian: magic "CBRD", u16 version, u16 message type, u32 body length, u32 zero, u64 XXH3-64 of the
/// body seeded with the first 16 bytes' XXH3-64. The layout is the same in every version.
constexpr std::size_t kFrameHeaderBytes = 24;

struct FrameView {
  std::uint16_t version = 0;
  std::uint16_t type = 0;
  std::string_view body;  ///< points into the frame
};

/// Header and body as one frame. kTooLarge above limits::kMessageBytesMax, which counts both.
Result<std::string> make_frame(std::uint16_t type, std::string_view body, std::uint16_t version = kProtocolVersion);

/// The same without a copy: `frame` begins with kFrameHeaderBytes of room, which this fills, and goes on with the body.
Status seal_frame(std::string& frame, std::uint16_t type, std::uint16_t version = kProtocolVersion);

/// Of a frame that begins with these bytes, header included; 0 where more of the header is needed. kCorrupted (magic),
/// kTooLarge. For streams, which do not know where a frame ends.
Result<std::size_t> frame_bytes(std::string_view beginning);

/// kTruncated, kCorrupted (magic, checksum, trailing bytes), kTooLarge. A version other than ours is *not* an error
/// here, so that the handshake can name both; the caller checks `version` before it decodes the body.
Result<FrameView> read_frame(std::string_view frame);

}  // namespace callboard
