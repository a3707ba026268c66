#include "actors/core/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "messages/base/log.h"
#include "messages/base/plain_text.h"

extern char** environ;  // NOLINT: POSIX wants it declared by the program

namespace callboard::actors {
namespace {

constexpr std::array kOwnFaults{SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS};
constexpr std::size_t kLogTailBytesMax = 8u << 10;
constexpr int kLowestSpareFd = 64;  // above every number that a caller asks for in the child

// Not in every libc that we build with.
int pidfd_open(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0u)); }
int pidfd_send_signal(int fd, int number) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, fd, number, nullptr, 0u));
}

std::string errno_text(int number) {
  return std::string(::strerror(number)) + " (errno " + std::to_string(number) + ")";
}

Error spawn_error(const std::string& program, const std::string& step, int number) {
  const bool exhausted = number == EAGAIN || number == ENOMEM || number == EMFILE || number == ENFILE;
  Error error(exhausted ? ErrorCode::kResourceExhausted : ErrorCode::kStartFailed,
              "'" + program + "' could not be started: " + step + ": " + errno_text(number));
  if (number == ENOENT) error.hint = "check that the program is installed";
  if (number == EACCES) error.hint = "check that the file may be executed";
  if (exhausted) error.hint = "check the limits of processes, memory and open files (ulimit -a)";
  return error;
}

/// Everything the child needs, laid out before the fork: afterwards only async-signal-safe calls are allowed.
struct ChildPlan {
  const char* program = nullptr;
  char* const* argv = nullptr;
  char* const* envp = nullptr;
  const std::pair<int, int>* fds = nullptr;
  int* spare_fds = nullptr;  // room for one number each
  std::size_t fd_count = 0;
  int null_fd = -1;
  int log_fd = -1;
  int report_fd = -1;
  const char* oom_score = nullptr;
  bool new_session = false;
  bool die_with_parent = true;
  pid_t parent = -1;
  int fd_limit = 1'024;
};

struct ChildFailure {
  char step[40] = {};
  int number = 0;
};

[[noreturn]] void child_fails(int report_fd, const char* step) {
  ChildFailure failure;
  failure.number = errno;
  for (std::size_t i = 0; step[i] != '\0' && i + 1 < sizeof failure.step; ++i) failure.step[i] = step[i];
  [[maybe_unused]] const auto written = ::write(report_fd, &failure, sizeof failure);
  ::_exit(127);
}

void reset_signals() {
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  // exec resets handlers but keeps what is ignored.
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &defaults, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void place_fds(const ChildPlan& plan, int report_fd) {
  // First out of the way of all wanted numbers, then to them: the pairs may overlap.
  for (std::size_t i = 0; i < plan.fd_count; ++i) {
    plan.spare_fds[i] = ::fcntl(plan.fds[i].first, F_DUPFD_CLOEXEC, kLowestSpareFd);
    if (plan.spare_fds[i] < 0) child_fails(report_fd, "duplicating a descriptor");
  }
  const int null_fd = ::fcntl(plan.null_fd, F_DUPFD_CLOEXEC, kLowestSpareFd);
  const int log_fd = plan.log_fd < 0 ? -1 : ::fcntl(plan.log_fd, F_DUPFD_CLOEXEC, kLowestSpareFd);
  if (null_fd < 0 || ::dup2(null_fd, STDIN_FILENO) < 0) child_fails(report_fd, "redirecting stdin");
  if (plan.log_fd >= 0 && (::dup2(log_fd, STDOUT_FILENO) < 0 || ::dup2(log_fd, STDERR_FILENO) < 0)) {
    child_fails(report_fd, "redirecting stdout and stderr");
  }
  // Ours are opened close-on-exec; this is for what a library opened otherwise.
  if (::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) != 0) {
    for (int fd = 3; fd < plan.fd_limit; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  for (std::size_t i = 0; i < plan.fd_count; ++i) {
    if (::dup2(plan.spare_fds[i], plan.fds[i].second) < 0) child_fails(report_fd, "placing a descriptor");
  }
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  const int report_fd = ::fcntl(plan.report_fd, F_DUPFD_CLOEXEC, kLowestSpareFd);
  if (report_fd < 0) child_fails(plan.report_fd, "duplicating a descriptor");
  if (plan.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) child_fails(report_fd, "arming the parent-death signal");
    // The parent may have ended before that call.
    if (::getppid() != plan.parent) ::_exit(127);
  }
  reset_signals();
  if (plan.new_session ? ::setsid() < 0 : ::setpgid(0, 0) != 0) child_fails(report_fd, "making a process group");
  if (plan.oom_score != nullptr) {
    const int fd = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const auto written = ::write(fd, plan.oom_score, ::strlen(plan.oom_score));
    ::close(fd);
  }
  place_fds(plan, report_fd);
  ::execve(plan.program, plan.argv, plan.envp);
  child_fails(report_fd, "exec");
}

std::vector<char*> pointers_to(const std::vector<std::string>& strings, const std::string* first = nullptr) {
  std::vector<char*> pointers;
  if (first != nullptr) pointers.push_back(const_cast<char*>(first->c_str()));  // exec's signature is older than const
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int fd_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1'024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65'536));
}

ProcessExit decode(const siginfo_t& info) {
  ProcessExit result;
  result.signalled = info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED;
  result.core_dumped = info.si_code == CLD_DUMPED;
  result.code = info.si_status;
  return result;
}

template <class Call>
auto retry_eintr(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// An unreaped child by its pid: waitid on a pidfd is newer than some kernels' headers.
bool wait_child(pid_t pid, int options, siginfo_t& info) {
  info = {};
  return retry_eintr([&] { return ::waitid(P_PID, static_cast<id_t>(pid), &info, options); }) == 0 && info.si_pid != 0;
}

void wait_readable(int fd, TimePoint deadline) {
  while (true) {
    const TimePoint now = Clock::now();
    if (now >= deadline) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
    pollfd entry{fd, POLLIN, 0};
    const int timeout = static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
    const int ready = ::poll(&entry, 1, deadline == kNever ? -1 : timeout);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;
  }
}

}  // namespace

std::string ProcessExit::to_string() const {
  if (!signalled) return "exit status " + std::to_string(code);
  const char* name = ::strsignal(code);
  return "signal " + std::to_string(code) + " (" + (name != nullptr ? name : "unknown") + ")" +
         (core_dumped ? ", core dumped" : "");
}

bool ProcessExit::by_itself() const {
  return !signalled || std::find(kOwnFaults.begin(), kOwnFaults.end(), code) != kOwnFaults.end();
}

Result<Process> Process::spawn(const SpawnOptions& options) {
  if (options.die_with_parent && ::syscall(SYS_gettid) != ::getpid()) {
    return fail(ErrorCode::kInternal,
                "'" + options.program + "' was to be started from a thread that is not the main one",
                "its parent-death signal would come when that thread ends");
  }
  Process process;
  UniqueFd null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd) return fail(spawn_error(options.program, "opening /dev/null", errno));
  UniqueFd log_fd;
  if (!options.log_file.empty()) {
    log_fd.reset(::open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!log_fd) return fail(spawn_error(options.program, "opening its log file '" + options.log_file + "'", errno));
    struct stat info = {};
    if (::fstat(log_fd.get(), &info) == 0) process.log_start_ = info.st_size;
    process.log_file_ = options.log_file;
  }
  std::array<int, 2> pipe_ends{-1, -1};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return fail(spawn_error(options.program, "making a pipe", errno));
  UniqueFd report_read(pipe_ends[0]);
  UniqueFd report_write(pipe_ends[1]);

  const std::vector<char*> argv = pointers_to(options.arguments, &options.program);
  const std::vector<char*> envp = pointers_to(options.environment);
  std::vector<int> spare_fds(options.fds.size());
  const std::string oom_score = options.oom_score_adj ? std::to_string(*options.oom_score_adj) : std::string();
  ChildPlan plan;
  plan.program = options.program.c_str();
  plan.argv = argv.data();
  plan.envp = envp.data();
  plan.fds = options.fds.data();
  plan.spare_fds = spare_fds.data();
  plan.fd_count = options.fds.size();
  plan.null_fd = null_fd.get();
  plan.log_fd = log_fd.get();
  plan.report_fd = report_write.get();
  plan.oom_score = options.oom_score_adj ? oom_score.c_str() : nullptr;
  plan.new_session = options.new_session;
  plan.die_with_parent = options.die_with_parent;
  plan.parent = ::getpid();
  plan.fd_limit = fd_limit();

  const pid_t pid = ::fork();
  if (pid == 0) run_child(plan);
  if (pid < 0) return fail(spawn_error(options.program, "fork", errno));
  process.pid_ = pid;
  report_write.reset();
  process.pidfd_.reset(pidfd_open(pid));
  if (!process.pidfd_) return fail(spawn_error(options.program, "opening a pidfd", errno));  // ~Process kills it

  ChildFailure failure;
  const auto got = retry_eintr([&] { return ::read(report_read.get(), &failure, sizeof failure); });
  if (got != 0) {  // the pipe is empty exactly when exec closed it
    process.reap_until(after(Clock::now(), std::chrono::seconds(1)));
    return fail(spawn_error(options.program, failure.step, failure.number));
  }
  return process;
}

Process::~Process() { end(); }

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      exit_(other.exit_),
      log_file_(std::move(other.log_file_)),
      log_start_(other.log_start_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    exit_ = other.exit_;
    log_file_ = std::move(other.log_file_);
    log_start_ = other.log_start_;
  }
  return *this;
}

void Process::end() noexcept {
  if (pid_ < 0 || exit_) return;
  ::kill(static_cast<pid_t>(-pid_), SIGKILL);
  ::kill(static_cast<pid_t>(pid_), SIGKILL);  // not in its group yet, if it was still before setpgid
  siginfo_t info;
  wait_child(static_cast<pid_t>(pid_), WEXITED, info);
  pid_ = -1;
}

void Process::signal(int number) const noexcept {
  if (pid_ >= 0 && !exit_) pidfd_send_signal(pidfd_.get(), number);
}

void Process::signal_group(int number) const noexcept {
  // The group's number is the pid, which is not free for others as long as the process is not reaped.
  if (pid_ >= 0 && !exit_ && ::kill(static_cast<pid_t>(-pid_), number) != 0) pidfd_send_signal(pidfd_.get(), number);
}

std::optional<ProcessExit> Process::try_reap() {
  if (pid_ < 0 || exit_) return exit_;
  siginfo_t info;
  if (!wait_child(static_cast<pid_t>(pid_), WEXITED | WNOHANG | WNOWAIT, info)) return std::nullopt;
  exit_ = decode(info);
  ::kill(static_cast<pid_t>(-pid_), SIGKILL);  // before the reaping frees the number
  wait_child(static_cast<pid_t>(pid_), WEXITED | WNOHANG, info);
  return exit_;
}

std::optional<ProcessExit> Process::reap_until(TimePoint deadline) {
  if (pid_ >= 0 && !exit_) wait_readable(pidfd_.get(), deadline);
  return try_reap();
}

std::string Process::log_tail(std::size_t lines_max) const {
  std::ifstream file(log_file_, std::ios::binary | std::ios::ate);
  if (log_file_.empty() || !file) return {};
  const auto size = static_cast<std::int64_t>(file.tellg());
  const std::int64_t begin = std::max(log_start_, size - static_cast<std::int64_t>(kLogTailBytesMax));
  if (begin >= size) return {};
  std::string text(static_cast<std::size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t first = text.size();
  for (std::size_t lines = 0; lines < lines_max && first != 0; ++lines) {
    const std::size_t newline = text.rfind('\n', first - 1);
    first = newline == std::string::npos ? 0 : newline;
  }
  if (first < text.size() && text[first] == '\n') ++first;
  return plain_text(std::string_view(text).substr(first), kLogTailBytesMax);
}

void Process::detach() noexcept { pid_ = -1; }

std::vector<std::string> environment_with(const std::vector<std::string>& entries) {
  std::vector<std::string> result = entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(entries.begin(), entries.end(), [&](const std::string& own) {
      return std::string_view(own).substr(0, name.size()) == name;
    });
    if (!replaced) result.emplace_back(text);
  }
  return result;
}

Status become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0) return {};
  return fail(ErrorCode::kEnvironment, "the kernel refused to make this process a subreaper: " + errno_text(errno));
}

std::size_t reap_orphans(const std::vector<std::int64_t>& ours) {
  std::size_t count = 0;
  while (true) {
    siginfo_t info = {};
    if (retry_eintr([&] { return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT); }) != 0 || info.si_pid == 0) {
      return count;
    }
    // One of ours hides the orphans behind it until its Process object has reaped it; its end wakes the loop again.
    if (std::find(ours.begin(), ours.end(), info.si_pid) != ours.end()) return count;
    if (wait_child(info.si_pid, WEXITED | WNOHANG, info)) ++count;
  }
}

void kill_all_children(TimePoint deadline) {
  while (Clock::now() < deadline) {
    const std::string path = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
    std::ifstream list(path);
    std::vector<pid_t> pids;
    for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
    if (pids.empty()) return;
    for (const pid_t pid : pids) {
      // A child cannot be reaped by anyone but us: the number is its own between the listing and the kill.
      ::kill(pid, SIGKILL);
      UniqueFd fd(pidfd_open(pid));
      if (fd) wait_readable(fd.get(), deadline);
      siginfo_t info;
      wait_child(pid, WEXITED | WNOHANG, info);
    }
  }
}

}  // namespace callboard::actors
