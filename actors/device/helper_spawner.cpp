#include "actors/device/helper_spawner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <optional>

#include "actors/core/process.h"
#include "messages/base/log.h"
#include "messages/base/own_program.h"

namespace callboard::actors {
namespace {

class Helper final : public kernels::HelperProcess {
 public:
  explicit Helper(Process process) : process_(std::move(process)) {}
  std::int64_t pid() const override { return process_.pid(); }
  int pidfd() const override { return process_.pidfd(); }
  void kill() noexcept override { process_.signal_group(SIGKILL); }
  std::string how_it_ended(TimePoint deadline) override {
    const auto exit = process_.reap_until(deadline);
    return exit ? exit->to_string() : std::string();
  }

 private:
  Process process_;
};

Error closing() { return Error(ErrorCode::kActorUnavailable, "the device is shutting down and starts no process"); }

}  // namespace

struct HelperSpawner::Request {
  explicit Request(const Fds& wanted) : fds(wanted) {}

  const Fds& fds;
  std::condition_variable done;
  std::optional<Result<std::unique_ptr<kernels::HelperProcess>>> outcome;  // guarded by the spawner's mutex
};

Result<std::unique_ptr<kernels::HelperProcess>> HelperSpawner::start(const std::string& program, const Fds& fds,
                                                                     bool die_with_parent) {
  SpawnOptions options;
  options.program = program;
  options.arguments = {"--gil-domain"};
  options.environment = environment_with({});
  options.fds = fds;
  options.die_with_parent = die_with_parent;
  CALLBOARD_ASSIGN(Process process, Process::spawn(options));
  return std::make_unique<Helper>(std::move(process));
}

HelperSpawner::HelperSpawner(std::string program)
    : program_(program.empty() ? own_program() : std::move(program)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<kernels::HelperProcess>> HelperSpawner::spawn(const Fds& fds) {
  if (std::this_thread::get_id() == main_) return start(program_, fds);
  const auto request = std::make_shared<Request>(fds);
  std::unique_lock lock(mutex_);
  if (closed_) return fail(closing());
  waiting_.push_back(request);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  request->done.wait(lock, [&] { return request->outcome.has_value(); });  // close() ends it, too
  return std::move(*request->outcome);
}

void HelperSpawner::serve_waiting() {
  std::unique_lock lock(mutex_);
  while (!waiting_.empty()) {
    const std::shared_ptr<Request> request = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    auto started = start(program_, request->fds);  // whoever asked waits, so its descriptors are there
    lock.lock();
    request->outcome = std::move(started);
    request->done.notify_all();
  }
}

void HelperSpawner::serve_until(const sigset_t& signals) {
  const UniqueFd signalled(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signalled || !wake_) {
    // Without descriptors the device still ends when it is told to.
    log::error("no_spawning", "no signalfd or eventfd: helper processes that end are not replaced");
    close();
    int signal = 0;
    while (::sigwait(&signals, &signal) != 0) {
    }
    return;
  }
  for (;;) {
    std::array<pollfd, 2> watched{{{signalled.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    signalfd_siginfo info{};
    if (::read(signalled.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) break;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    serve_waiting();
  }
  close();
}

void HelperSpawner::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (const auto& request : waiting_) {
    request->outcome = Result<std::unique_ptr<kernels::HelperProcess>>(fail(closing()));
    request->done.notify_all();
  }
  waiting_.clear();
}

}  // namespace callboard::actors
