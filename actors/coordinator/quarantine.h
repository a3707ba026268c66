// Programs that end the processes which run them. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "actors/coordinator/programs.h"

namespace callboard::actors {

/// Counts, for each program, the device processes that ended by themselves (a crash or an exit, never a kill from
/// outside) while nothing else ran there. At kKillsMax without a success in between, the program is quarantined: its
/// requests are refused until it is released. Bounded: the oldest incident is forgotten for a new one.
class Quarantine {
 public:
  static constexpr std::uint32_t kKillsMax = 2;

  struct Incident {
    std::string name;         ///< the program's
    std::string devices;      ///< where it runs: "cpu0, cpu1"
    std::uint32_t kills = 0;  ///< without a success in between
    Error last;               ///< what the last one was
    bool quarantined() const { return kills >= kKillsMax; }
  };

  /// What its requests are to be told from now on, if it is one too many.
  std::optional<Error> charge(const Program& program, std::string devices, const Error& death);
  /// It runs without harm: what it was charged with before does not count any more.
  void succeeded(const ContentHash& program);
  /// Why its requests are refused, if they are.
  std::optional<Error> objection(const ContentHash& program) const;
  /// False if it is not quarantined.
  bool release(const ContentHash& program);
  const std::map<ContentHash, Incident>& all() const { return incidents_; }

 private:
  static Error refusal(const ContentHash& program, const Incident& incident);
  void forget(const ContentHash& program);

  std::map<ContentHash, Incident> incidents_;
  std::deque<ContentHash> order_;  // of incidents_, the oldest first
};

}  // namespace callboard::actors
