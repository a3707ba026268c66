#include "kernels/memory/lost_pages.h"

#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "kernels/memory/pages.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kWatchedMax = 1'024;

/// Read by the handler at any moment: atomics only, and `start` is set last and cleared first.
struct Watched {
  std::atomic<std::uintptr_t> start{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lost{false};
  bool taken = false;  // guarded by watched_mutex
};

std::mutex watched_mutex;
std::array<Watched, kWatchedMax> watched;
struct sigaction before = {};  // set once, before the handler can run
std::uintptr_t page_mask = 0;  // likewise

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "a signal handler takes no locks");

/// Only what may be called in a handler of a fault: atomics, mmap (a bare system call) and sigaction.
void on_lost_page(int, siginfo_t* info, void*) {
  const int error = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Watched& entry : watched) {
    const std::uintptr_t start = entry.start.load(std::memory_order_acquire);
    const std::uintptr_t end = entry.end.load(std::memory_order_relaxed);
    if (start == 0 || address < start || address >= end) continue;
    // First: who reads the zeros must find it set.
    entry.lost.store(true, std::memory_order_seq_cst);
    const std::uintptr_t page = address & page_mask;
    void* const zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) break;
    errno = error;
    return;
  }
  // Not ours: the instruction runs again, and faults into whatever was there before us.
  ::sigaction(SIGBUS, &before, nullptr);
  errno = error;
}

Status install() {
  page_mask = ~(static_cast<std::uintptr_t>(page_bytes()) - 1);
  struct sigaction action = {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, nullptr, &before) == 0 && ::sigaction(SIGBUS, &action, nullptr) == 0) return {};
  return fail(ErrorCode::kEnvironment, std::string("cannot handle SIGBUS: ") + std::strerror(errno));
}

}  // namespace

Result<std::size_t> watch_lost_pages(void* mapping, std::uint64_t bytes) {
  std::lock_guard lock(watched_mutex);
  static const Status installed = install();
  CALLBOARD_TRY(Status(installed));
  for (std::size_t i = 0; i < watched.size(); ++i) {
    Watched& entry = watched[i];
    if (entry.taken) continue;
    const auto start = reinterpret_cast<std::uintptr_t>(mapping);
    entry.taken = true;
    entry.lost.store(false, std::memory_order_relaxed);
    entry.end.store(start + round_to_pages(bytes), std::memory_order_relaxed);
    entry.start.store(start, std::memory_order_release);
    return i + 1;
  }
  return fail(ErrorCode::kResourceExhausted,
              "more than " + std::to_string(kWatchedMax) + " files of weights are mapped in this process",
              "unload programs that are no longer used, or put their weights into fewer files");
}

void unwatch_lost_pages(std::size_t watch) noexcept {
  if (watch == 0) return;
  std::lock_guard lock(watched_mutex);
  Watched& entry = watched[watch - 1];
  entry.start.store(0, std::memory_order_release);
  entry.taken = false;
}

bool has_lost_pages(std::size_t watch) noexcept {
  return watch != 0 && watched[watch - 1].lost.load(std::memory_order_seq_cst);
}

}  // namespace callboard::kernels
