// Small texts of the coordinator's errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.h"

namespace callboard::actors {

/// The entry of `names` that a person most likely meant; empty if none is near (more than a third of the letters
/// differ).
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);
/// "did you mean 'cpu0'?" or "known: cpu0, cpu1" (at most 8 names), for a hint.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& names);

/// "1.50 GiB (1610612736 bytes)".
std::string bytes_text(std::uint64_t bytes);
/// "at once", "in 250 ms".
std::string wait_text(std::int64_t milliseconds);
/// "killed by signal 9 (SIGKILL)" or "exited with code 1".
std::string exit_text(bool signalled, int code);

/// Several findings as one error: the finding itself if there is one, else `message` with the findings (at most
/// kErrorCausesMax of them) as causes. `findings` is not empty. Code is the first finding's where all agree, else
/// `code`.
Error one_error(std::vector<Error> findings, ErrorCode code, const std::string& message);

}  // namespace callboard::actors
