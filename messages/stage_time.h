// What the costs of a program's nodes mean: measured times, or the exporter's estimate of work.
#pragma once

#include <string>
#include <string_view>

namespace callboard {

/// The annotation of a program that says where its nodes' costs come from, for a person. A text that begins with
/// kMeasured: they are nanoseconds of a profile run. Another one, or none: they are estimated operations and bytes, and
/// the text says why they were not measured.
constexpr std::string_view kCostsAnnotation = "callboard.costs";
constexpr std::string_view kMeasured = "measured";

/// Operations and bytes that an estimate counts as a nanosecond: of one core of the class this was written on.
constexpr double kEstimatedPerNanosecond = 10.0;

inline bool costs_are_measured(std::string_view costs) { return costs.substr(0, kMeasured.size()) == kMeasured; }
/// "measured" or "estimated".
inline std::string_view stage_time_source(std::string_view costs) {
  return costs_are_measured(costs) ? kMeasured : std::string_view("estimated");
}
/// How long a stage whose nodes cost so much takes, in nanoseconds.
inline double stage_time_ns(double cost, std::string_view costs) {
  return costs_are_measured(costs) ? cost : cost / kEstimatedPerNanosecond;
}

}  // namespace callboard
