#include "messages/base/fd.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "tests/support/test.h"

namespace callboard {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }
int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST_CASE("a descriptor is closed with its owner") {
  int number = -1;
  {
    UniqueFd fd(open_null());
    number = fd.get();
    CHECK(is_open(number));
  }
  CHECK_FALSE(is_open(number));
}

TEST_CASE("moving hands the descriptor over and closes the one that is replaced") {
  UniqueFd a(open_null());
  UniqueFd b(open_null());
  const int of_a = a.get();
  const int of_b = b.get();
  b = std::move(a);
  CHECK_FALSE(a);
  CHECK(b.get() == of_a);
  CHECK(is_open(of_a));
  CHECK_FALSE(is_open(of_b));
  UniqueFd c(std::move(b));
  CHECK(c.get() == of_a);
  CHECK_FALSE(b);
}

TEST_CASE("release gives the descriptor away open") {
  UniqueFd fd(open_null());
  UniqueFd back(fd.release());
  CHECK_FALSE(fd);
  CHECK(is_open(back.get()));
}

TEST_CASE("reset keeps errno and does not close what it is given again") {
  UniqueFd fd(open_null());
  fd.reset(fd.get());
  CHECK(is_open(fd.get()));
  errno = EAGAIN;
  fd.reset();
  CHECK(errno == EAGAIN);
  CHECK_FALSE(fd);
}

}  // namespace
}  // namespace callboard
