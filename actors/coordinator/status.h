// The coordinator's tables as JSON texts, for people and tools.
#pragma once

#include <string>

#include "actors/coordinator/programs.h"
#include "actors/coordinator/runs.h"

namespace callboard::actors {

struct StatusView {
  const CoreContext& context;
  const Members& members;
  const Programs& programs;
  const Runs& runs;
  TimePoint now;
};

std::string status_json(const StatusView& view);
std::string actors_json(const StatusView& view);
std::string programs_json(const StatusView& view);
/// The oldest 1,000.
std::string requests_json(const StatusView& view);

}  // namespace callboard::actors
