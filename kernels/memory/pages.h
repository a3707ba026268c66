// Page arithmetic and the descriptors that segments and constant packs share. Private to kernels/memory.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::kernels {

inline std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// `bytes` must be at least one page below the largest number.
inline std::uint64_t round_to_pages(std::uint64_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

/// An unsealed memfd of this size, mode 0400, closed on exec. kResourceExhausted.
Result<UniqueFd> create_memfd(const char* name, std::uint64_t bytes);
/// The same file through a descriptor that cannot be mapped shared and writable.
Result<UniqueFd> reopen_read_only(int fd);

}  // namespace callboard::kernels
