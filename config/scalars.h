// The strict grammar of single values. What YAML 1.1 readers guess (yes, 010, 1_000, 1e3) is refused.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "config/document.h"
#include "messages/base/error.h"

namespace callboard::config {

/// What is wrong with a value, to be completed with the key's name: "<key> " + problem.
struct ScalarProblem {
  ErrorCode code = ErrorCode::kConfigWrongType;
  std::string problem;
  std::string hint;
};
template <class T>
using Scalar = tl::expected<T, ScalarProblem>;

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

Scalar<bool> read_bool(const DocumentNode& node);
Scalar<std::int64_t> read_int(const DocumentNode& node);
/// "500ms", "3s", "2min", "1h": a whole number and a unit.
Scalar<std::chrono::milliseconds> read_duration(const DocumentNode& node);
/// Bytes of "512MiB"; units B, KiB, MiB, GiB, TiB. With `whole` > 0 also "50%" of it.
Scalar<std::uint64_t> read_size(const DocumentNode& node, std::uint64_t whole);

/// The shortest spelling that the readers above accept.
std::string write_duration(std::chrono::milliseconds duration);
std::string write_size(std::uint64_t bytes);

/// The one of `names` that `word` was probably meant to be (edit distance of at most 2, a swap counting as one); empty
/// if none is near.
std::string_view nearest_name(std::string_view word, const std::vector<std::string_view>& names);
/// "a, b and c".
std::string list_names(const std::vector<std::string_view>& names);
/// For an error message: cut at 60 characters, control characters replaced.
std::string shown(std::string_view text);

}  // namespace callboard::config
