// SIGINT, SIGTERM and SIGHUP as something to poll.
#pragma once

#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::cli {

/// Blocks the three signals in the calling thread, which must be the main one and have started no other yet. They stay
/// blocked: whoever has asked for signals as descriptor wants them no other way.
class StopSignals {
 public:
  static Result<StopSignals> take();
  int fd() const { return fd_.get(); }
  /// How many came since the last call.
  int read_count() const;

 private:
  UniqueFd fd_;
};

}  // namespace callboard::cli
