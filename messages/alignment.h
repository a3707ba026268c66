// How copies of tensors lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "messages/limits.h"

namespace callboard {

/// How far a copy has to start off an aligned address to be aligned like its original, in bytes; 0 where that would not
/// be a whole number of items.
inline std::size_t offset_like(const void* original, std::size_t item_bytes) {
  const auto off = reinterpret_cast<std::uintptr_t>(original) % limits::kAlignment;
  return off % item_bytes == 0 ? off : 0;
}

}  // namespace callboard
