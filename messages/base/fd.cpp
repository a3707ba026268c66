#include "messages/base/fd.h"

#include <cerrno>
#include <unistd.h>

namespace callboard {

void UniqueFd::reset(int fd) noexcept {
  const int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  const int saved = errno;
  // Linux has closed the descriptor even where it answers EINTR: a second try could close somebody else's.
  ::close(old);
  errno = saved;
}

}  // namespace callboard
