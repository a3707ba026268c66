// Weights that processes of this host share: sealed segments, kept while any process uses one of their constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <sys/types.h>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "messages/base/fd.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// One thread only (the broker's). A user is a connection's number.
class SharedConstants {
 public:
  using User = std::uint64_t;

  /// Which of `hashes` are not here; the others are used by `user` from now on.
  std::vector<ContentHash> find(User user, const std::vector<ContentHash>& hashes);
  /// Takes the segment with those of `spans` that are not here yet; `user` uses all of them. kMalformed if it is not
  /// sealed against every change, or not of this size, or a span does not lie inside; kOverloaded.
  Status add(User user, UniqueFd fd, std::uint64_t bytes, const std::vector<ConstantSpan>& spans);

  struct Opened {
    std::shared_ptr<UniqueFd> fd;
    SegmentId segment = 0;
    std::uint64_t segment_bytes = 0;
    ConstantSpan span;
  };
  /// kConstantMissing.
  Result<Opened> open(User user, const ContentHash& hash);
  void release(User user, const std::vector<ContentHash>& hashes);
  void user_gone(User user);

  std::size_t constants() const { return constants_.size(); }
  std::uint64_t bytes() const;

 private:
  using FileKey = std::pair<dev_t, ino_t>;
  struct Pack {
    std::shared_ptr<UniqueFd> fd;
    std::uint64_t bytes = 0;
    FileKey file;
    std::size_t constants = 0;
  };
  struct Constant {
    SegmentId pack = 0;
    ConstantSpan span;
    std::unordered_set<User> users;
  };
  static constexpr std::size_t kConstantsMax = 262'144;

  void use(User user, Constant& constant);
  void drop_use(User user, const ContentHash& hash);

  std::map<SegmentId, Pack> packs_;
  std::map<FileKey, SegmentId> files_;  // a long list of spans comes in several messages, each with the same file
  std::unordered_map<ContentHash, Constant> constants_;
  std::unordered_map<User, std::unordered_set<ContentHash>> used_;
  SegmentId last_pack_ = 0;
};

}  // namespace callboard::actors
