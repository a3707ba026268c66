#include "tools/callboard/signals.h"

#include <csignal>
#include <cerrno>
#include <cstring>

#include <sys/signalfd.h>
#include <unistd.h>

namespace callboard::cli {

Result<StopSignals> StopSignals::take() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  StopSignals signals;
  signals.fd_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_)
    return fail(ErrorCode::kResourceExhausted, std::string("no signal descriptor: ") + std::strerror(errno));
  return signals;
}

int StopSignals::read_count() const {
  int count = 0;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) ++count;
  return count;
}

}  // namespace callboard::cli
