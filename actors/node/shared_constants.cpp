#include "actors/node/shared_constants.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <string>

#include "kernels/memory/file_identity.h"

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

Status check_segment(int fd, const struct stat& info, std::uint64_t bytes) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return fail(ErrorCode::kMalformed, "a segment of constants is not sealed against writing and resizing",
                "make it with pack_constants()");
  }
  if (info.st_size >= 0 && static_cast<std::uint64_t>(info.st_size) == bytes) return {};
  return fail(ErrorCode::kMalformed, "a segment of constants has " + std::to_string(info.st_size) + " bytes, not the " +
                                         std::to_string(bytes) + " told");
}

Status check_file(int fd, const ConstantFile& file, std::uint64_t bytes) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDONLY || bytes != file.identity.bytes) {
    return fail(ErrorCode::kMalformed,
                file.path + " is not open for reading only, or has not the " + std::to_string(bytes) + " bytes told");
  }
  CALLBOARD_ASSIGN(const FileIdentity now, kernels::file_identity(fd, file.path));
  if (now == file.identity) return {};
  return fail(ErrorCode::kFileChanged, file.path + " changed while its weights were being loaded",
              "load the program again once nobody writes to the file");
}

}  // namespace

void SharedConstants::use(User user, Constant& constant) {
  constant.users.insert(user);
  used_[user].insert(constant.span.hash);
}

bool SharedConstants::is_stale(const Pack& pack) {
  if (!pack.file) return false;
  const auto now = kernels::file_identity(pack.fd->get(), pack.file->path);
  return !now || *now != pack.file->identity;
}

std::vector<ContentHash> SharedConstants::find(User user, const std::vector<ContentHash>& hashes) {
  std::vector<ContentHash> missing;
  std::map<SegmentId, bool> stale;  // looked at once
  for (const ContentHash& hash : hashes) {
    const auto found = constants_.find(hash);
    if (found != constants_.end() && !stale.contains(found->second.pack)) {
      stale.emplace(found->second.pack, is_stale(packs_.at(found->second.pack)));
    }
    if (found == constants_.end() || stale.at(found->second.pack)) {
      missing.push_back(hash);
    } else {
      use(user, found->second);
    }
  }
  return missing;
}

SegmentId SharedConstants::pack_of(UniqueFd fd, const FileKey& key, std::uint64_t bytes,
                                   std::optional<ConstantFile> file) {
  const auto known = files_.find(key);
  if (known != files_.end()) {
    const Pack& pack = packs_.at(known->second);
    if (!file || (pack.file && pack.file->identity == file->identity)) return known->second;
  }
  const SegmentId id = ++last_pack_;
  packs_.emplace(id, Pack{std::make_shared<UniqueFd>(std::move(fd)), bytes, key, std::move(file), 0});
  files_[key] = id;
  return id;
}

Status SharedConstants::add(User user, UniqueFd fd, std::uint64_t bytes, const std::vector<ConstantSpan>& spans,
                            std::optional<ConstantFile> file) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kMalformed, "constants come in something that is neither a memory segment nor a file");
  }
  CALLBOARD_TRY(file ? check_file(fd.get(), *file, bytes) : check_segment(fd.get(), info, bytes));
  CALLBOARD_TRY(check_spans(bytes, spans));
  if (constants_.size() + spans.size() > kConstantsMax) {
    return fail(ErrorCode::kOverloaded, "more than " + std::to_string(kConstantsMax) + " constants on this host",
                "unload programs that are no longer used");
  }
  const SegmentId id = pack_of(std::move(fd), FileKey(info.st_dev, info.st_ino), bytes, std::move(file));
  Pack& pack = packs_.at(id);
  ++pack.constants;  // for the time being, so that leave() below does not end it
  for (const ConstantSpan& span : spans) {
    const auto [entry, added] = constants_.try_emplace(span.hash);
    Constant& constant = entry->second;
    // What lies in a file that has changed is taken from here from now on.
    const bool moved = !added && constant.pack != id && is_stale(packs_.at(constant.pack));
    if (moved) leave(constant.pack);
    if (added || moved) {
      constant.pack = id;
      constant.span = span;
      ++pack.constants;
    }
    use(user, constant);
  }
  leave(id);  // the end of it where all of it was here before
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
  return Opened{pack.fd, found->second.pack, pack.bytes, found->second.span, pack.file};
}

void SharedConstants::drop_use(User user, const ContentHash& hash) {
  const auto found = constants_.find(hash);
  if (found == constants_.end()) return;
  found->second.users.erase(user);
  if (!found->second.users.empty()) return;
  const SegmentId pack = found->second.pack;
  constants_.erase(found);
  leave(pack);
}

/// One constant fewer in it.
void SharedConstants::leave(SegmentId id) {
  const auto pack = packs_.find(id);
  if (--pack->second.constants > 0) return;
  const auto latest = files_.find(pack->second.key);
  if (latest != files_.end() && latest->second == id) files_.erase(latest);
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
  for (const auto& [id, pack] : packs_) bytes += pack.file ? 0 : pack.bytes;
  return bytes;
}

}  // namespace callboard::actors
