// Text of foreign code (a Python exception, a program's output) made fit for an error, a log and a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace callboard {

/// Valid UTF-8 without escape sequences (ANSI's colours and cursor movements) and without control characters but
/// newline and tab; '?' stands for what is no UTF-8. Of what is then longer than `bytes_max` the middle is left out,
/// and a line there says how much: a third from the start stays, and the end, which says most.
std::string plain_text(std::string_view text, std::size_t bytes_max);

}  // namespace callboard
