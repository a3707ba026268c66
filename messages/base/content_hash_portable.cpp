// ContentHash::of() and ContentHasher without a library, for machines that have none. One of the two is linked.
#include <memory>
#include <string_view>

#include "messages/base/ids.h"
#include "messages/base/sha256.h"

namespace callboard {

ContentHash ContentHash::of(const void* data, std::size_t size) {
  ContentHasher hasher;
  hasher.update(data, size);
  return hasher.finish();
}

struct ContentHasher::State {
  Sha256 sha256;
};

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) {}
ContentHasher::~ContentHasher() = default;

void ContentHasher::update(const void* data, std::size_t size) { state_->sha256.update(data, size); }

ContentHash ContentHasher::finish() {
  const std::array<char, ContentHash::kBytes> digest = state_->sha256.finish();
  ContentHash hash;
  hash.bytes_ = digest;
  hash.set_ = true;
  return hash;
}

}  // namespace callboard
