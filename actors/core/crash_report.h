// What a process says when it crashes.
#pragma once

#include <string>

namespace callboard::actors {

/// From now on a crash of this process (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) writes to standard error which signal
/// it was, whether the process itself or another one sent it, and the frames of the thread that it hit; then the
/// process ends by that signal, as it would have. Call it early, from the main thread: only that one has a stack of its
/// own for this, so only its stack overflow is told. Never fails. The handler allocates nothing and takes no lock of
/// ours; should the unwinder hang, the process ends after kCrashReportSeconds all the same.
void report_crashes();

inline constexpr unsigned kCrashReportSeconds = 3;

/// Does the last such report among these lines of a log say that another process sent the signal?
bool sent_by_another(const std::string& log);

}  // namespace callboard::actors
