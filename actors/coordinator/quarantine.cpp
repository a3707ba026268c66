#include "actors/coordinator/quarantine.h"

#include <algorithm>
#include <utility>

namespace callboard::actors {
namespace {

constexpr std::size_t kIncidentsMax = 256;

}  // namespace

std::optional<Error> Quarantine::charge(const Program& program, std::string devices, const Error& death) {
  const auto [at, fresh] = incidents_.try_emplace(program.hash);
  if (fresh) order_.push_back(program.hash);
  Incident& incident = at->second;
  incident.name = program.name;
  incident.devices = std::move(devices);
  incident.last = death;
  incident.last.hint.clear();  // to submit again is no advice here
  ++incident.kills;
  std::optional<Error> refused;
  if (incident.quarantined()) refused = refusal(program.hash, incident);
  if (order_.size() > kIncidentsMax) forget(ContentHash(order_.front()));
  return refused;
}

void Quarantine::succeeded(const ContentHash& program) {
  if (incidents_.empty()) return;
  const auto found = incidents_.find(program);
  if (found != incidents_.end() && !found->second.quarantined()) forget(program);
}

std::optional<Error> Quarantine::objection(const ContentHash& program) const {
  if (incidents_.empty()) return std::nullopt;
  const auto found = incidents_.find(program);
  if (found == incidents_.end() || !found->second.quarantined()) return std::nullopt;
  return refusal(program, found->second);
}

bool Quarantine::release(const ContentHash& program) {
  const auto found = incidents_.find(program);
  if (found == incidents_.end() || !found->second.quarantined()) return false;
  forget(program);
  return true;
}

Error Quarantine::refusal(const ContentHash& program, const Incident& incident) {
  Error error(ErrorCode::kQuarantined,
              "program '" + incident.name + "' (on " + incident.devices +
                  ") is quarantined: " + std::to_string(incident.kills) +
                  " device processes in succession ended while they ran it and nothing else",
              "see the cause and `callboard logs`; a program that is changed is another one. `callboard quarantine "
              "release " +
                  program.hex().substr(0, 12) + "` lets this one run again");
  error.causes.push_back(incident.last);
  return error;
}

void Quarantine::forget(const ContentHash& program) {
  order_.erase(std::remove(order_.begin(), order_.end(), program), order_.end());
  incidents_.erase(program);
}

}  // namespace callboard::actors
