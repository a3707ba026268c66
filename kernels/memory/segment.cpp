#include "kernels/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "kernels/memory/memory_budget.h"
#include "kernels/memory/pages.h"
#include "messages/base/log.h"

namespace callboard::kernels {

namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = 23;  // Linux 5.14
#else
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif

Error system_error(const char* what, std::uint64_t bytes, int error) {
  const std::string hint = error == EMFILE   ? "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)"
                           : error == ENOMEM ? "raise vm.max_map_count or the address space limit (ulimit -v)"
                           : error == EFBIG  ? "raise the file size limit (ulimit -f)"
                                             : "";
  return Error(ErrorCode::kResourceExhausted,
               std::string("cannot create a memory segment of ") + format_bytes(bytes) + ": " + what + ": " +
                   std::strerror(error),
               hint);
}

}  // namespace

Result<UniqueFd> create_memfd(const char* name, std::uint64_t bytes) {
  constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL, Linux 6.3; demanded where vm.memfd_noexec is 2
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  if (!fd && errno == EINVAL) fd.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail(system_error("memfd_create", bytes, errno));
  if (::fchmod(fd.get(), 0400) != 0) return fail(system_error("fchmod", bytes, errno));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return fail(system_error("ftruncate", bytes, errno));
  return fd;
}

Result<UniqueFd> reopen_read_only(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd reopened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (reopened) return reopened;
  const int error = errno;
  return fail(error == EMFILE || error == ENFILE ? ErrorCode::kResourceExhausted : ErrorCode::kEnvironment,
              "cannot open a memory segment again read-only through " + path + ": " + std::strerror(error),
              error == EMFILE ? "raise the limit of open files (ulimit -n, RLIMIT_NOFILE)" : "is /proc mounted?");
}

Result<Segment> Segment::create(std::uint64_t bytes, const char* name) {
  if (bytes == 0 || bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - page_bytes()) {
    return fail(ErrorCode::kResourceExhausted,
                "cannot create a memory segment of " + std::to_string(bytes) + " bytes: out of range");
  }
  Segment segment;
  segment.bytes_ = round_to_pages(bytes);
  CALLBOARD_ASSIGN(segment.fd_, create_memfd(name, segment.bytes_));
  // Not FUTURE_WRITE: with it the owner itself could no longer punch pages out, and memory would never go back.
  if (::fcntl(segment.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(system_error("sealing", segment.bytes_, errno));
  }
  void* data =
      ::mmap(nullptr, segment.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, segment.fd_.get(), 0);
  if (data == MAP_FAILED) return fail(system_error("mmap", segment.bytes_, errno));
  segment.data_ = static_cast<std::byte*>(data);
  ::madvise(data, segment.bytes_, MADV_DONTDUMP);  // a core file of an arena would be as large as the arena
  return segment;
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_) ::munmap(data_, bytes_);
}

Result<UniqueFd> Segment::open_read_only() const { return reopen_read_only(fd_.get()); }

void Segment::populate(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  int outcome = 0;
  do {
    outcome = ::madvise(data_ + offset, bytes, kPopulateWrite);
  } while (outcome != 0 && (errno == EINTR || errno == EAGAIN));
  if (outcome == 0 || errno != EINVAL) return;  // what could not be populated is populated by its first touch
  for (std::uint64_t at = offset; at < offset + bytes; at += page_bytes()) {
    *reinterpret_cast<volatile std::byte*>(data_ + at) = std::byte{0};
  }
}

void Segment::punch(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return;
  int outcome = 0;
  do {
    outcome = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                          static_cast<off_t>(bytes));
  } while (outcome != 0 && errno == EINTR);
  if (outcome != 0) {
    log::warning("punch_failed", "bytes=" + std::to_string(bytes) + " error=" + std::strerror(errno) +
                                     "; the pages stay with this process");
  }
}

}  // namespace callboard::kernels
