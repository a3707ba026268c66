#include "kernels/memory/constant_pack.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/memory/file_identity.h"
#include "kernels/memory/memory_budget.h"
#include "kernels/memory/pages.h"

namespace callboard::kernels {

namespace {

constexpr std::uint64_t kAlignment = 64;         // what ATen gives its own storages; vectorized kernels count on it
constexpr std::uint64_t kStepBytes = 64u << 20;  // a call that copies more cannot be interrupted for too long

Status write_all(int fd, std::uint64_t offset, const void* data, std::uint64_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd, next, std::min(bytes, kStepBytes), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return fail(ErrorCode::kResourceExhausted, std::string("cannot write constants into a memory segment: ") +
                                                     (written < 0 ? std::strerror(errno) : "nothing was written"));
    }
    next += written;
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::uint64_t>(written);
  }
  return {};
}

}  // namespace

Result<ConstantPack> pack_constants(std::span<const ConstantSource> sources) {
  ConstantPack pack;
  std::uint64_t end = 0;
  for (const ConstantSource& source : sources) {
    const std::uint64_t offset = (end + kAlignment - 1) / kAlignment * kAlignment;
    if (source.bytes > std::numeric_limits<std::uint64_t>::max() / 4 - offset) {
      return fail(ErrorCode::kOutOfMemory, "constants of " + format_bytes(source.bytes) + " do not fit any memory");
    }
    pack.spans.push_back({source.hash, offset, source.bytes});
    end = offset + source.bytes;
  }
  pack.bytes = round_to_pages(std::max<std::uint64_t>(end, 1));
  if (const MemoryLeft left = memory_left(kMachineReserve); left.bytes < pack.bytes) {
    return fail(ErrorCode::kOutOfMemory,
                "cannot put " + format_bytes(pack.bytes) +
                    " of constants into shared memory: " + format_bytes(left.bytes) + " left; limit: " + left.limit,
                "free memory on this host, or load the weights from a safetensors file");
  }
  CALLBOARD_ASSIGN(const UniqueFd writable, create_memfd("callboard:constants", pack.bytes));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    CALLBOARD_TRY(write_all(writable.get(), pack.spans[i].offset, sources[i].data, sources[i].bytes));
  }
  // Never mapped writable, so that WRITE can be sealed.
  if (::fcntl(writable.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(ErrorCode::kEnvironment, std::string("cannot seal a segment of constants: ") + std::strerror(errno));
  }
  CALLBOARD_ASSIGN(pack.fd, reopen_read_only(writable.get()));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].verify) continue;
    const ConstantSpan& span = pack.spans[i];
    CALLBOARD_ASSIGN(const ContentHash hash, hash_file_range(pack.fd.get(), span.offset, span.bytes, "the segment"));
    if (hash == span.hash) continue;
    return fail(ErrorCode::kCorrupted, "the bytes of constant " + span.hash.hex() + " do not match their checksum");
  }
  return pack;
}

}  // namespace callboard::kernels
