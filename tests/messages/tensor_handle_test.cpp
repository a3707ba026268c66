#include "messages/tensor_handle.h"

#include "tests/support/test.h"

namespace callboard {
namespace {

TensorHandle arena(TensorMeta meta, std::uint64_t bytes, std::uint64_t offset = 0) {
  return {std::move(meta), ArenaBlock{{"cpu0", 1}, 1, offset, bytes, 1}};
}

const TensorMeta kSixFloats = TensorMeta::contiguous(DType::kFloat32, {2, 3});

TensorHandle cuda(std::uint64_t bytes, std::string handles) {
  return {kSixFloats, CudaIpcBlock{{"cuda0", 1}, 1, 512, bytes, 2, 1, std::move(handles)}};
}

TEST_CASE("a handle holds if its tensor lies inside the data, to the last byte") {
  CHECK(TensorHandle{kSixFloats, InlineBytes{std::string(24, 'x')}}.check());
  CHECK(arena(kSixFloats, 24).check());
  CHECK(arena(kSixFloats, 24, 4096).check());
  CHECK(cuda(24, std::string(144, 'h')).check());
  CHECK(TensorHandle{TensorMeta::contiguous(DType::kFloat32, {0}), InlineBytes{}}.check());
}

TEST_CASE("R47: a handle whose tensor reaches one byte past its data is malformed") {
  const TensorHandle hostile[] = {
      {kSixFloats, InlineBytes{std::string(23, 'x')}},
      arena(kSixFloats, 23),
      arena({DType::kFloat32, {4}, {std::int64_t{1} << 40}, 0}, 1u << 20),
      arena({DType::kFloat32, {4}, {1}, -1}, 1u << 20),
      arena({DType::kFloat32, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {1, 1}, 0}, UINT64_MAX),
      arena({DType::kFloat32, {4, 4}, {1}, 0}, 1u << 20),
      arena({DType::kComplex128, {4}, {1}, 0}, 16),
      arena(kSixFloats, 24, UINT64_MAX - 8),
      arena(kSixFloats, 24, INT64_MAX),
      {kSixFloats, ArenaBlock{{"", 1}, 1, 0, 24, 1}},
      cuda(24, ""),
      cuda(24, std::string(143, 'h')),
      cuda(24, std::string(145, 'h')),
      cuda(23, std::string(144, 'h')),
  };
  for (const TensorHandle& one : hostile) {
    INFO(one.meta.to_string());
    const Status checked = one.check();
    REQUIRE_FALSE(checked);
    CHECK(checked.error().code == ErrorCode::kMalformed);
  }
}

TEST_CASE("the three handles of a CUDA block come out of the one string as they went in") {
  const std::string memory(64, 'm');
  const std::string event(64, 'e');
  CudaIpcBlock block;
  block.handles = CudaIpcBlock::join_handles(std::string(16, 'u'), memory, event);
  CHECK(block.device_uuid() == std::string(16, 'u'));
  CHECK(block.memory_handle() == memory);
  CHECK(block.event_handle() == event);
}

TEST_CASE("a handle without CUDA does not pay for the kinds that have it") {
  STATIC_REQUIRE(sizeof(CudaIpcBlock) <= sizeof(ArenaBlock) + sizeof(LeaseId) + sizeof(std::string));
}

TEST_CASE("the bytes of a value count what it adds to a message") {
  CHECK(wire_bytes(std::monostate{}) < 16);
  CHECK(wire_bytes(std::int64_t{1}) < 16);
  const std::size_t small = wire_bytes(TensorHandle{kSixFloats, InlineBytes{std::string(24, 'x')}});
  const std::size_t large = wire_bytes(TensorHandle{kSixFloats, InlineBytes{std::string(1024, 'x')}});
  CHECK(large - small == 1000);
  CHECK(wire_bytes(arena(kSixFloats, std::uint64_t{1} << 40)) < 256);
}

}  // namespace
}  // namespace callboard
