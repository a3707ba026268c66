// Short ways to ask what the parser says about a text.
#pragma once

#include <string>
#include <string_view>

#include "config/validation.h"

namespace callboard::config::test {

inline Machine machine() { return {std::uint64_t{16} << 30, "/run/callboard", {}}; }

inline Validation validate(std::string_view text) { return validate_cluster(text, machine()); }

/// "2:5 E201 unknown key 'x' … | hint" for each finding, warnings with W; one a line.
inline std::string findings_of(std::string_view text) {
  std::string out;
  for (const Finding& finding : validate(text).findings) {
    out += std::to_string(finding.at.line) + ":" + std::to_string(finding.at.column) + (finding.warning ? " W" : " E") +
           std::to_string(static_cast<int>(finding.code)) + " " + finding.message;
    if (!finding.hint.empty()) out += " | " + finding.hint;
    out += "\n";
  }
  return out;
}

}  // namespace callboard::config::test
