// ContentHash::of() by OpenSSL, which uses the processor's own instructions. Where it is absent (tools/gpu_check) the
// portable one stands in its place.
#include <openssl/evp.h>

#include "messages/base/check.h"
#include "messages/base/ids.h"

namespace callboard {

ContentHash ContentHash::of(const void* data, std::size_t size) {
  ContentHash hash;
  unsigned int length = 0;
  const int done =
      EVP_Digest(data, size, reinterpret_cast<unsigned char*>(hash.bytes_.data()), &length, EVP_sha256(), nullptr);
  CALLBOARD_CHECK(done == 1 && length == kBytes, "OpenSSL has SHA-256 in its default provider");
  hash.set_ = true;
  return hash;
}

}  // namespace callboard
