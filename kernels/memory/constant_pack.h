// Weights in shared memory: constants packed into one sealed segment by who has them, found again by content hash.
#pragma once

#include <span>
#include <vector>

#include "messages/base/fd.h"
#include "messages/protocol.h"

namespace callboard::kernels {

struct ConstantSource {
  ContentHash hash;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
};

struct ConstantPack {
  UniqueFd fd;                      ///< sealed against writing too, once packed; read-only
  std::uint64_t bytes = 0;
  std::vector<ConstantSpan> spans;  ///< each offset a multiple of 64
};

/// Copies the sources into a new segment, 64-byte aligned. kOutOfMemory if the machine has not that much left.
Result<ConstantPack> pack_constants(std::span<const ConstantSource> sources);

}  // namespace callboard::kernels
