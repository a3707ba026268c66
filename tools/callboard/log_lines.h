// What is in an actor's log: lines, each start of the actor behind the one before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "messages/base/ids.h"

namespace callboard::cli {

/// For a terminal: control characters are replaced, since kernels and libraries write into logs, too.
std::string printable_line(std::string_view line);

/// Takes the whole lines out of `text`; what follows the last line break stays.
std::vector<std::string> take_lines(std::string& text);

/// The lines of one start of an actor: from the first that says "name#start" to the first that says another number.
/// What is written in between by no line of ours (a traceback, a library's message) belongs to the line before. `at`:
/// the start that the line before the first belongs to; kept for the next call. `start` 0: all.
std::vector<std::string> of_start(std::vector<std::string> lines, std::string_view name, Incarnation start,
                                  Incarnation& at);

}  // namespace callboard::cli
