// Files whose bytes are used where they lie: which one it is, whether it is still the same, what its bytes hash to.
#pragma once

#include <cstdint>
#include <string>

#include "messages/base/error.h"
#include "messages/protocol.h"

namespace callboard::kernels {

/// Of an open file, now. kFileUnreadable if it is no regular file, or the system does not tell; `path` is for messages.
Result<FileIdentity> file_identity(int fd, const std::string& path);

/// Whether every change of the file shows in its identity at once. So it is for the file systems of this host's own
/// disks and memory; what is mounted from elsewhere (NFS, SMB, FUSE, 9p) may tell of another host's change late or
/// never.
bool tells_of_changes(int fd);

/// Whether a change from now on must show. Where times move in steps of the system's clock tick (Linux before 6.13: up
/// to 10 ms), a write right after another one may leave no trace; so bytes that are read of a file which changed less
/// than 20 ms ago may be others before anybody can tell.
bool is_settled(const FileIdentity& identity);

/// SHA-256 of a range, read and not mapped, so that a file which becomes shorter meanwhile costs an error and no
/// signal. kFileChanged if it ends before the range does; kFileUnreadable.
Result<ContentHash> hash_file_range(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string& path);

}  // namespace callboard::kernels
