#include "actors/node/shared_constants.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <string>

namespace callboard::actors {

namespace {

Status check_spans(std::uint64_t bytes, const std::vector<ConstantSpan>& spans) {
  for (const ConstantSpan& span : spans) {
    if (span.hash.empty()) return fail(ErrorCode::kMalformed, "a constant comes without its hash");
    if (span.offset > bytes || span.bytes > bytes - span.offset) {
      return fail(ErrorCode::kMalformed, "constant " + span.hash.hex() + " at " + std::to_string(span.offset) +
                                             " with " + std::to_string(span.bytes) +
                                             " bytes does not lie in its segment of " + std::to_string(bytes));
    }
  }
  return {};
}

}  // namespace

void SharedConstants::use(User user, Constant& constant) {
  constant.users.insert(user);
  used_[user].insert(constant.span.hash);
}

std::vector<ContentHash> SharedConstants::find(User user, const std::vector<ContentHash>& hashes) {
  std::vector<ContentHash> missing;
  for (const ContentHash& hash : hashes) {
    const auto found = constants_.find(hash);
    if (found == constants_.end()) {
      missing.push_back(hash);
    } else {
      use(user, found->second);
    }
  }
  return missing;
}

Status SharedConstants::add(User user, UniqueFd fd, std::uint64_t bytes, const std::vector<ConstantSpan>& spans) {
  struct stat info {};
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kMalformed, "a segment of constants is not a memory file");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return fail(ErrorCode::kMalformed, "a segment of constants is not sealed against writing and resizing",
                "make it with pack_constants()");
  }
  if (info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    return fail(ErrorCode::kMalformed, "a segment of constants has " + std::to_string(info.st_size) +
                                           " bytes, not the " + std::to_string(bytes) + " told");
  }
  CALLBOARD_TRY(check_spans(bytes, spans));
  if (constants_.size() + spans.size() > kConstantsMax) {
    return fail(ErrorCode::kOverloaded, "more than " + std::to_string(kConstantsMax) + " constants on this host",
                "unload programs that are no longer used");
  }
  const FileKey file(info.st_dev, info.st_ino);
  const auto known = files_.find(file);
  const SegmentId id = known == files_.end() ? ++last_pack_ : known->second;
  Pack& pack = packs_[id];
  if (known == files_.end()) {
    pack = Pack{std::make_shared<UniqueFd>(std::move(fd)), bytes, file, 0};
    files_.emplace(file, id);
  }
  for (const ConstantSpan& span : spans) {
    const auto [entry, added] = constants_.try_emplace(span.hash);
    if (added) {
      entry->second.pack = id;
      entry->second.span = span;
      ++pack.constants;
    }
    use(user, entry->second);
  }
  if (pack.constants == 0) {  // all of it was here before
    files_.erase(file);
    packs_.erase(id);
  }
  return {};
}

Result<SharedConstants::Opened> SharedConstants::open(User user, const ContentHash& hash) {
  const auto found = constants_.find(hash);
  if (found == constants_.end()) {
    return fail(ErrorCode::kConstantMissing, "constant " + hash.hex() + " is not on this host",
                "the client that loads the program must send it first");
  }
  use(user, found->second);
  const Pack& pack = packs_.at(found->second.pack);
  return Opened{pack.fd, found->second.pack, pack.bytes, found->second.span};
}

void SharedConstants::drop_use(User user, const ContentHash& hash) {
  const auto found = constants_.find(hash);
  if (found == constants_.end()) return;
  found->second.users.erase(user);
  if (!found->second.users.empty()) return;
  const auto pack = packs_.find(found->second.pack);
  constants_.erase(found);
  if (--pack->second.constants > 0) return;
  files_.erase(pack->second.file);
  packs_.erase(pack);
}

void SharedConstants::release(User user, const std::vector<ContentHash>& hashes) {
  const auto used = used_.find(user);
  if (used == used_.end()) return;
  for (const ContentHash& hash : hashes) {
    if (used->second.erase(hash) > 0) drop_use(user, hash);
  }
  if (used->second.empty()) used_.erase(used);
}

void SharedConstants::user_gone(User user) {
  const auto used = used_.find(user);
  if (used == used_.end()) return;
  const std::unordered_set<ContentHash> hashes = std::move(used->second);
  used_.erase(used);
  for (const ContentHash& hash : hashes) drop_use(user, hash);
}

std::uint64_t SharedConstants::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, pack] : packs_) bytes += pack.bytes;
  return bytes;
}

}  // namespace callboard::actors
