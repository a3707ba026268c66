#include "actors/client/constant_provision.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "actors/client/mapped_origin.h"
#include "kernels/memory/constant_pack.h"
#include "kernels/memory/file_identity.h"
#include "messages/limits.h"

namespace callboard::actors {
namespace {

/// Smaller ones are not worth a look at what they map.
constexpr std::uint64_t kOriginBytesMin = 64u << 10;
constexpr int kSettleStepMs = 5;
constexpr int kSettleSteps = 5;

/// A constant that the host lacks.
struct Wanted {
  const ConstantBytes* given = nullptr;
  std::string name;
};
/// One that could be mapped where it lies.
struct InFile {
  Wanted wanted;
  std::uint64_t offset = 0;
};
using ByFile = std::map<std::shared_ptr<const WeightsFile>, std::vector<InFile>>;

Result<std::vector<Wanted>> find_given(const ProgramGraph& graph, const std::vector<ContentHash>& missing,
                                       std::span<const ConstantBytes> given) {
  std::map<ContentHash, const ConstantBytes*> by_hash;
  for (const auto& constant : given) by_hash[constant.hash] = &constant;
  std::vector<Wanted> wanted;
  std::vector<Error> gaps;
  for (const auto& hash : missing) {
    const auto constant = std::ranges::find(graph.constants, hash, &Constant::storage);
    const auto found = by_hash.find(hash);
    const std::string name = constant == graph.constants.end() ? hash.hex() : constant->name;
    if (found == by_hash.end()) {
      gaps.emplace_back(ErrorCode::kConstantMissing,
                        "the bytes of constant '" + name + "' are neither given nor on the host");
    } else if (constant != graph.constants.end() && found->second->bytes != constant->storage_bytes) {
      gaps.emplace_back(ErrorCode::kConstantMissing,
                        "constant '" + name + "' was given with " + std::to_string(found->second->bytes) +
                            " bytes, the program says " + std::to_string(constant->storage_bytes));
    } else {
      wanted.push_back({found->second, name});
    }
  }
  if (gaps.empty()) return wanted;
  Error error(ErrorCode::kConstantMissing,
              std::to_string(gaps.size()) + " constants of program '" + graph.name +
                  "' are missing, the first is: " + gaps.front().message,
              "give load() the bytes of every constant");
  gaps.resize(std::min(gaps.size(), limits::kErrorCausesMax));
  error.causes = std::move(gaps);
  return fail(std::move(error));
}

/// Takes those that could be mapped where they lie out of `wanted`.
ByFile take_in_files(std::vector<Wanted>& wanted) {
  ByFile by_file;
  std::map<std::shared_ptr<const WeightsFile>, bool> usable;
  MappedOrigins origins;
  std::erase_if(wanted, [&](const Wanted& each) {
    std::shared_ptr<const WeightsFile> file = each.given->file;
    std::uint64_t offset = each.given->offset;
    if (!file && each.given->bytes >= kOriginBytesMin) {
      if (auto origin = origins.find(each.given->data, each.given->bytes)) {
        file = std::move(origin->file);
        offset = origin->offset;
      }
    }
    if (!file || each.given->bytes == 0 || offset % limits::kAlignment != 0) return false;
    const auto [known, added] = usable.try_emplace(file, false);
    if (added) known->second = kernels::tells_of_changes(file->fd.get());
    if (!known->second) return false;
    by_file[file].push_back({each, offset});
    return true;
  });
  return by_file;
}

/// The identity that the bytes read from now on belong to. Right after a write it waits until the next one would show.
Result<FileIdentity> settled_state(const WeightsFile& file) {
  for (int step = 0;; ++step) {
    CALLBOARD_ASSIGN(const FileIdentity identity, kernels::file_identity(file.fd.get(), file.path));
    if (kernels::is_settled(identity)) return identity;
    if (step == kSettleSteps) {
      return fail(ErrorCode::kFileChanged, file.path + " is being written to",
                  "load the program again once nobody writes to the file");
    }
    ::poll(nullptr, 0, kSettleStepMs);  // for nothing but time to pass
  }
}

/// Compares with the hashes, and gives the node actor the file with those that are right. The others are left in
/// `rest`.
Status add_file(MemoryLane& lane, const WeightsFile& file, const std::vector<InFile>& constants,
                std::vector<Wanted>& rest) {
  CALLBOARD_ASSIGN(const FileIdentity identity, settled_state(file));
  kernels::ConstantPack pack;
  pack.bytes = identity.bytes;
  pack.file = ConstantFile{file.path, identity};
  for (const InFile& constant : constants) {
    const ConstantBytes& given = *constant.wanted.given;
    CALLBOARD_ASSIGN(const ContentHash hash,
                     kernels::hash_file_range(file.fd.get(), constant.offset, given.bytes, file.path));
    if (hash == given.hash) {
      pack.spans.push_back({hash, constant.offset, given.bytes});
    } else if (given.file) {
      return fail(wrong_bytes(file.path, constant.wanted.name));
    } else {
      rest.push_back(constant.wanted);
    }
  }
  if (pack.spans.empty()) return {};
  pack.fd.reset(::fcntl(file.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!pack.fd) {
    return fail(ErrorCode::kResourceExhausted,
                "cannot duplicate the descriptor of " + file.path + ": " + std::strerror(errno),
                "raise RLIMIT_NOFILE (ulimit -n)");
  }
  return lane.add_constants(std::move(pack));
}

Status add_files(MemoryLane& lane, const ByFile& by_file, std::vector<Wanted>& rest) {
  for (const auto& [file, constants] : by_file) {
    const std::size_t before = rest.size();
    Status added = add_file(lane, *file, constants, rest);
    if (added) continue;
    const bool asked_for =
        std::ranges::any_of(constants, [](const InFile& each) { return each.wanted.given->file != nullptr; });
    if (asked_for) return added;
    // Nobody said that this memory was a file's: it is copied, as all other memory.
    rest.resize(before);
    for (const InFile& each : constants) rest.push_back(each.wanted);
  }
  return {};
}

Status add_copies(MemoryLane& lane, const std::vector<Wanted>& rest) {
  if (rest.empty()) return {};
  std::vector<kernels::ConstantSource> sources;
  for (const Wanted& each : rest) {
    sources.push_back({each.given->hash, each.given->data, each.given->bytes, each.given->file != nullptr});
  }
  auto pack = kernels::pack_constants(sources);
  if (pack) return lane.add_constants(std::move(*pack));
  Error error = std::move(pack).error();
  const auto from_file = std::ranges::find_if(rest, [](const Wanted& each) { return each.given->file != nullptr; });
  if (error.code == ErrorCode::kCorrupted && from_file != rest.end()) {
    error.message = from_file->given->file->path + ": " + error.message;
    error.hint = "the file is damaged: copy or save it again";
  }
  return fail(std::move(error));
}

}  // namespace

Error wrong_bytes(const std::string& path, const std::string& constant) {
  return Error(ErrorCode::kCorrupted, path + ": the bytes of constant '" + constant + "' do not match their checksum",
               "the file is damaged: copy or save it again");
}

Status provide_constants(MemoryLane& lane, const ProgramGraph& graph, const std::vector<ContentHash>& hashes,
                         std::span<const ConstantBytes> given) {
  if (hashes.empty()) return {};
  CALLBOARD_ASSIGN(const std::vector<ContentHash> missing, lane.find_constants(hashes));
  CALLBOARD_ASSIGN(std::vector<Wanted> wanted, find_given(graph, missing, given));
  const ByFile by_file = take_in_files(wanted);
  CALLBOARD_TRY(add_files(lane, by_file, wanted));
  return add_copies(lane, wanted);
}

}  // namespace callboard::actors
