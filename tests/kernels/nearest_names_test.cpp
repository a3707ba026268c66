#include "kernels/nearest_names.h"

#include "tests/support/test.h"

using callboard::kernels::nearest_names;

TEST_CASE("the nearest names come first and the far ones not at all") {
  const std::vector<std::string> names = {"aten::sub.Tensor", "aten::add.Tensor", "aten::add.Scalar", "aten::a"};
  CHECK(nearest_names("aten::ad.Tensor", names, 2) == std::vector<std::string>{"aten::add.Tensor", "aten::sub.Tensor"});
  CHECK(nearest_names("zzzzzzzzzzzzzzzz", names, 2).empty());
  CHECK(nearest_names("", names, 2).empty());
}
