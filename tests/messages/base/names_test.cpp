#include "messages/base/names.h"

#include "tests/support/test.h"

using callboard::edit_distance;
using callboard::nearest_names;

TEST_CASE("the nearest names come first and the far ones not at all") {
  const std::vector<std::string> names = {"aten::sub.Tensor", "aten::add.Tensor", "aten::add.Scalar", "aten::a"};
  CHECK(nearest_names("aten::ad.Tensor", names, 2) == std::vector<std::string>{"aten::add.Tensor", "aten::sub.Tensor"});
  CHECK(nearest_names("zzzzzzzzzzzzzzzz", names, 2).empty());
  CHECK(nearest_names("", names, 2).empty());
}

TEST_CASE("the distance of two words counts letters, and a swap once") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("status", "statsu") == 1);
  CHECK(edit_distance("same", "same") == 0);
}
