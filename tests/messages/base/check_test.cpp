#include "messages/base/check.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

namespace {

TEST_CASE("a check that holds does nothing") {
  CALLBOARD_CHECK(1 + 1 == 2, "arithmetic");
  SUCCEED();
}

TEST_CASE("a check that fails says what, where and why, and aborts") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(ends[1], STDERR_FILENO);
    CALLBOARD_CHECK(1 > 2, "one is less than two");
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char piece[256];
  for (ssize_t got = 0; (got = ::read(ends[0], piece, sizeof(piece))) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(text.find("1 > 2") != std::string::npos);
  CHECK(text.find("one is less than two") != std::string::npos);
  CHECK(text.find("check_test.cpp") != std::string::npos);
}

}  // namespace
