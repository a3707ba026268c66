// What the fuzz targets share: a property that fails ends the process, so that libFuzzer keeps the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "messages/base/check.h"

#define FUZZ_TARGET extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)

namespace callboard::fuzz {

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// What decoded once has an encoding that is stable from then on.
template <class Value, class Encode, class Decode>
void check_stable(const Value& value, Encode encode, Decode decode) {
  const auto bytes = encode(value);
  const auto again = decode(bytes);
  CALLBOARD_CHECK(again.has_value(), "what we encode can be decoded");
  CALLBOARD_CHECK(encode(*again) == bytes, "encoding is deterministic");
}

}  // namespace callboard::fuzz
