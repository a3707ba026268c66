// Weights for the processes of a host: constants packed into one sealed segment by who has them, or named where they
// lie in a file; found again by content hash.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "messages/base/fd.h"
#include "messages/protocol.h"

namespace callboard::kernels {

struct ConstantSource {
  ContentHash hash;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  bool verify = false;  ///< somebody could change `data` meanwhile: what was copied is compared with the hash
};

struct ConstantPack {
  UniqueFd fd;  ///< read-only: a segment sealed against writing too, or `file`
  std::uint64_t bytes = 0;
  std::vector<ConstantSpan> spans;   ///< each offset a multiple of 64
  std::optional<ConstantFile> file;  ///< nothing for a segment
};

/// Copies the sources into a new segment, 64-byte aligned. kOutOfMemory if the machine has not that much left;
/// kCorrupted for a source to verify that is not what its hash says.
Result<ConstantPack> pack_constants(std::span<const ConstantSource> sources);

}  // namespace callboard::kernels
