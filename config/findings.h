// What is wrong with a cluster file, and where.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "messages/base/error.h"

namespace callboard::config {

/// Both from 1; columns count characters, not bytes.
struct Position {
  int line = 1;
  int column = 1;
  auto operator<=>(const Position &) const = default;
};

struct Finding {
  Position at;
  int width = 1;  ///< characters to underline
  bool warning = false;
  ErrorCode code = ErrorCode::kConfigSyntax;
  std::string message;  ///< without position
  std::string hint;
};

/// Collects in any order. Bounded by the node budget of a document times the few checks of a key.
class Findings {
 public:
  void error(ErrorCode code, Position at, int width, std::string message, std::string hint = {});
  void warning(ErrorCode code, Position at, int width, std::string message, std::string hint = {});
  std::size_t errors() const { return errors_; }
  /// By position; findings of one position stay in the order in which they were made.
  std::vector<Finding> sorted() &&;

 private:
  std::vector<Finding> list_;
  std::size_t errors_ = 0;
};

}  // namespace callboard::config
