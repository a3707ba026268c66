#include "actors/core/crash_report.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

#include "actors/core/process.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

constexpr int kReadyFd = 6;

Process crash(const std::string& how, const std::string& log, int ready = -1) {
  SpawnOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {"[.crash_" + how + "]"};
  options.environment = environment_with({});
  options.log_file = log;
  if (ready >= 0) options.fds = {{ready, kReadyFd}};
  auto process = Process::spawn(options);
  REQUIRE(process);
  return std::move(*process);
}

TimePoint in_a_minute() { return after(Clock::now(), std::chrono::seconds(60)); }

}  // namespace

// Not tests of their own: this program as the process that crashes. Catch2 has put its own handlers there, which go.
TEST_CASE("reads where nothing is", "[.crash_read]") {
  report_crashes();
  void* const nothing = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const volatile int value = *static_cast<volatile int*>(nothing);
  (void)value;
}
TEST_CASE("aborts", "[.crash_abort]") {
  report_crashes();
  std::abort();
}
TEST_CASE("waits to be killed", "[.crash_wait]") {
  report_crashes();
  REQUIRE(::write(kReadyFd, "r", 1) == 1);
  ::pause();
}

TEST_CASE("the sender is read from the last report, and from nothing that only looks like one") {
  const std::string sent = "crash: SIGSEGV sent by process 7; the thread was in:\nlibc.so.6[0x1]";
  CHECK(sent_by_another(sent));
  CHECK(sent_by_another("starting\n" + sent));
  CHECK(sent_by_another("crash: SIGABRT; the thread was in:\n" + sent));
  CHECK_FALSE(sent_by_another(sent + "\ncrash: SIGABRT; the thread was in:\n[0x1]"));
  CHECK_FALSE(sent_by_another("crash: SIGSEGV at address 0x0; the thread was in:\nf sent by process 7"));
  CHECK_FALSE(sent_by_another("a kernel says crash: SIGSEGV sent by process 7"));
  CHECK_FALSE(sent_by_another(""));
}

TEST_CASE("a crash tells its signal, its address and its frames, and ends the process as it would have") {
  const test::TempDir folder;
  Process process = crash("read", folder.file("log"));
  const auto exit = process.reap_until(in_a_minute());
  REQUIRE(exit);
  CHECK(exit->signalled);
  CHECK(exit->code == SIGSEGV);
  const std::string told = process.log_tail();
  INFO(told);
  CHECK(told.find("crash: SIGSEGV at address 0x") != std::string::npos);
  CHECK(told.find("[0x") != std::string::npos);
}

TEST_CASE("an abort is the process's own") {
  const test::TempDir folder;
  Process process = crash("abort", folder.file("log"));
  const auto exit = process.reap_until(in_a_minute());
  REQUIRE(exit);
  CHECK(exit->code == SIGABRT);
  CHECK(process.log_tail().find("crash: SIGABRT; the thread was in:") != std::string::npos);
}

TEST_CASE("a signal of another process is told as that") {
  const test::TempDir folder;
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  Process process = crash("wait", folder.file("log"), write_end.get());
  write_end.reset();
  char ready = 0;
  REQUIRE(::read(read_end.get(), &ready, 1) == 1);
  process.signal(SIGSEGV);
  const auto exit = process.reap_until(in_a_minute());
  REQUIRE(exit);
  CHECK(exit->code == SIGSEGV);
  CHECK(process.log_tail().find("crash: SIGSEGV sent by process " + std::to_string(::getpid())) != std::string::npos);
}

}  // namespace callboard::actors
