#include "kernels/memory/constant_pack.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kernels/memory/pages.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

TEST_CASE("constants lie in a segment that nobody can change, each on 64 bytes") {
  const std::string first(100, 'a');
  const std::string second(5'000, 'b');
  const std::vector<ConstantSource> sources{
      {ContentHash::of(first.data(), first.size()), first.data(), first.size()},
      {ContentHash::of("", 0), nullptr, 0},
      {ContentHash::of(second.data(), second.size()), second.data(), second.size()}};
  const auto pack = pack_constants(sources);
  REQUIRE(pack);
  REQUIRE(pack->spans.size() == 3);
  REQUIRE(pack->bytes % page_bytes() == 0);
  std::string read(second.size(), '\0');
  for (const ConstantSpan& span : pack->spans) REQUIRE(span.offset % 64 == 0);
  REQUIRE(::pread(pack->fd.get(), read.data(), read.size(), static_cast<off_t>(pack->spans[2].offset)) ==
          static_cast<ssize_t>(read.size()));
  REQUIRE(read == second);
  REQUIRE(pack->spans[0].offset + pack->spans[0].bytes <= pack->spans[2].offset);

  const int seals = ::fcntl(pack->fd.get(), F_GET_SEALS);
  constexpr int kAll = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  REQUIRE((seals & kAll) == kAll);
  // Even who opens it again for writing, as root may, cannot write.
  const UniqueFd again(::open(("/proc/self/fd/" + std::to_string(pack->fd.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (again) {
    REQUIRE(::pwrite(again.get(), "x", 1, 0) < 0);
    REQUIRE(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
  }
}

TEST_CASE("constants that the machine has no memory for are refused before anything is written") {
  const std::uint64_t huge = std::uint64_t{1} << 50;
  const auto refused = pack_constants(std::vector<ConstantSource>{{ContentHash::of("x", 1), "x", huge}});
  REQUIRE(refused.error().code == ErrorCode::kOutOfMemory);
  REQUIRE(refused.error().message.find("limit") != std::string::npos);
  REQUIRE(pack_constants(std::vector<ConstantSource>{{ContentHash::of("x", 1), "x", UINT64_MAX}}).error().code ==
          ErrorCode::kOutOfMemory);
}

TEST_CASE("a pack of nothing is one page") {
  const auto pack = pack_constants({});
  REQUIRE(pack);
  REQUIRE(pack->bytes == page_bytes());
}

}  // namespace
}  // namespace callboard::kernels
