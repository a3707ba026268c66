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
/// `only`: the hash of one of them, as hexadecimal text; empty: all.
std::string programs_json(const StatusView& view, const std::string& only = {});
/// The oldest 1,000.
std::string requests_json(const StatusView& view);
std::string quarantine_json(const StatusView& view);

}  // namespace callboard::actors
