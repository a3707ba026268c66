#include "kernels/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "kernels/memory/pages.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

std::uint64_t resident_bytes(const Segment& segment) {
  struct stat info {};
  REQUIRE(::fstat(segment.fd(), &info) == 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

TEST_CASE("a segment is whole pages, sealed against resizing and for its owner only") {
  auto segment = Segment::create(3 * page_bytes() - 5, "test");
  REQUIRE(segment);
  REQUIRE(segment->bytes() == 3 * page_bytes());
  REQUIRE(::fcntl(segment->fd(), F_GET_SEALS) >= 0);
  const int seals = ::fcntl(segment->fd(), F_GET_SEALS);
  REQUIRE((seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  REQUIRE(::ftruncate(segment->fd(), 1) != 0);
  REQUIRE(::ftruncate(segment->fd(), 1 << 20) != 0);
  struct stat info {};
  REQUIRE(::fstat(segment->fd(), &info) == 0);
  REQUIRE((info.st_mode & 0777) == 0400);
  REQUIRE((::fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("pages are there when populated and back with the system when punched, reading as zero then") {
  auto segment = Segment::create(64 * page_bytes(), "test");
  REQUIRE(segment);
  REQUIRE(resident_bytes(*segment) == 0);
  segment->populate(8 * page_bytes(), 16 * page_bytes());
  REQUIRE(resident_bytes(*segment) == 16 * page_bytes());
  std::memset(segment->data() + 8 * page_bytes(), 7, 16 * page_bytes());
  segment->punch(8 * page_bytes(), 15 * page_bytes());
  REQUIRE(resident_bytes(*segment) == page_bytes());
  REQUIRE(segment->data()[8 * page_bytes()] == std::byte{0});
  REQUIRE(segment->data()[23 * page_bytes()] == std::byte{7});
}

TEST_CASE("through the read-only descriptor nobody can change a segment") {
  auto segment = Segment::create(page_bytes(), "test");
  REQUIRE(segment);
  segment->data()[0] = std::byte{42};
  const auto read_only = segment->open_read_only();
  REQUIRE(read_only);
  const int fd = read_only->get();
  REQUIRE(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  void* shared = ::mmap(nullptr, page_bytes(), PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(shared != MAP_FAILED);
  REQUIRE(::mprotect(shared, page_bytes(), PROT_READ | PROT_WRITE) != 0);
  REQUIRE(::madvise(shared, page_bytes(), MADV_REMOVE) != 0);
  ::munmap(shared, page_bytes());
  REQUIRE(::pwrite(fd, "x", 1, 0) < 0);
  REQUIRE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(page_bytes())) != 0);
  if (::geteuid() != 0) {  // root opens whatever it likes: the mode guards against accidents only
    REQUIRE(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC) < 0);
  }
  REQUIRE(segment->data()[0] == std::byte{42});
}

TEST_CASE("a segment of an impossible size is refused with the reason") {
  REQUIRE(Segment::create(0, "test").error().code == ErrorCode::kResourceExhausted);
  const auto refused = Segment::create(UINT64_MAX, "test");
  REQUIRE(refused.error().code == ErrorCode::kResourceExhausted);
  REQUIRE(Segment::create(std::uint64_t{1} << 60, "test").error().code == ErrorCode::kResourceExhausted);
}

TEST_CASE("a moved segment is mapped and closed once") {
  auto created = Segment::create(page_bytes(), "test");
  REQUIRE(created);
  Segment first = std::move(*created);
  std::byte* data = first.data();
  auto other = Segment::create(page_bytes(), "test");
  REQUIRE(other);
  first = std::move(*other);
  REQUIRE(first.data() != data);
  first.data()[0] = std::byte{1};
  other->data()[0] = std::byte{2};
  REQUIRE(other->data() == data);
}

}  // namespace
}  // namespace callboard::kernels
