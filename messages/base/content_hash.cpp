// ContentHash::of() and ContentHasher by OpenSSL, which uses the processor's own instructions. Where it is absent
// (tools/gpu_check) the portable ones stand in their place.
#include <memory>

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

struct ContentHasher::State {
  EVP_MD_CTX* context = ::EVP_MD_CTX_new();

  State() {
    CALLBOARD_CHECK(context != nullptr, "the heap has room for a hash");
    start();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { ::EVP_MD_CTX_free(context); }

  void start() const {
    CALLBOARD_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1,
                    "OpenSSL has SHA-256 in its default provider");
  }
};

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) {}
ContentHasher::~ContentHasher() = default;

void ContentHasher::update(const void* data, std::size_t size) {
  CALLBOARD_CHECK(EVP_DigestUpdate(state_->context, data, size) == 1, "SHA-256 takes what fits memory");
}

ContentHash ContentHasher::finish() {
  ContentHash hash;
  unsigned int length = 0;
  const int done = EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(hash.bytes_.data()), &length);
  CALLBOARD_CHECK(done == 1 && length == ContentHash::kBytes, "SHA-256 gives 32 bytes");
  hash.set_ = true;
  state_->start();
  return hash;
}

}  // namespace callboard
