// ContentHash::of() without a library, for machines that have none. Only one of the two is linked.
#include "messages/base/ids.h"
#include "messages/base/sha256.h"

namespace callboard {

ContentHash ContentHash::of(const void* data, std::size_t size) {
  const std::array<char, kBytes> digest = sha256(data, size);
  auto hash = from_bytes(std::string_view(digest.data(), digest.size()));
  return std::move(*hash);
}

}  // namespace callboard
