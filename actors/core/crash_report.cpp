#include "actors/core/crash_report.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace callboard::actors {
namespace {

/// With the line above them they fit into the tail that an exit report carries (Process::log_tail).
constexpr int kFramesShown = 12;
constexpr int kFramesOfOurs = 2;  // the handler, and what calls it
constexpr const char* kReportBegin = "crash: ";
constexpr const char* kSentBy = " sent by process ";
constexpr std::array kCrashSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

volatile sig_atomic_t crashed_by = 0;

/// printf is not to be called in a signal handler.
class SafeLine {
 public:
  SafeLine& text(const char* words) {
    for (; *words != '\0' && used_ < line_.size(); ++words) line_[used_++] = *words;
    return *this;
  }
  SafeLine& number(std::uint64_t value, unsigned base) {
    std::array<char, 24> digits{};
    std::size_t count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (count > 0 && used_ < line_.size()) line_[used_++] = digits[--count];
    return *this;
  }
  void write() const {
    std::size_t done = 0;
    while (done < used_) {
      const ssize_t n = ::write(STDERR_FILENO, line_.data() + done, used_ - done);
      if (n <= 0) return;
      done += static_cast<std::size_t>(n);
    }
  }

 private:
  std::array<char, 200> line_{};
  std::size_t used_ = 0;
};

const char* name_of(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

void end_by(int number) {
  ::signal(number, SIG_DFL);
  ::kill(::getpid(), number);
}

void gave_up(int) { end_by(crashed_by); }

void crashed(int number, siginfo_t* info, void*) {
  ::signal(number, SIG_DFL);  // a second crash, in here too, ends the process
  crashed_by = number;
  ::signal(SIGALRM, gave_up);
  ::alarm(kCrashReportSeconds);
  // Codes of what the kernel found are positive; of what a process sent, this one or another, they are not.
  const bool was_sent = info->si_code <= 0;
  const bool by_another = was_sent && info->si_pid != ::getpid();
  SafeLine line;
  line.text(kReportBegin).text(name_of(number));
  if (by_another) {
    line.text(kSentBy).number(static_cast<std::uint64_t>(info->si_pid), 10);
  } else if (!was_sent) {
    line.text(" at address 0x").number(reinterpret_cast<std::uintptr_t>(info->si_addr), 16);
  }
  line.text("; the thread was in:\n").write();
  std::array<void*, kFramesShown + kFramesOfOurs> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  if (count > kFramesOfOurs)
    ::backtrace_symbols_fd(frames.data() + kFramesOfOurs, count - kFramesOfOurs, STDERR_FILENO);
  // What the kernel found it finds again when this returns, with the same facts for a core dump.
  if (was_sent) ::raise(number);
}

}  // namespace

void report_crashes() {
  std::array<void*, 1> first{};
  ::backtrace(first.data(), 1);  // loads the unwinder now: not in a handler
  alignas(16) static std::array<std::byte, 64 * 1024> stack;
  stack_t own{};
  own.ss_sp = stack.data();
  own.ss_size = stack.size();
  ::sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_sigaction = crashed;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  for (const int number : kCrashSignals) ::sigaction(number, &action, nullptr);
}

bool sent_by_another(const std::string& log) {
  const std::size_t begin = log.rfind(kReportBegin);
  if (begin == std::string::npos || (begin > 0 && log[begin - 1] != '\n')) return false;
  return log.substr(begin, log.find('\n', begin) - begin).find(kSentBy) != std::string::npos;
}

}  // namespace callboard::actors
