// Weights that processes of this host share: sealed segments and files, kept while any process uses one of their
// constants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

  /// Which of `hashes` are not here, or only in a file that has another identity by now; the others are used by `user`
  /// from now on.
  std::vector<ContentHash> find(User user, const std::vector<ContentHash>& hashes);
  /// Takes what `fd` holds, with those of `spans` that are not here yet; `user` uses all of them. kMalformed if it is
  /// neither a segment sealed against every change nor, with `file`, a regular file open for reading only, or not of
  /// this size, or a span does not lie inside; kFileChanged if the file has another identity than the one told;
  /// kOverloaded.
  Status add(User user, UniqueFd fd, std::uint64_t bytes, const std::vector<ConstantSpan>& spans,
             std::optional<ConstantFile> file = std::nullopt);

  struct Opened {
    std::shared_ptr<UniqueFd> fd;
    SegmentId segment = 0;
    std::uint64_t segment_bytes = 0;
    ConstantSpan span;
    std::optional<ConstantFile> file;
  };
  /// kConstantMissing. A file may have changed since: who maps it compares the identity.
  Result<Opened> open(User user, const ContentHash& hash);
  void release(User user, const std::vector<ContentHash>& hashes);
  void user_gone(User user);

  std::size_t constants() const { return constants_.size(); }
  /// Of segments alone: a file costs no memory that the system could not take back.
  std::uint64_t bytes() const;

 private:
  using FileKey = std::pair<dev_t, ino_t>;
  struct Pack {
    std::shared_ptr<UniqueFd> fd;
    std::uint64_t bytes = 0;
    FileKey key;
    std::optional<ConstantFile> file;  ///< nothing for a segment
    std::size_t constants = 0;
  };
  struct Constant {
    SegmentId pack = 0;
    ConstantSpan span;
    std::unordered_set<User> users;
  };
  static constexpr std::size_t kConstantsMax = 262'144;

  static bool is_stale(const Pack& pack);
  SegmentId pack_of(UniqueFd fd, const FileKey& key, std::uint64_t bytes, std::optional<ConstantFile> file);
  void use(User user, Constant& constant);
  void drop_use(User user, const ContentHash& hash);
  void leave(SegmentId id);

  std::map<SegmentId, Pack> packs_;
  std::map<FileKey, SegmentId> files_;  // the latest pack of each: a long list of spans comes in several messages
  std::unordered_map<ContentHash, Constant> constants_;
  std::unordered_map<User, std::unordered_set<ContentHash>> used_;
  SegmentId last_pack_ = 0;
};

}  // namespace callboard::actors
