#include "config/findings.h"

#include <algorithm>
#include <utility>

namespace callboard::config {

void Findings::error(ErrorCode code, Position at, int width, std::string message, std::string hint) {
  list_.push_back({at, width, false, code, std::move(message), std::move(hint)});
  ++errors_;
}

void Findings::warning(ErrorCode code, Position at, int width, std::string message, std::string hint) {
  list_.push_back({at, width, true, code, std::move(message), std::move(hint)});
}

std::vector<Finding> Findings::sorted() && {
  std::stable_sort(list_.begin(), list_.end(), [](const Finding& a, const Finding& b) { return a.at < b.at; });
  return std::move(list_);
}

}  // namespace callboard::config
