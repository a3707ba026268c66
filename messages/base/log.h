// One event a line on stderr (the launcher sends it to the actor's log file). Thin front of spdlog, so that only one
// file includes it.
#pragma once

#include <string_view>

namespace callboard::log {

enum class Level { kTrace, kDebug, kInfo, kWarning, kError };

/// Call once, first thing in main. `who` is put in each line ("cpu0#1", "coordinator#1", "client"). Before it, lines go
/// out with the name "callboard".
void start(std::string_view who, Level level);

/// Any thread. `event` is a fixed snake_case word to grep for; `text` is free and may hold key=value pairs.
void write(Level level, std::string_view event, std::string_view text);

inline void debug(std::string_view event, std::string_view text) { write(Level::kDebug, event, text); }
inline void info(std::string_view event, std::string_view text) { write(Level::kInfo, event, text); }
inline void warning(std::string_view event, std::string_view text) { write(Level::kWarning, event, text); }
inline void error(std::string_view event, std::string_view text) { write(Level::kError, event, text); }

}  // namespace callboard::log
