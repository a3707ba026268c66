// Identities. An incarnation is the number of an actor's start, an epoch that of a coordinator's; neither is ever
// reused.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "messages/base/error.h"

namespace callboard {

using Epoch = std::uint64_t;        ///< 1 for the first coordinator of a cluster
using Incarnation = std::uint64_t;  ///< 1 for the first start of an actor
using RunId = std::uint64_t;        ///< a request inside the coordinator; unique within an epoch
using RequestSeq = std::uint64_t;   ///< number of a request within its client, from 1
using Attempt = std::uint32_t;      ///< from 1

/// A particular start of a particular actor. Written "cpu0#3"; also its ZeroMQ routing id and its name as lease holder.
struct ActorId {
  std::string name;
  Incarnation incarnation = 0;

  auto operator<=>(const ActorId&) const = default;
  std::string to_string() const { return name + "#" + std::to_string(incarnation); }
  /// The inverse of to_string(); kMalformed if it is not of that form.
  static Result<ActorId> parse(std::string_view text);
};

/// SHA-256 of some content, or none. A plain value without a heap block: every message about a run carries one.
class ContentHash {
 public:
  static constexpr std::size_t kBytes = 32;

  auto operator<=>(const ContentHash&) const = default;
  bool empty() const { return !set_; }
  /// The raw 32 bytes, or nothing for "none".
  std::string_view bytes() const { return {bytes_.data(), set_ ? kBytes : 0}; }
  std::string hex() const;
  /// kMalformed unless it is 32 bytes or nothing.
  static Result<ContentHash> from_bytes(std::string_view bytes);
  static Result<ContentHash> from_hex(std::string_view text);
  static ContentHash of(const void* data, std::size_t size);

 private:
  friend class ContentHasher;
  std::array<char, kBytes> bytes_{};
  bool set_ = false;
};

/// ContentHash::of() of content that comes in pieces. One thread at a time.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(const ContentHasher&) = delete;
  ContentHasher& operator=(const ContentHasher&) = delete;

  void update(const void* data, std::size_t size);
  /// Of all that was given since the start or the last finish().
  ContentHash finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace callboard

template <>
struct std::hash<callboard::ActorId> {
  std::size_t operator()(const callboard::ActorId& id) const noexcept {
    return std::hash<std::string>()(id.name) * 31 + std::hash<std::uint64_t>()(id.incarnation);
  }
};
template <>
struct std::hash<callboard::ContentHash> {
  std::size_t operator()(const callboard::ContentHash& content) const noexcept {
    return std::hash<std::string_view>()(content.bytes());
  }
};
