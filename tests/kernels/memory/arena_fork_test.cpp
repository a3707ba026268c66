#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <iostream>

#include "kernels/memory/arena.h"
#include "tests/support/test.h"

namespace callboard::kernels {
namespace {

constexpr std::size_t kBytes = 1u << 20;

#if defined(CALLBOARD_SANITIZED_THREAD)
constexpr bool kForkTested = false;
#else
constexpr bool kForkTested = true;
#endif

/// True if this build cannot fork: ThreadSanitizer does not follow a child of a process with threads.
bool skipped() {
  if (!kForkTested) std::cout << "skipped: ThreadSanitizer does not support going on after a fork\n";
  return !kForkTested;
}

/// Forks as the registered handlers do and gives the child's exit code: what `child` returned.
int in_child(Arena& arena, const std::function<int()>& child) {
  arena.fork_prepare();
  const pid_t pid = ::fork();
  if (pid == 0) {
    arena.fork_child();
    ::_exit(child());
  }
  arena.fork_parent();
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_CASE("AR-5: what a forked child writes stays in the child") {
  if (skipped()) return;
  Arena& arena = **Arena::create({.owner = {"cpu0", 1}}, {});
  auto* first = static_cast<char*>(*arena.allocate(kBytes));
  auto* second = static_cast<char*>(*arena.allocate(80 * kBytes));  // a segment of its own
  std::memset(first, 1, kBytes);
  std::memset(second, 2, 80 * kBytes);
  const int outcome = in_child(arena, [&] {
    if (first[5] != 1 || second[5] != 2) return 1;
    std::memset(first, 7, kBytes);
    std::memset(second, 7, 80 * kBytes);
    return first[5] == 7 && second[79 * kBytes] == 7 ? 0 : 2;
  });
  REQUIRE(outcome == 0);
  for (std::size_t i = 0; i < kBytes; i += 512) REQUIRE(first[i] == 1);
  for (std::size_t i = 0; i < 80 * kBytes; i += 4096) REQUIRE(second[i] == 2);
}

TEST_CASE("AR-5: a forked child neither allocates nor frees nor leases, and the parent does not notice it") {
  if (skipped()) return;
  Arena& arena = **Arena::create({.owner = {"cpu0", 1}}, {});
  void* block = *arena.allocate(kBytes);
  const auto handle = arena.lease(block, {"client", 1});
  const int outcome = in_child(arena, [&] {
    const auto refused = arena.allocate(kBytes);
    if (refused || refused.error().code != ErrorCode::kEnvironment) return 1;
    arena.deallocate(block);
    int elsewhere = 0;
    arena.deallocate(&elsewhere);  // whatever it is: a child's destructors must not fail
    if (arena.find(block) || arena.lease(block, {"client", 1})) return 2;
    if (arena.release(handle->lease) || arena.holder_gone({"client", 1}) != 0) return 3;
    arena.trim();
    return 0;
  });
  REQUIRE(outcome == 0);
  REQUIRE(arena.find(block));
  REQUIRE(arena.stats().leases == 1);
  REQUIRE(arena.release(handle->lease));
  arena.deallocate(block);
  REQUIRE(arena.stats().in_use_bytes == 0);
}

TEST_CASE("AR-5: a child of a child does not reach the pages either") {
  if (skipped()) return;
  Arena& arena = **Arena::create({.owner = {"cpu0", 1}}, {});
  auto* block = static_cast<char*>(*arena.allocate(kBytes));
  std::memset(block, 1, kBytes);
  const int outcome = in_child(arena, [&] {
    block[0] = 2;
    arena.fork_prepare();
    const pid_t pid = ::fork();
    if (pid == 0) {
      arena.fork_child();
      block[1] = 3;
      ::_exit(0);
    }
    arena.fork_parent();
    ::waitpid(pid, nullptr, 0);
    return block[1] == 1 ? 0 : 1;
  });
  REQUIRE(outcome == 0);
  REQUIRE(block[0] == 1);
}

}  // namespace
}  // namespace callboard::kernels
