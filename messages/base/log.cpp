#include "messages/base/log.h"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace callboard::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kTrace: return spdlog::level::trace;
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// A line break or an escape sequence in what a peer sent must not look like a line of ours.
void append_on_one_line(std::string& line, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else if (c == '\t') {
      line += ' ';
    } else {
      line += "\\x";
      line += kDigits[byte >> 4];
      line += kDigits[byte & 15];
    }
  }
}

std::string pattern_for(std::string_view who) {
  std::string pattern = "%Y-%m-%dT%H:%M:%S.%fZ %l ";
  for (const char c : who) {
    if (c == '%') pattern += '%';
    pattern += c;
  }
  return pattern + " %v";
}

// Never destroyed: threads and static destructors may log until the process is gone.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("callboard", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern(pattern_for("callboard"), spdlog::pattern_time_type::utc);
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *instance;
}

}  // namespace

void start(std::string_view who, Level level) {
  std::string name;
  append_on_one_line(name, who);
  logger().set_pattern(pattern_for(name), spdlog::pattern_time_type::utc);
  logger().set_level(to_spdlog(level));
}

void write(Level level, std::string_view event, std::string_view text) {
  const spdlog::level::level_enum wanted = to_spdlog(level);
  if (!logger().should_log(wanted)) return;
  std::string line;
  line.reserve(event.size() + text.size() + 2);
  append_on_one_line(line, event);
  if (!text.empty()) line += ' ';
  append_on_one_line(line, text);
  logger().log(wanted, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace callboard::log
