#include "kernels/memory/private_mapping.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "kernels/memory/pages.h"
#include "kernels/memory/segment.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

struct MappedSegment {
  Segment segment = std::move(*Segment::create(64 * page_bytes(), "test"));
  UniqueFd fd = std::move(*segment.open_read_only());

  PrivateMapping map(PrivateMapping::Writable writable = PrivateMapping::Writable::kWhole) {
    auto mapping = PrivateMapping::map(fd.get(), 0, segment.bytes(), writable);
    REQUIRE(mapping);
    return std::move(*mapping);
  }
};

TEST_CASE("a write to a private mapping does not reach the segment, and dropping forgets it") {
  MappedSegment fixture;
  fixture.segment.data()[0] = std::byte{1};
  fixture.segment.data()[page_bytes()] = std::byte{2};
  const PrivateMapping mapping = fixture.map();
  mapping.data()[0] = std::byte{9};
  REQUIRE(fixture.segment.data()[0] == std::byte{1});
  mapping.drop_written(0, 2 * page_bytes());
  REQUIRE(mapping.data()[0] == std::byte{1});
  mapping.data()[page_bytes()] = std::byte{9};
  mapping.drop_all(page_bytes(), page_bytes());
  REQUIRE(mapping.data()[page_bytes()] == std::byte{2});
}

TEST_CASE("dropping a range leaves what was written right beside it") {
  MappedSegment fixture;
  const PrivateMapping mapping = fixture.map();
  for (std::uint64_t page = 0; page < 6; ++page) mapping.data()[page * page_bytes() + 7] = std::byte{9};
  mapping.drop_written(2 * page_bytes(), 2 * page_bytes());
  for (std::uint64_t page = 0; page < 6; ++page) {
    const bool dropped = page == 2 || page == 3;
    REQUIRE(mapping.data()[page * page_bytes() + 7] == (dropped ? std::byte{0} : std::byte{9}));
  }
}

TEST_CASE("many scattered written pages are all dropped") {
  auto segment = Segment::create(2'000 * page_bytes(), "test");
  REQUIRE(segment);
  const auto fd = segment->open_read_only();
  const auto mapping = PrivateMapping::map(fd->get(), 0, segment->bytes(), PrivateMapping::Writable::kWhole);
  REQUIRE(mapping);
  for (std::uint64_t page = 0; page < 2'000; page += 3) mapping->data()[page * page_bytes()] = std::byte{9};
  mapping->drop_written(0, segment->bytes());
  for (std::uint64_t page = 0; page < 2'000; ++page) REQUIRE(mapping->data()[page * page_bytes()] == std::byte{0});
}

TEST_CASE("the kernel tells written pages from read ones, where it can") {
  MappedSegment fixture;
  const PrivateMapping mapping = fixture.map();
  volatile std::byte read = mapping.data()[0];
  static_cast<void>(read);
  if (!mapping.written(0, page_bytes())) {
    WARN("this kernel has no PAGEMAP_SCAN: whole blocks are dropped");
    return;
  }
  REQUIRE(mapping.written(0, mapping.bytes()) == false);
  mapping.data()[5 * page_bytes()] = std::byte{1};
  REQUIRE(mapping.written(0, mapping.bytes()) == true);
  REQUIRE(mapping.written(0, 5 * page_bytes()) == false);
  REQUIRE(mapping.written(6 * page_bytes(), page_bytes()) == false);
}

TEST_CASE("under strict overcommit only ranges in use are writable") {
  MappedSegment fixture;
  fixture.segment.data()[page_bytes()] = std::byte{3};
  const PrivateMapping mapping = fixture.map(PrivateMapping::Writable::kByRange);
  const auto permissions = [&](std::uint64_t page) {
    const auto address = reinterpret_cast<std::uintptr_t>(mapping.data() + page * page_bytes());
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
      const auto start = std::stoull(line, nullptr, 16);
      const auto end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      if (address >= start && address < end) return line.substr(line.find(' ') + 1, 4);
    }
    return std::string("none");
  };
  REQUIRE(permissions(1) == "r--p");
  REQUIRE(mapping.begin_range(page_bytes(), 2 * page_bytes()));
  REQUIRE(permissions(0) == "r--p");
  REQUIRE(permissions(1) == "rw-p");
  mapping.data()[page_bytes()] = std::byte{9};
  REQUIRE(fixture.segment.data()[page_bytes()] == std::byte{3});
  mapping.drop_written(page_bytes(), 2 * page_bytes());
  REQUIRE(permissions(1) == "r--p");
  REQUIRE(mapping.data()[page_bytes()] == std::byte{3});
}

}  // namespace
}  // namespace callboard::kernels
