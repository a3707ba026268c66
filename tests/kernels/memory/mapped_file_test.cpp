#include "kernels/memory/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/memory/file_identity.h"
#include "kernels/memory/pages.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

/// A file of three pages, 'a', 'b' and 'c'.
class Weights {
 public:
  Weights() {
    REQUIRE(fd_);
    for (const char letter : {'a', 'b', 'c'}) text_ += std::string(page_bytes(), letter);
    write(0, text_);
    age(1'000);
  }
  ~Weights() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  void write(std::uint64_t offset, const std::string& bytes) const {
    REQUIRE(::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void truncate(std::uint64_t bytes) const { REQUIRE(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0); }
  /// Another identity, as touch makes it.
  void age(std::int64_t seconds) const {
    const timespec time{static_cast<time_t>(seconds), 0};
    const timespec both[2] = {time, time};
    REQUIRE(::futimens(fd_.get(), both) == 0);
  }
  FileIdentity identity() const { return file_identity(fd_.get(), path_).value(); }
  UniqueFd open() const { return UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)); }
  Result<std::shared_ptr<MappedFile>> map() const { return MappedFile::map(open(), ConstantFile{path_, identity()}); }
  ConstantSpan span(std::uint64_t offset, std::uint64_t bytes) const {
    return {ContentHash::of(text_.data() + offset, bytes), offset, bytes};
  }

 private:
  std::string path_ = std::string(::getenv("TMPDIR") ? ::getenv("TMPDIR") : "/tmp") + "/callboard-weights-XXXXXX";
  UniqueFd fd_{::mkstemp(path_.data())};
  std::string text_;
};

ErrorCode code_of(const Status& status) { return status ? ErrorCode::kOk : status.error().code; }

TEST_CASE("a file is mapped as it lies, and a write changes this process's view only") {
  const Weights weights;
  const auto file = weights.map();
  REQUIRE(file);
  REQUIRE((*file)->bytes() == 3 * page_bytes());
  REQUIRE((*file)->add(weights.span(64, 100)));
  REQUIRE((*file)->data()[page_bytes()] == std::byte{'b'});
  (*file)->data()[0] = std::byte{'x'};
  char there = 0;
  REQUIRE(::pread(weights.fd(), &there, 1, 0) == 1);
  REQUIRE(there == 'a');
  REQUIRE((*file)->check());
  REQUIRE(code_of((*file)->add({ContentHash::of("", 0), 3 * page_bytes() - 1, 2})) == ErrorCode::kMalformed);
  REQUIRE(code_of((*file)->add({ContentHash::of("", 0), 64, UINT64_MAX - 32})) == ErrorCode::kMalformed);
}

TEST_CASE("MF-1: a changed constant is found, whatever else was or was not changed") {
  const Weights weights;
  const auto file = weights.map();
  REQUIRE(file);
  REQUIRE((*file)->add(weights.span(page_bytes(), 64)));

  SECTION("a byte of it") {
    weights.write(page_bytes() + 63, "x");
    const Status status = (*file)->check();
    REQUIRE(code_of(status) == ErrorCode::kFileChanged);
    REQUIRE(status.error().message.find(weights.path()) != std::string::npos);
    REQUIRE(code_of((*file)->check()) == ErrorCode::kFileChanged);
    weights.write(page_bytes() + 63, "b");
    REQUIRE((*file)->check());
  }
  SECTION("nothing, though the file was touched, renamed, and written to elsewhere") {
    weights.age(2'000);
    REQUIRE((*file)->check());
    REQUIRE(::chmod(weights.path().c_str(), 0600) == 0);
    REQUIRE((*file)->check());
    weights.write(0, "x");
    REQUIRE((*file)->check());
  }
  SECTION("a constant that is added after the change is read as well") {
    weights.write(0, "x");
    REQUIRE(code_of((*file)->add(weights.span(0, 64))) == ErrorCode::kFileChanged);
    REQUIRE((*file)->add(weights.span(2 * page_bytes(), 64)));
    REQUIRE((*file)->check());
  }
  SECTION("with times as before") {
    weights.write(page_bytes(), "x");
    weights.age(1'000);
    REQUIRE(code_of((*file)->check()) == ErrorCode::kFileChanged);
  }
}

TEST_CASE("a file that has another identity than told is read before it is trusted") {
  const Weights weights;
  const FileIdentity before = weights.identity();
  weights.write(0, "x");
  const auto file = MappedFile::map(weights.open(), ConstantFile{weights.path(), before});
  REQUIRE(file);
  REQUIRE(code_of((*file)->add(weights.span(0, 64))) == ErrorCode::kFileChanged);
  REQUIRE((*file)->add(weights.span(page_bytes(), 64)));
  weights.truncate(page_bytes());
  REQUIRE(code_of(MappedFile::map(weights.open(), ConstantFile{weights.path(), before}).map([](auto&&) {})) ==
          ErrorCode::kFileChanged);
  REQUIRE_FALSE(MappedFile::map(UniqueFd(::open("/", O_RDONLY | O_CLOEXEC)), ConstantFile{"/", before}));
}

TEST_CASE("MF-2: a file that becomes shorter under its mapping ends no process") {
  const Weights weights;
  const auto file = weights.map();
  const auto other = weights.map();
  REQUIRE(file);
  REQUIRE(other);
  REQUIRE((*file)->add(weights.span(0, 64)));
  weights.truncate(page_bytes());
  const volatile std::byte* const data = (*file)->data();
  REQUIRE(data[0] == std::byte{'a'});
  REQUIRE(data[page_bytes() + 7] == std::byte{0});  // SIGBUS
  REQUIRE(data[2 * page_bytes()] == std::byte{0});
  REQUIRE(code_of((*file)->check()) == ErrorCode::kFileChanged);
  // For good, whatever the file becomes: zeros may have been read.
  weights.write(page_bytes(), std::string(page_bytes(), 'b') + std::string(page_bytes(), 'c'));
  const Status status = (*file)->check();
  REQUIRE(code_of(status) == ErrorCode::kFileChanged);
  REQUIRE(status.error().message.find("shorter") != std::string::npos);
  REQUIRE((*other)->check());
}

// A death test: not where a sanitizer or a thread would come along.
TEST_CASE("MF-2: SIGBUS elsewhere ends the process as before") {
  const Weights weights;
  const auto file = weights.map();  // the handler is there
  REQUIRE(file);
  const Weights unwatched;
  void* const data = ::mmap(nullptr, 3 * page_bytes(), PROT_READ, MAP_PRIVATE, unwatched.fd(), 0);
  REQUIRE(data != MAP_FAILED);
  unwatched.truncate(page_bytes());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGALRM, SIG_DFL);
    ::alarm(20);
    const volatile std::byte byte = static_cast<const std::byte*>(data)[2 * page_bytes()];
    ::_exit(static_cast<int>(byte));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const bool by_signal = WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
  const bool by_sanitizer = WIFEXITED(status) && WEXITSTATUS(status) != 0;  // which reports it, and exits
  REQUIRE((by_signal || by_sanitizer));
  ::munmap(data, 3 * page_bytes());
}

TEST_CASE("a range of a file hashes to what its bytes do, and one that ends early is told") {
  const Weights weights;
  REQUIRE(hash_file_range(weights.fd(), 10, 2 * page_bytes(), "x") == weights.span(10, 2 * page_bytes()).hash);
  REQUIRE(hash_file_range(weights.fd(), 0, 0, "x") == ContentHash::of("", 0));
  REQUIRE(hash_file_range(weights.fd(), 3 * page_bytes() - 1, 2, "x").error().code == ErrorCode::kFileChanged);
}

TEST_CASE("a file is settled once its last change lies back, or has a time to come") {
  const Weights weights;
  constexpr std::int64_t kHour = 3'600'000'000'000;
  FileIdentity identity = weights.identity();
  identity.modified_ns = identity.changed_ns - kHour;
  identity.changed_ns += kHour;
  REQUIRE(is_settled(identity));  // whoever writes now sets another time
  identity.changed_ns -= 2 * kHour;
  REQUIRE(is_settled(identity));
}

}  // namespace
}  // namespace callboard::kernels
