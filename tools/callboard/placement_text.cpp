#include "tools/callboard/placement_text.h"

#include <algorithm>
#include <utility>

#include "config/schema.h"

namespace callboard::cli {
namespace {

/// Parts between commas; empty ones are kept, to be refused.
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (std::size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', start)) {
    parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  parts.push_back(text.substr(start));
  return parts;
}

tl::unexpected<Error> refuse(const std::string& option, const std::string& why) {
  return fail(ErrorCode::kUsage, "--placement '" + option + "' " + why,
              "write auto, devices (cpu0,cpu1), or rules (--placement cpu0=encoder --placement cpu1=decoder)");
}

}  // namespace

Result<Placement> parse_placement(const std::vector<std::string>& options) {
  Placement placement;
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos) {
      if (options.size() > 1) return refuse(option, "cannot be combined with another one");
      if (option == "auto") return placement;
      placement.devices = split(option);
      for (const std::string& device : placement.devices) {
        if (!config::is_device_name(device))
          return refuse(option, "holds '" + device + "', which is not a device name");
      }
      return placement;
    }
    Placement::Rule rule;
    rule.device = option.substr(0, equals);
    rule.module_prefixes = split(option.substr(equals + 1));
    if (!config::is_device_name(rule.device)) return refuse(option, "does not begin with a device name");
    if (std::count(rule.module_prefixes.begin(), rule.module_prefixes.end(), "") > 0)
      return refuse(option, "names an empty module");
    placement.rules.push_back(std::move(rule));
    placement.automatic = false;
  }
  return placement;
}

}  // namespace callboard::cli
