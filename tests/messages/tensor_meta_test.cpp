#include "messages/tensor_meta.h"

#include <set>

#include "messages/limits.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TensorMeta meta(std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides, std::int64_t offset = 0,
                DType dtype = DType::kFloat32) {
  return {dtype, std::move(sizes), std::move(strides), offset};
}

TEST_CASE("every dtype has a name of its own that is read back") {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(names.insert(dtype_name(dtype)).second);
    CHECK(dtype_from_name(dtype_name(dtype)).value() == dtype);
    CHECK(dtype_size(dtype) >= 1);
    CHECK(dtype_size(dtype) <= 16);
  }
  CHECK(dtype_size(DType::kComplex128) == 16);
  CHECK(dtype_size(DType::kBFloat16) == 2);
  CHECK(dtype_size(DType::kBool) == 1);
}

TEST_CASE("R45: a dtype that is not carried is refused by name, with the nearest one") {
  const auto refused = dtype_from_name("float31");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnsupported);
  CHECK(refused.error().message.find("'float31'") != std::string::npos);
  CHECK(refused.error().hint.find("did you mean 'float32'") != std::string::npos);
  CHECK(refused.error().hint.find("float8_e8m0fnu") != std::string::npos);
  CHECK_FALSE(dtype_from_name("qint8"));
  CHECK_FALSE(dtype_from_name(""));
  CHECK_FALSE(dtype_from_name(std::string(100'000, 'x')));
}

TEST_CASE("contiguous strides are ATen's, a zero size counts as one") {
  CHECK(TensorMeta::contiguous_strides({2, 3, 4}) == std::vector<std::int64_t>{12, 4, 1});
  CHECK(TensorMeta::contiguous_strides({2, 0, 4}) == std::vector<std::int64_t>{4, 4, 1});
  CHECK(TensorMeta::contiguous_strides({}).empty());
}

TEST_CASE("contiguity looks past sizes of one and at empty tensors as ATen does") {
  CHECK(meta({2, 3}, {3, 1}).is_contiguous());
  CHECK(meta({2, 1, 3}, {3, 99, 1}).is_contiguous());
  CHECK(meta({0, 3}, {7, 7}).is_contiguous());
  CHECK_FALSE(meta({2, 3}, {1, 2}).is_contiguous());
  CHECK_FALSE(meta({2}, {0}).is_contiguous());
  CHECK(meta({}, {}).is_contiguous());
}

TEST_CASE("the extent reaches to the end of the last element") {
  CHECK(meta({2, 3}, {3, 1}).extent_bytes().value() == 24);
  CHECK(meta({}, {}).extent_bytes().value() == 4);
  CHECK(meta({}, {}, 5).extent_bytes().value() == 24);
  CHECK(meta({3, 4}, {1, 3}, 2, DType::kFloat64).extent_bytes().value() == (2 + 2 + 9 + 1) * 8);
  CHECK(meta({3, 4}, {0, 0}).extent_bytes().value() == 4);
  CHECK(meta({kHuge}, {0}).extent_bytes().value() == 4);
  CHECK(meta({3, 0}, {1, 1}, 9).extent_bytes().value() == 0);
  CHECK(meta({1}, {INT64_MAX}).extent_bytes().value() == 4);
  CHECK(meta({5, 2, 3}, {6, 3, 1}).numel() == 30);
}

TEST_CASE("R47: sizes, strides and offsets that do not fit are refused before a view exists") {
  const TensorMeta hostile[] = {
      meta({4}, {std::int64_t{1} << 62}),
      meta({4}, {INT64_MAX}),
      meta({4}, {1}, -1),
      meta({4}, {1}, INT64_MAX),
      meta({4}, {1}, INT64_MAX / 4),
      meta({std::int64_t{1} << 32, std::int64_t{1} << 32}, {0, 0}),
      meta({std::int64_t{1} << 62, 1}, {0, 0}),
      meta({4, 4}, {4}),
      meta({4}, {4, 1}),
      meta({-1}, {1}),
      meta({0, -1}, {1, 1}),
      meta({4}, {-1}),
      meta({4}, {INT64_MIN}),
      meta({0, std::int64_t{1} << 62, 16}, {0, 0, 0}),
      meta({4}, {1}, 0, DType::kUndefined),
      meta({4}, {1}, 0, static_cast<DType>(kDTypeCount)),
      meta(std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)),
      meta(std::vector<std::int64_t>(100'000, 1), std::vector<std::int64_t>(3, 1)),
  };
  for (const TensorMeta& one : hostile) {
    const auto extent = one.extent_bytes();
    INFO(one.to_string().substr(0, 200));
    REQUIRE_FALSE(extent);
    CHECK(extent.error().code == ErrorCode::kMalformed);
    CHECK(extent.error().message.size() < 4000);
  }
}

TEST_CASE("64 dimensions are the most") {
  CHECK(meta(std::vector<std::int64_t>(limits::kTensorRankMax, 1), std::vector<std::int64_t>(limits::kTensorRankMax, 1))
            .extent_bytes()
            .value() == 4);
}

TEST_CASE("a tensor's text is short where it can be") {
  CHECK(meta({2, 3}, {3, 1}).to_string() == "float32[2, 3]");
  CHECK(meta({2, 3}, {1, 2}, 4).to_string() == "float32[2, 3] strides [1, 2] offset 4");
  CHECK(TensorMeta::contiguous(DType::kBool, {}).to_string() == "bool[]");
}

}  // namespace
}  // namespace callboard
