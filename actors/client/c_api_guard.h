// What stands between the client's C++ and callers that know no exceptions (c_api.h).
#pragma once

#include <cstdint>

#include "messages/base/error.h"

namespace callboard::actors {

/// Records the calling thread's last failure, for callboard_last_error(), and gives its number. Never throws: where its
/// text does not fit into memory, a fixed one stands for it.
std::int32_t set_last_error(const Error& error) noexcept;
/// The same for what was thrown; call it in a handler only.
std::int32_t set_last_error_of_exception() noexcept;
/// "" if there was none. Good until the thread's next failure.
const char* last_error_text() noexcept;

/// Runs `work`, which gives a Status. 0, or the number of its error; whatever it throws is an error too.
template <class Work>
std::int32_t guarded(Work work) noexcept {
  try {
    const Status status = work();
    return status ? 0 : set_last_error(status.error());
  } catch (...) {
    return set_last_error_of_exception();
  }
}

}  // namespace callboard::actors
