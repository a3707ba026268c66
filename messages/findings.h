// Internal to messages: collects all faults of one thing, so that its author sees them at once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "messages/base/error.h"
#include "messages/limits.h"

namespace callboard {

class Findings {
 public:
  void add(Error error) {
    ++count_;
    if (errors_.size() < limits::kErrorCausesMax) errors_.push_back(std::move(error));
  }
  /// Still room for one that is costly to describe.
  bool room() const { return errors_.size() < limits::kErrorCausesMax; }
  bool empty() const { return count_ == 0; }

  /// Ok, the only finding itself, or one error with `code` whose causes are the findings.
  Status status(ErrorCode code, const std::string& what) {
    if (count_ == 0) return {};
    if (count_ == 1) return fail(std::move(errors_[0]));
    std::string message = what + ": " + std::to_string(count_) + " faults";
    if (count_ > errors_.size()) message += " (the first " + std::to_string(errors_.size()) + " are listed)";
    Error error(code, std::move(message));
    error.causes = std::move(errors_);
    return fail(std::move(error));
  }

 private:
  std::vector<Error> errors_;
  std::size_t count_ = 0;
};

}  // namespace callboard
