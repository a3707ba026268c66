// What the parts of the coordinator's core share: options, counters, and the actions of the step that is going on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/coordinator/coordinator_core.h"

namespace callboard::actors {

struct CoreCounters {
  std::uint64_t accepted = 0;
  std::uint64_t rejected = 0;  ///< submits that were never accepted
  std::uint64_t ok = 0;
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t expired = 0;
  std::uint64_t retried = 0;  ///< attempts after a first one
  std::uint64_t fragments_sent = 0;
  std::uint64_t stale_results = 0;  ///< CO-3
  std::uint64_t device_losses = 0;
  std::uint64_t states_lost = 0;
};

class CoreContext {
 public:
  explicit CoreContext(CoordinatorOptions o) : options(std::move(o)) {}

  void send(const ActorId& to, Message&& message) { out.push_back(CoordinatorCore::Send{to, std::move(message)}); }
  void forget(const ActorId& peer) { out.push_back(CoordinatorCore::Forget{peer}); }
  void log(log::Level level, std::string event, std::string text) {
    out.push_back(CoordinatorCore::LogLine{level, std::move(event), std::move(text)});
  }

  const CoordinatorOptions options;
  CoreCounters counters;
  CoordinatorCore::Actions out;
  bool stopping = false;  ///< a shutdown was ordered: nothing new is accepted
};

}  // namespace callboard::actors
