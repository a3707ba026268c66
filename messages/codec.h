// The only msgpack code. Decoding is total and bounded: whatever the bytes, it returns a validated, owned value or an
// Error.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "messages/frame.h"
#include "messages/protocol.h"

namespace callboard {

struct Packet {
  Envelope envelope;
  Message message;
};

/// A whole frame, ready for the socket. kTooLarge if it exceeds limits::kMessageBytesMax.
Result<std::string> encode_packet(const Envelope& envelope, const Message& message);

/// Checks header, version (kVersionMismatch names both), checksum, depth, counts, types, trailing bytes, dtype names,
/// and every TensorHandle's extent. Does not call check_program / check_fragment.
Result<Packet> decode_packet(std::string_view frame);

/// The sender of a frame whose version is not ours, if its Hello can be read; for an answer that names both versions.
/// Only epoch, sender, role, who, cluster and build are filled in: these fields never move (see codec.cpp).
Result<Packet> decode_foreign_hello(std::string_view frame);

/// Programs as files and for hashing; deterministic bytes (same program, same bytes).
std::string encode_program(const ProgramGraph& program);
Result<ProgramGraph> decode_program(std::string_view bytes);
std::string encode_fragment(const Fragment& fragment);
Result<Fragment> decode_fragment(std::string_view bytes);
std::string encode_error(const Error& error);
Result<Error> decode_error(std::string_view bytes);

/// Identity of a program: SHA-256 of its encoding together with its placement's.
ContentHash program_hash(const ProgramGraph& program, const Placement& placement);

}  // namespace callboard
