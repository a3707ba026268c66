// Constants used where they lie in a file. Invariants (tests carry the numbers):
//   MF-1  Bytes that were read from the mapping before a check() that succeeds are those that the hashes name.
//   MF-2  A file that becomes shorter under its mapping ends no process: what was lost reads as zeros, and check()
//   fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "messages/base/fd.h"
#include "messages/protocol.h"

namespace callboard::kernels {

/// A file's private mapping (a write changes this process's view only), trusted only as long as the file is the one in
/// which the hashes were found right. Thread-safe.
///
/// MF-1 goes as far as the file system's word: a change shows in the times of the file, which Linux moves at every
/// write() and truncation, and for writes through another's shared mapping with the first one to a page.
class MappedFile {
 public:
  /// `file.identity` is the one that the hashes were checked under; the file may have another one by now. kFileChanged
  /// if it is too short to be mapped, kFileUnreadable, kResourceExhausted. The first call in a process makes SIGBUS
  /// harmless for these mappings (MF-2); other faults go where they went before.
  static Result<std::shared_ptr<MappedFile>> map(UniqueFd fd, ConstantFile file);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  std::byte* data() { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  /// A constant that is read here from now on. Costs nothing while the file is as it was, else the constant is read and
  /// hashed. kFileChanged names file and constant; kMalformed if it does not lie in the file.
  Status add(const ConstantSpan& span);
  /// Are the constants still what their hashes say? One fstat while the file is as it was. One that has been touched,
  /// renamed or written to is read and hashed again, once for each such state. kFileChanged, kFileUnreadable.
  Status check();

 private:
  MappedFile(UniqueFd fd, ConstantFile file);
  Status check_lost() const;
  Status check_locked(const ConstantSpan& span) const;

  const UniqueFd fd_;
  const ConstantFile file_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::size_t watch_ = 0;  ///< see lost_pages.h

  std::mutex mutex_;      // the two below
  FileIdentity trusted_;  ///< under which all of spans_ were right
  std::vector<ConstantSpan> spans_;
};

/// check() of each. What was computed with their constants counts only if this succeeds afterwards.
Status check_files(const std::vector<std::shared_ptr<MappedFile>>& files);

}  // namespace callboard::kernels
