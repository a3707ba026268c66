// PyTorch's notation of an operator, as far as it can be judged without PyTorch: what a device would refuse after it
// has started an interpreter and imported torch, `validate` finds at once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace callboard::config {

/// What is wrong with a schema: "<key> is '<schema>', " + problem.
struct SchemaProblem {
  std::string problem;
  std::string hint;
};

/// Of "my::scale(Tensor x, float factor=1.0, *, bool on=True) -> Tensor": its grammar, its namespace, and types that a
/// Python kernel can have. A schema without a fault here may still be refused by a device: default values are looked at
/// no closer than to find their end.
std::optional<SchemaProblem> find_schema_problem(std::string_view schema);

/// "my::scale", with ".overload" where it has one; empty where find_schema_problem() finds no name.
std::string schema_operator(std::string_view schema);

}  // namespace callboard::config
