#include "actors/client/tensor_parts.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "messages/limits.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

TensorRef counted(std::vector<std::int64_t> sizes) {
  TensorRef made = allocate_private(TensorMeta::contiguous(DType::kInt32, std::move(sizes))).value();
  auto* numbers = reinterpret_cast<std::int32_t*>(made.data);
  std::iota(numbers, numbers + made.meta.numel(), 0);
  return made;
}

/// In the order of a contiguous tensor.
std::vector<std::int32_t> elements(const TensorRef& tensor) {
  const TensorRef copy = tensor_copy(tensor, allocate_private).value();
  std::vector<std::int32_t> values(static_cast<std::size_t>(copy.meta.numel()));
  if (!values.empty()) std::memcpy(values.data(), copy.data, values.size() * sizeof(std::int32_t));
  return values;
}

/// Memory that nobody here may touch.
class FarMemory final : public DeviceMemory {
 public:
  int ordinal() const override { return 1; }
  Status use_on(void*) override { return {}; }
  Status check() const override { return {}; }
};

}  // namespace

TEST_CASE("what lies on a GPU is neither copied nor put together, nor taken as an argument", "[tensor_parts]") {
  TensorRef far = counted({4, 3});
  far.device = std::make_shared<FarMemory>();
  const auto input = check_tensor_memory("x", far);
  REQUIRE_FALSE(input);
  CHECK(input.error().code == ErrorCode::kBadInput);
  CHECK(input.error().message.find("input 'x'") != std::string::npos);
  CHECK(tensor_slice(far, 0, 1, 2).device == far.device);
  const auto copied = tensor_copy(far, allocate_private);
  REQUIRE_FALSE(copied);
  CHECK(copied.error().code == ErrorCode::kUnsupported);
  const TensorRef parts[] = {counted({1, 3}), far};
  const auto whole = concatenate(parts, 0, allocate_private);
  REQUIRE_FALSE(whole);
  CHECK(whole.error().code == ErrorCode::kUnsupported);
}

TEST_CASE("a slice is a view of the rows it names", "[tensor_parts]") {
  const TensorRef whole = counted({4, 3});
  const TensorRef rows = tensor_slice(whole, 0, 1, 2);
  CHECK(rows.data == whole.data);
  CHECK(rows.keep == whole.keep);
  CHECK(elements(rows) == std::vector<std::int32_t>{3, 4, 5, 6, 7, 8});
  CHECK(elements(tensor_slice(whole, 1, 2, 1)) == std::vector<std::int32_t>{2, 5, 8, 11});
  CHECK(elements(tensor_slice(rows, 0, 1, 1)) == std::vector<std::int32_t>{6, 7, 8});
  CHECK(elements(tensor_slice(whole, 0, 4, 0)).empty());
}

TEST_CASE("a copy has the elements in order, however they lay", "[tensor_parts]") {
  TensorRef turned = counted({2, 3});
  turned.meta.sizes = {3, 2};
  turned.meta.strides = {1, 3};
  CHECK(elements(turned) == std::vector<std::int32_t>{0, 3, 1, 4, 2, 5});
  TensorRef expanded = counted({1, 2});
  expanded.meta.sizes = {3, 2};
  expanded.meta.strides = {0, 1};
  CHECK(elements(expanded) == std::vector<std::int32_t>{0, 1, 0, 1, 0, 1});
  TensorRef scalar = counted({});
  CHECK(elements(scalar) == std::vector<std::int32_t>{0});
  TensorRef deep = counted({2, 3, 2, 2});
  deep.meta.sizes = {2, 2, 3, 2};
  deep.meta.strides = {12, 2, 4, 1};
  CHECK(elements(deep) == std::vector<std::int32_t>{0,  1,  4,  5,  8,  9,  2,  3,  6,  7,  10, 11,
                                                    12, 13, 16, 17, 20, 21, 14, 15, 18, 19, 22, 23});
}

TEST_CASE("parts that were cut anywhere join to what they were", "[tensor_parts]") {
  const TensorRef whole = counted({4, 5, 3});
  for (std::size_t dim = 0; dim < 3; ++dim) {
    for (std::int64_t first = 0; first <= whole.meta.sizes[dim]; ++first) {
      const std::vector<TensorRef> parts{tensor_slice(whole, dim, 0, first),
                                         tensor_slice(whole, dim, first, whole.meta.sizes[dim] - first)};
      const auto joined = concatenate(parts, dim, allocate_private);
      REQUIRE(joined);
      CHECK(joined->meta == whole.meta);
      CHECK(elements(*joined) == elements(whole));
    }
  }
}

TEST_CASE("parts that differ elsewhere do not join", "[tensor_parts]") {
  const std::vector<TensorRef> wide{counted({2, 3}), counted({2, 4})};
  CHECK(concatenate(wide, 0, allocate_private).error().code == ErrorCode::kOutputMismatch);
  REQUIRE(concatenate(wide, 1, allocate_private));
  std::vector<TensorRef> kinds{counted({2, 3}), counted({2, 3})};
  kinds[1].meta.dtype = DType::kFloat32;
  CHECK(concatenate(kinds, 0, allocate_private).error().code == ErrorCode::kOutputMismatch);
  const std::vector<TensorRef> ranks{counted({2, 3}), counted({6})};
  CHECK(concatenate(ranks, 0, allocate_private).error().code == ErrorCode::kOutputMismatch);
}

TEST_CASE("only tensors without two elements in one place count as disjoint", "[tensor_parts]") {
  const auto disjoint = [](std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides) {
    TensorMeta meta;
    meta.dtype = DType::kInt32;
    meta.sizes = std::move(sizes);
    meta.strides = std::move(strides);
    return elements_are_disjoint(meta);
  };
  CHECK(disjoint({}, {}));
  CHECK(disjoint({4, 3}, {3, 1}));
  CHECK(disjoint({3, 4}, {1, 3}));
  CHECK(disjoint({4, 1}, {1, 0}));
  CHECK(disjoint({0, 4}, {0, 0}));
  CHECK_FALSE(disjoint({4, 3}, {0, 1}));  // expanded
  CHECK_FALSE(disjoint({4, 3}, {2, 1}));  // windows
  CHECK_FALSE(disjoint({4, 3}, {1, 1}));
}

TEST_CASE("memory that a tensor reaches beyond is refused by the input's name", "[tensor_parts]") {
  TensorRef far = counted({2, 3});
  CHECK(check_tensor_memory("x", far).value() == 24);
  far.bytes = 23;
  const auto refused = check_tensor_memory("x", far);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kBadInput);
  CHECK(refused.error().message.find("'x'") != std::string::npos);
}

TEST_CASE("small tensors of a request do not take room in the arena", "[tensor_parts]") {
  int asked = 0;
  const AllocateTensor arena = [&](TensorMeta meta) {
    ++asked;
    return allocate_private(std::move(meta));
  };
  constexpr auto kMost = static_cast<std::int64_t>(limits::kInlineBytesMax);
  REQUIRE(allocate_for_request(TensorMeta::contiguous(DType::kUInt8, {kMost}), arena));
  CHECK(asked == 0);
  REQUIRE(allocate_for_request(TensorMeta::contiguous(DType::kUInt8, {kMost + 1}), arena));
  CHECK(asked == 1);
}
