// Child processes: the only code that starts a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/base/clock.h"
#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::actors {

struct ProcessExit {
  bool signalled = false;
  std::int32_t code = 0;  ///< exit status, or the signal's number
  bool core_dumped = false;

  /// "exit status 3", "signal 9 (Killed)".
  std::string to_string() const;
  /// It is the program's own doing: an exit status, or a signal that a fault of its own raises (SIGSEGV, SIGABRT, …).
  /// Not one that others send (SIGKILL, SIGTERM): the next start may fare better.
  bool by_itself() const;
};

struct SpawnOptions {
  std::string program;                 ///< path; not searched for
  std::vector<std::string> arguments;  ///< without argv[0], which is `program`
  /// "NAME=value", the whole environment; see environment_with().
  std::vector<std::string> environment;
  /// (descriptor here, number there). Everything else above 2 is closed in the child.
  std::vector<std::pair<int, int>> fds;
  /// stdout and stderr are appended to it (0600). Empty: the child shares ours.
  std::string log_file;
  std::optional<int> oom_score_adj;  ///< -1000…1000; lowering it below ours may be refused, which is ignored
  bool new_session = false;          ///< else only a process group of its own
  /// SIGKILL when we end, whatever ends us. The kernel ties this to the *thread* that spawns, see spawn().
  bool die_with_parent = true;
};

/// A child that this process has not reaped yet. Its pid cannot be reused before that, so no signal meets a stranger.
/// Not thread-safe.
class Process {
 public:
  /// Starts by fork and exec; what fails in the child up to and including exec is an error here (kStartFailed, or
  /// kResourceExhausted where the machine has no process, memory or descriptor left). stdin is /dev/null; signal mask
  /// and handlers are the defaults. With die_with_parent on the main thread only (kInternal): a parent-death signal
  /// comes when the thread that spawned ends, even if the process lives on. The main thread lives as long as the
  /// process.
  static Result<Process> spawn(const SpawnOptions& options);

  /// Kills and reaps what is still running, with its process group.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::int64_t pid() const { return pid_; }
  /// Readable when the process has ended. Owned by this object.
  int pidfd() const { return pidfd_.get(); }
  bool reaped() const { return exit_.has_value(); }

  /// Nothing happens where it has ended already.
  void signal(int number) const noexcept;
  /// The process and everything in its group.
  void signal_group(int number) const noexcept;
  /// How it ended, if it has; then it is reaped, and what is left of its process group is killed.
  std::optional<ProcessExit> try_reap();
  /// Parks until it has ended or `deadline` has come.
  std::optional<ProcessExit> reap_until(TimePoint deadline);
  /// The last lines that this start of the program wrote to its log: at most `lines_max`, at most 8 KiB, as
  /// plain_text() makes it.
  std::string log_tail(std::size_t lines_max = 20) const;
  /// Leaves the process to itself: no kill, no reaping here.
  void detach() noexcept;

 private:
  Process() = default;
  void end() noexcept;

  std::int64_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ProcessExit> exit_;
  std::string log_file_;
  std::int64_t log_start_ = 0;  // size of the log when it was started
};

/// Our environment with these "NAME=value" entries put in or replaced.
std::vector<std::string> environment_with(const std::vector<std::string>& entries);

/// Orphans below us come to us from now on, instead of to init.
Status become_subreaper();
/// Reaps ended children that `ours` does not list (orphans that came to us). Returns how many.
std::size_t reap_orphans(const std::vector<std::int64_t>& ours);
/// Kills every child that we have, also the orphans that came to us, until none is left or `deadline` has come.
void kill_all_children(TimePoint deadline);

}  // namespace callboard::actors
