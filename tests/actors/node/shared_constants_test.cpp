#include "actors/node/shared_constants.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/memory/constant_pack.h"
#include "kernels/memory/file_identity.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

ContentHash hash_of(const std::string& text) { return ContentHash::of(text.data(), text.size()); }

kernels::ConstantPack pack_of(const std::vector<std::string>& texts) {
  std::vector<kernels::ConstantSource> sources;
  for (const std::string& text : texts) sources.push_back({hash_of(text), text.data(), text.size()});
  return std::move(*kernels::pack_constants(sources));
}

UniqueFd duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST_CASE("a constant is kept as long as anybody who found, added or opened it uses it") {
  SharedConstants store;
  kernels::ConstantPack pack = pack_of({"a", "b"});
  REQUIRE(store.find(1, {hash_of("a")}) == std::vector<ContentHash>{hash_of("a")});
  REQUIRE(store.add(1, std::move(pack.fd), pack.bytes, pack.spans));
  REQUIRE(store.find(2, {hash_of("a"), hash_of("c")}) == std::vector<ContentHash>{hash_of("c")});
  const auto opened = store.open(3, hash_of("b"));
  REQUIRE(opened);
  REQUIRE(opened->segment_bytes == pack.bytes);
  char letter = 0;
  REQUIRE(::pread(opened->fd->get(), &letter, 1, static_cast<off_t>(opened->span.offset)) == 1);
  REQUIRE(letter == 'b');
  store.user_gone(1);
  REQUIRE(store.constants() == 2);
  store.release(2, {hash_of("a"), hash_of("b")});  // b was never used by 2: nothing happens to it
  REQUIRE(store.constants() == 1);
  REQUIRE(store.bytes() == pack.bytes);
  store.release(3, {hash_of("b")});
  store.release(3, {hash_of("b")});
  REQUIRE(store.constants() == 0);
  REQUIRE(store.bytes() == 0);
  REQUIRE(store.open(3, hash_of("b")).error().code == ErrorCode::kConstantMissing);
}

TEST_CASE("constants that are here already are kept where they are") {
  SharedConstants store;
  kernels::ConstantPack first = pack_of({"a"});
  kernels::ConstantPack same = pack_of({"a"});
  kernels::ConstantPack more = pack_of({"a", "b"});
  REQUIRE(store.add(1, std::move(first.fd), first.bytes, first.spans));
  REQUIRE(store.add(2, std::move(same.fd), same.bytes, same.spans));
  REQUIRE(store.bytes() == first.bytes);
  REQUIRE(store.add(2, std::move(more.fd), more.bytes, more.spans));
  REQUIRE(store.open(3, hash_of("a"))->segment == 1);
  store.user_gone(1);
  REQUIRE(store.find(3, {hash_of("a"), hash_of("b")}).empty());
  store.user_gone(2);
  store.user_gone(3);
  REQUIRE(store.bytes() == 0);
}

TEST_CASE("one segment told in several messages is one segment") {
  SharedConstants store;
  const kernels::ConstantPack pack = pack_of({"a", "b", "c"});
  for (const ConstantSpan& span : pack.spans) REQUIRE(store.add(1, duplicate(pack.fd.get()), pack.bytes, {span}));
  REQUIRE(store.bytes() == pack.bytes);
  REQUIRE(store.open(1, hash_of("a"))->segment == store.open(1, hash_of("c"))->segment);
  store.user_gone(1);
  REQUIRE(store.bytes() == 0);
}

TEST_CASE("a segment that somebody could still change, or that is not what was told, is refused") {
  SharedConstants store;
  const kernels::ConstantPack pack = pack_of({"a"});
  const ConstantSpan span = pack.spans.front();
  const auto code = [&](UniqueFd fd, std::uint64_t bytes, const ConstantSpan& told) {
    const Status status = store.add(1, std::move(fd), bytes, {told});
    return status ? ErrorCode::kOk : status.error().code;
  };
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 4096) == 0);
  REQUIRE(code(duplicate(unsealed.get()), 4096, span) == ErrorCode::kMalformed);
  REQUIRE(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  REQUIRE(code(duplicate(unsealed.get()), 4096, span) == ErrorCode::kMalformed);
  REQUIRE(code(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), 4096, span) == ErrorCode::kMalformed);
  REQUIRE(code(duplicate(pack.fd.get()), pack.bytes + 4096, span) == ErrorCode::kMalformed);
  REQUIRE(code(duplicate(pack.fd.get()), pack.bytes, {span.hash, pack.bytes, 1}) == ErrorCode::kMalformed);
  REQUIRE(code(duplicate(pack.fd.get()), pack.bytes, {span.hash, 64, UINT64_MAX - 32}) == ErrorCode::kMalformed);
  REQUIRE(code(duplicate(pack.fd.get()), pack.bytes, {ContentHash{}, 0, 1}) == ErrorCode::kMalformed);
  REQUIRE(store.constants() == 0);
  REQUIRE(store.bytes() == 0);
}

/// A file that holds "a" at 0 and "b" at 64.
class ConstantsFile {
 public:
  ConstantsFile() { write(std::string("a") + std::string(63, '.') + "b"); }
  ~ConstantsFile() { ::unlink(path_.c_str()); }
  void write(const std::string& text) const {
    REQUIRE(::pwrite(fd_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }
  UniqueFd open(int mode = O_RDONLY) const { return UniqueFd(::open(path_.c_str(), mode | O_CLOEXEC)); }
  ConstantFile told() const { return {path_, kernels::file_identity(fd_.get(), path_).value()}; }
  std::vector<ConstantSpan> spans() const { return {{hash_of("a"), 0, 1}, {hash_of("b"), 64, 1}}; }

 private:
  std::string path_ = "/tmp/callboard-constants-XXXXXX";
  UniqueFd fd_{::mkstemp(path_.data())};
};

TEST_CASE("constants in a file are kept with its identity, and cost no shared memory") {
  SharedConstants store;
  const ConstantsFile file;
  REQUIRE(store.add(1, file.open(), 65, {file.spans()[0]}, file.told()));
  REQUIRE(store.add(1, file.open(), 65, {file.spans()[1]}, file.told()));
  REQUIRE(store.bytes() == 0);
  REQUIRE(store.find(2, {hash_of("a"), hash_of("b")}).empty());
  const auto a = store.open(2, hash_of("a"));
  const auto b = store.open(2, hash_of("b"));
  REQUIRE(a);
  REQUIRE(b);
  REQUIRE(a->segment == b->segment);
  REQUIRE(b->file == file.told());
  REQUIRE(b->span == file.spans()[1]);
  store.user_gone(1);
  store.user_gone(2);
  REQUIRE(store.constants() == 0);
}

TEST_CASE("a constant whose file has changed is asked for again, and taken from where it comes then") {
  SharedConstants store;
  const ConstantsFile file;
  REQUIRE(store.add(1, file.open(), 65, file.spans(), file.told()));
  const ConstantFile before = file.told();
  file.write("x");
  REQUIRE(store.find(2, {hash_of("a")}) == std::vector<ContentHash>{hash_of("a")});
  // Whoever opens it nevertheless is told what it was when it was checked.
  REQUIRE(store.open(1, hash_of("a"))->file == before);
  kernels::ConstantPack pack = pack_of({"a"});
  REQUIRE(store.add(2, std::move(pack.fd), pack.bytes, pack.spans));
  REQUIRE(store.find(2, {hash_of("a")}).empty());
  REQUIRE_FALSE(store.open(2, hash_of("a"))->file);
  // The file again, as it is now.
  REQUIRE(store.add(2, file.open(), 65, {file.spans()[1]}, file.told()));
  REQUIRE(store.open(2, hash_of("b"))->file == file.told());
  store.user_gone(1);
  REQUIRE(store.constants() == 2);
  store.user_gone(2);
  REQUIRE(store.constants() == 0);
  REQUIRE(store.bytes() == 0);
}

TEST_CASE("a file that is not what was told, or could be written to, is refused") {
  SharedConstants store;
  const ConstantsFile file;
  const auto code = [&](UniqueFd fd, std::uint64_t bytes, const ConstantSpan& span, const ConstantFile& told) {
    const Status status = store.add(1, std::move(fd), bytes, {span}, told);
    return status ? ErrorCode::kOk : status.error().code;
  };
  const ConstantFile told = file.told();
  const ConstantSpan span = file.spans()[0];
  REQUIRE(code(file.open(O_RDWR), 65, span, told) == ErrorCode::kMalformed);
  REQUIRE(code(file.open(), 64, span, told) == ErrorCode::kMalformed);
  REQUIRE(code(file.open(), 65, {span.hash, 65, 1}, told) == ErrorCode::kMalformed);
  REQUIRE(code(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), 65, span, told) == ErrorCode::kMalformed);
  REQUIRE_FALSE(store.add(1, file.open(), 65, {span}));  // as a segment
  file.write("x");
  REQUIRE(code(file.open(), 65, span, told) == ErrorCode::kFileChanged);
  REQUIRE(store.constants() == 0);
}

}  // namespace
}  // namespace callboard::actors
