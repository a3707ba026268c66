// Real children.
#include "actors/core/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::seconds;
using test::TempDir;

TimePoint soon() { return after(Clock::now(), seconds(20)); }

SpawnOptions shell(const std::string& script) {
  SpawnOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", script};
  options.environment = environment_with({});
  return options;
}

Process start(const SpawnOptions& options) {
  auto process = Process::spawn(options);
  REQUIRE(process);
  return std::move(*process);
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool exists(std::int64_t pid) { return ::kill(static_cast<pid_t>(pid), 0) == 0; }

/// A pipe whose reading end says EOF when the last process that holds the writing end has ended.
struct LifePipe {
  LifePipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  /// The bytes until then.
  std::string read_to_end() {
    write.reset();
    std::string text;
    char byte = 0;
    while (::read(read.get(), &byte, 1) == 1) text += byte;
    return text;
  }
  UniqueFd read;
  UniqueFd write;
};

TEST_CASE("exit codes, signals and core dumps are told apart") {
  const auto ended = [](const std::string& script) { return *start(shell(script)).reap_until(soon()); };
  CHECK(ended("exit 0").code == 0);
  const ProcessExit three = ended("exit 3");
  CHECK_FALSE(three.signalled);
  CHECK(three.code == 3);
  CHECK(three.to_string() == "exit status 3");
  const ProcessExit killed = ended("kill -KILL $$");
  CHECK(killed.signalled);
  CHECK(killed.code == SIGKILL);
  CHECK(killed.to_string() == "signal 9 (Killed)");
  CHECK(ended("kill -TERM $$").code == SIGTERM);
}

TEST_CASE("a process that runs has no exit; its pidfd becomes readable when it has one") {
  LifePipe pipe;
  SpawnOptions options = shell("read line <&5; exit 4");
  options.fds = {{pipe.read.get(), 5}};
  Process process = start(options);
  CHECK_FALSE(process.try_reap());
  CHECK_FALSE(process.reap_until(Clock::now()));
  CHECK(exists(process.pid()));
  pipe.write.reset();
  CHECK(process.reap_until(soon())->code == 4);
  CHECK(process.reaped());
  CHECK(process.try_reap()->code == 4);
  process.signal(SIGKILL);  // both without effect: the pid may be another's by now
  process.signal_group(SIGKILL);
}

TEST_CASE("what cannot be started is an error that says why") {
  SpawnOptions options = shell("");
  options.program = "/nonexistent/program";
  const auto missing = Process::spawn(options);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kStartFailed);
  CHECK(missing.error().message.find("/nonexistent/program") != std::string::npos);
  CHECK(missing.error().message.find("No such file") != std::string::npos);

  TempDir dir;
  std::ofstream(dir.file("not-executable")) << "text";
  options.program = dir.file("not-executable");
  CHECK(Process::spawn(options).error().code == ErrorCode::kStartFailed);

  options = shell("exit 0");
  options.log_file = dir.file("missing/log");
  CHECK(Process::spawn(options).error().message.find(options.log_file) != std::string::npos);
  options = shell("exit 0");
  options.fds = {{9'999, 5}};
  CHECK(Process::spawn(options).error().code == ErrorCode::kStartFailed);
}

TEST_CASE("a child has its log, nothing on stdin, the environment that it was given, and a group of its own") {
  TempDir dir;
  SpawnOptions options = shell("cat; echo out; echo err >&2; echo $NAME/$HOME");
  options.environment = {"NAME=value", "PATH=/usr/bin:/bin"};
  options.log_file = dir.file("log");
  Process process = start(options);
  REQUIRE(process.reap_until(soon())->code == 0);
  const std::string text = contents(dir.file("log"));
  CHECK(text.starts_with("out\nerr\nvalue/\n"));
  struct stat info = {};
  REQUIRE(::stat(dir.file("log").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);

  LifePipe pipe;
  SpawnOptions waits = shell("read line <&5");
  waits.fds = {{pipe.read.get(), 5}};
  Process waiting = start(waits);
  CHECK(::getpgid(static_cast<pid_t>(waiting.pid())) == waiting.pid());
  waits.new_session = true;
  Process leader = start(waits);
  CHECK(::getsid(static_cast<pid_t>(leader.pid())) == leader.pid());
}

TEST_CASE("environment_with replaces and adds") {
  ::setenv("CALLBOARD_TEST_A", "1", 1);
  ::setenv("CALLBOARD_TEST_AB", "2", 1);
  const auto entries = environment_with({"CALLBOARD_TEST_A=3", "CALLBOARD_TEST_C=4"});
  const auto count = [&](const std::string& text) { return std::count(entries.begin(), entries.end(), text); };
  CHECK(count("CALLBOARD_TEST_A=3") == 1);
  CHECK(count("CALLBOARD_TEST_A=1") == 0);
  CHECK(count("CALLBOARD_TEST_AB=2") == 1);
  CHECK(count("CALLBOARD_TEST_C=4") == 1);
}

TEST_CASE("R57: a child has no descriptor but those it was given") {
  TempDir dir;
  LifePipe pipe;
  UniqueFd leaky(::open("/dev/null", O_RDONLY));  // not close-on-exec, as some library would do it
  const int target = leaky.get();
  SpawnOptions options = shell("ls /proc/$$/fd");
  options.log_file = dir.file("log");
  options.fds = {{pipe.read.get(), target}, {pipe.write.get(), pipe.read.get()}};  // overlapping on purpose
  Process process = start(options);
  REQUIRE(process.reap_until(soon())->code == 0);
  std::istringstream listed(contents(dir.file("log")));
  std::vector<int> fds;
  for (int fd = 0; listed >> fd;) fds.push_back(fd);
  std::vector<int> wanted{0, 1, 2, target, pipe.read.get()};
  std::sort(fds.begin(), fds.end());
  std::sort(wanted.begin(), wanted.end());
  CHECK(fds == wanted);
}

TEST_CASE("a child starts with default signals, whatever ours are") {
  TempDir dir;
  sigset_t all;
  sigset_t old;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &old);
  const auto previous = ::signal(SIGPIPE, SIG_IGN);
  SpawnOptions options = shell("grep -E 'SigBlk|SigIgn' /proc/self/status");
  options.log_file = dir.file("log");
  Process process = start(options);
  const auto exit = process.reap_until(soon());
  ::signal(SIGPIPE, previous);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  REQUIRE(exit);
  CHECK(contents(dir.file("log")) == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_CASE("the oom score is raised where asked") {
  TempDir dir;
  SpawnOptions options = shell("cat /proc/self/oom_score_adj");
  options.log_file = dir.file("log");
  options.oom_score_adj = 777;
  REQUIRE(start(options).reap_until(soon()));
  CHECK(contents(dir.file("log")) == "777\n");
}

TEST_CASE("the tail of the log is this start's, bounded and printable") {
  TempDir dir;
  SpawnOptions options = shell("echo of an earlier start");
  options.log_file = dir.file("log");
  REQUIRE(start(options).reap_until(soon()));
  options = shell("for i in 1 2 3 4 5; do echo line $i; done; printf '\\377\\001 \\342\\200\\246 \\033[1m\\n\\n'");
  options.log_file = dir.file("log");
  Process process = start(options);
  REQUIRE(process.reap_until(soon()));
  CHECK(process.log_tail() == "line 1\nline 2\nline 3\nline 4\nline 5\n? … ");
  CHECK(process.log_tail(2) == "line 5\n? … ");
  CHECK(process.log_tail(0).empty());

  options = shell(
      "i=0; while [ $i -lt 400 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123; "
      "i=$((i+1)); done");
  options.log_file = dir.file("log");
  Process chatty = start(options);
  REQUIRE(chatty.reap_until(soon()));
  CHECK(chatty.log_tail(100'000).size() <= 8u << 10);
  CHECK(chatty.log_tail(3).size() == 3 * 65 - 1);

  options = shell("exit 0");
  options.log_file = dir.file("log");
  Process silent = start(options);
  REQUIRE(silent.reap_until(soon()));
  CHECK(silent.log_tail().empty());
}

TEST_CASE("signals reach the process, or the whole group") {
  LifePipe pipe;
  SpawnOptions options = shell("sleep 1000 & trap 'exit 9' TERM; echo >&5; wait");
  options.fds = {{pipe.write.get(), 5}};
  Process process = start(options);
  char ready = 0;
  REQUIRE(::read(pipe.read.get(), &ready, 1) == 1);
  process.signal(SIGTERM);
  CHECK(process.reap_until(soon())->code == 9);
  pipe.read_to_end();  // the helper in its group holds the pipe, too: it went with it
}

TEST_CASE("a process object that goes takes the process and its helpers with it") {
  LifePipe pipe;
  std::int64_t pid = 0;
  {
    SpawnOptions options = shell("sleep 1000 & wait");
    options.fds = {{pipe.write.get(), 5}};
    Process process = start(options);
    pid = process.pid();
    Process moved = std::move(process);
    CHECK(exists(pid));
  }
  CHECK_FALSE(exists(pid));
  pipe.read_to_end();
}

TEST_CASE("R79: another thread than the main one may not spawn: its children would die with it") {
  std::optional<Error> refused;
  std::thread([&] {
    const auto process = Process::spawn(shell("sleep 1000"));
    if (!process) refused = process.error();
  }).join();
  REQUIRE(refused);
  CHECK(refused->code == ErrorCode::kInternal);
  CHECK(refused->message.find("main") != std::string::npos);
}

TEST_CASE("R79: a child of the main thread outlives other threads of its parent") {
  LifePipe pipe;
  SpawnOptions options = shell("read line <&5; exit 6");
  options.fds = {{pipe.read.get(), 5}};
  Process process = start(options);
  std::thread([] {}).join();
  CHECK_FALSE(process.try_reap());
  pipe.write.reset();
  CHECK(process.reap_until(soon())->code == 6);
}

// Not a test of its own: this program as the process between the test below and its grandchild.
TEST_CASE("the middle process", "[.middle]") {
  SpawnOptions options = shell("echo $$ >&6; exec sleep 1000");
  options.fds = {{6, 6}};
  Process process = start(options);
  process.reap_until(after(Clock::now(), seconds(60)));
}

TEST_CASE("children end with their parent, whatever kills it") {
  LifePipe pipe;
  SpawnOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {"[.middle]"};
  options.environment = environment_with({});
  options.fds = {{pipe.write.get(), 6}};
  Process middle = start(options);
  std::string text;
  char byte = 0;
  while (::read(pipe.read.get(), &byte, 1) == 1 && byte != '\n') text += byte;
  const std::int64_t grandchild = std::stoll(text);
  CHECK(exists(grandchild));
  CHECK(::getpgid(static_cast<pid_t>(grandchild)) != ::getpgid(static_cast<pid_t>(middle.pid())));
  middle.signal(SIGKILL);
  REQUIRE(middle.reap_until(soon())->code == SIGKILL);
  pipe.read_to_end();  // comes to an end exactly when the grandchild has
}

TEST_CASE("orphans come to a subreaper, which reaps them and at the end kills them") {
  REQUIRE(become_subreaper());
  LifePipe pipe;
  SpawnOptions options = shell("setsid sh -c 'echo >&5; sleep 1000' & read line <&6; exit 0");
  LifePipe go_on;
  options.fds = {{pipe.write.get(), 5}, {go_on.read.get(), 6}};
  Process process = start(options);
  char ready = 0;
  REQUIRE(::read(pipe.read.get(), &ready, 1) == 1);
  go_on.write.reset();
  REQUIRE(process.reap_until(soon())->code == 0);
  kill_all_children(soon());
  pipe.read_to_end();

  SpawnOptions short_lived = shell("setsid sh -c 'read line <&6; exit 5' 5>&- & echo >&5; exit 0");
  LifePipe started;
  LifePipe end;
  short_lived.fds = {{started.write.get(), 5}, {end.read.get(), 6}};
  Process parent = start(short_lived);
  REQUIRE(parent.reap_until(soon())->code == 0);
  CHECK(reap_orphans({}) == 0);
  end.write.reset();
  siginfo_t info = {};
  REQUIRE(::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0);
  CHECK(reap_orphans({info.si_pid}) == 0);  // one of ours is left to its owner
  CHECK(reap_orphans({}) == 1);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace callboard::actors
