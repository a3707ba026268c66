// CHECK ends the process on a programmer's error. Never use it on anything that came from outside
// (files, messages, arguments): those get an Error (base/error.h).
#pragma once

namespace callboard {
/// Prints what, where and why on stderr and aborts. Any thread.
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const char* why);
}  // namespace callboard

/// Like assert, but also in release builds. CALLBOARD_CHECK(invariant, "why it must hold").
#define CALLBOARD_CHECK(expression, why)                                                  \
  do {                                                                                    \
    if (!(expression)) ::callboard::check_failed(#expression, __FILE__, __LINE__, (why)); \
  } while (false)
