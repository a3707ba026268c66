#include "kernels/memory/file_identity.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace callboard::kernels {

namespace {

constexpr std::size_t kReadBytes = 1u << 20;
constexpr std::int64_t kSettledNs = 20'000'000;

// Not in every linux/magic.h.
constexpr std::uint64_t kZfsMagic = 0x2fc12fc1;
constexpr std::uint64_t kBcachefsMagic = 0xca451a4e;
constexpr std::uint64_t kXfsMagic = 0x58465342;
constexpr std::uint64_t kErofsMagic = 0xe0f5e1e2;
constexpr std::array kLocalFileSystems = {
    std::uint64_t{EXT4_SUPER_MAGIC},
    kXfsMagic,
    std::uint64_t{BTRFS_SUPER_MAGIC},
    std::uint64_t{F2FS_SUPER_MAGIC},
    std::uint64_t{TMPFS_MAGIC},
    std::uint64_t{OVERLAYFS_SUPER_MAGIC},
    std::uint64_t{SQUASHFS_MAGIC},
    kErofsMagic,
    kZfsMagic,
    kBcachefsMagic,
};

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

Result<FileIdentity> file_identity(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return fail(ErrorCode::kFileUnreadable, "cannot look at " + path + ": " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kFileUnreadable, path + " is not a regular file");
  return FileIdentity{info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size), nanoseconds(info.st_mtim),
                      nanoseconds(info.st_ctim)};
}

bool tells_of_changes(int fd) {
  struct statfs info = {};
  if (::fstatfs(fd, &info) != 0) return false;
  const auto type = static_cast<std::uint64_t>(static_cast<std::uint32_t>(info.f_type));
  return std::ranges::find(kLocalFileSystems, type) != kLocalFileSystems.end();
}

bool is_settled(const FileIdentity& identity) {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t age = nanoseconds(now) - std::max(identity.modified_ns, identity.changed_ns);
  return age < 0 || age >= kSettledNs;  // a time to come: whoever writes now sets another one
}

Result<ContentHash> hash_file_range(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string& path) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kReadBytes)));
  ContentHasher hasher;
  while (bytes > 0) {
    const ssize_t got =
        ::pread(fd, piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(bytes, piece.size())),
                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(ErrorCode::kFileUnreadable, "cannot read " + path + ": " + std::strerror(errno));
    if (got == 0) {
      return fail(ErrorCode::kFileChanged, path + " has become shorter: it ends before byte " + std::to_string(offset),
                  "write the file again, and load the program again");
    }
    hasher.update(piece.data(), static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
  return hasher.finish();
}

}  // namespace callboard::kernels
