// Whether work that is under way should end.
#pragma once

#include <optional>

#include "messages/base/clock.h"
#include "messages/base/error.h"

namespace callboard::kernels {

/// Asked, not waited for. Any thread.
class StopSignal {
 public:
  virtual ~StopSignal() = default;
  /// The reason, kCancelled or kDeadlineExceeded as a rule; nullopt if the work may go on. Reads the clock.
  virtual std::optional<Error> stop_reason() const = 0;
  virtual TimePoint deadline() const = 0;
};

}  // namespace callboard::kernels
