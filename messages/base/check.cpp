#include "messages/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace callboard {

void check_failed(const char* expression, const char* file, int line, const char* why) {
  // Plain stdio: the process is in an unknown state, the log may hold the lock that led here.
  std::fprintf(stderr, "check failed: %s (%s) at %s:%d\n", expression, why, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace callboard
