#include "kernels/memory/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/memory/file_identity.h"
#include "kernels/memory/lost_pages.h"
#include "kernels/memory/memory_budget.h"

namespace callboard::kernels {

namespace {

Error file_changed(const std::string& path, const std::string& what) {
  return Error(ErrorCode::kFileChanged, path + " changed while its weights were in use: " + what,
               "load the program again. To replace a file of weights, write a new one and rename it over the old one");
}

}  // namespace

MappedFile::MappedFile(UniqueFd fd, ConstantFile file)
    : fd_(std::move(fd)), file_(std::move(file)), trusted_(file_.identity) {}

Result<std::shared_ptr<MappedFile>> MappedFile::map(UniqueFd fd, ConstantFile file) {
  CALLBOARD_ASSIGN(const FileIdentity now, file_identity(fd.get(), file.path));
  const std::uint64_t bytes = file.identity.bytes;
  if (now.bytes < bytes || bytes == 0) {
    return fail(
        file_changed(file.path, "it has " + std::to_string(now.bytes) + " bytes and had " + std::to_string(bytes)));
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kResourceExhausted,
                "cannot map " + format_bytes(bytes) + " of " + file.path + ": " + std::strerror(errno),
                "raise vm.max_map_count, or the limit of address space (ulimit -v)");
  }
  ::madvise(data, bytes, MADV_DONTDUMP);  // whoever reads a core file has the weights' file, too
  const std::shared_ptr<MappedFile> mapped(new MappedFile(std::move(fd), std::move(file)));
  mapped->data_ = static_cast<std::byte*>(data);
  mapped->bytes_ = bytes;
  CALLBOARD_ASSIGN(mapped->watch_, watch_lost_pages(data, bytes));
  return mapped;
}

MappedFile::~MappedFile() {
  unwatch_lost_pages(watch_);
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status MappedFile::check_lost() const {
  if (!has_lost_pages(watch_)) return {};
  return fail(
      file_changed(file_.path, "it became shorter, or could not be read, and the system took mapped pages away"));
}

Status MappedFile::check_locked(const ConstantSpan& span) const {
  CALLBOARD_ASSIGN(const ContentHash hash, hash_file_range(fd_.get(), span.offset, span.bytes, file_.path));
  if (hash == span.hash) return {};
  return fail(file_changed(file_.path, "the " + format_bytes(span.bytes) + " at byte " + std::to_string(span.offset) +
                                           " are not constant " + span.hash.hex().substr(0, 12) + " any more"));
}

Status MappedFile::add(const ConstantSpan& span) {
  if (span.offset > bytes_ || span.bytes > bytes_ - span.offset) {
    return fail(ErrorCode::kMalformed, "constant " + span.hash.hex().substr(0, 12) + " does not lie in the " +
                                           std::to_string(bytes_) + " bytes of " + file_.path);
  }
  CALLBOARD_TRY(check());
  std::lock_guard lock(mutex_);
  CALLBOARD_ASSIGN(const FileIdentity now, file_identity(fd_.get(), file_.path));
  // Under the first identity it was checked by whom that is from; under any other one nobody has read it yet.
  if (now != file_.identity || trusted_ != file_.identity) CALLBOARD_TRY(check_locked(span));
  spans_.push_back(span);
  return {};
}

Status MappedFile::check() {
  CALLBOARD_TRY(check_lost());
  std::lock_guard lock(mutex_);
  CALLBOARD_ASSIGN(const FileIdentity now, file_identity(fd_.get(), file_.path));
  if (now == trusted_) return {};
  if (now.bytes < bytes_) {
    return fail(
        file_changed(file_.path, "it has " + std::to_string(now.bytes) + " bytes and had " + std::to_string(bytes_)));
  }
  for (const ConstantSpan& span : spans_) CALLBOARD_TRY(check_locked(span));
  // Taken before the reading: a change during it makes another identity, and the next check reads again.
  if (is_settled(now)) trusted_ = now;
  return {};
}

Status check_files(const std::vector<std::shared_ptr<MappedFile>>& files) {
  for (const auto& file : files) CALLBOARD_TRY(file->check());
  return {};
}

}  // namespace callboard::kernels
