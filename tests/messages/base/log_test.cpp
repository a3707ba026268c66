#include "messages/base/log.h"

#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "messages/base/fd.h"
#include "tests/support/test.h"

namespace callboard {
namespace {

/// Runs `body` with stderr going to memory; gives what was written.
template <class Body>
std::string captured_stderr(Body body) {
  const UniqueFd memory(::memfd_create("log", MFD_CLOEXEC));
  const UniqueFd saved(::dup(STDERR_FILENO));
  ::dup2(memory.get(), STDERR_FILENO);
  body();
  ::dup2(saved.get(), STDERR_FILENO);
  std::string text(static_cast<std::size_t>(::lseek(memory.get(), 0, SEEK_END)), '\0');
  const ssize_t got = ::pread(memory.get(), text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

TEST_CASE("an event is one line with level, name, event and text, also before start") {
  const std::string text = captured_stderr([] { log::info("fragment_loaded", "program=abc nodes=3"); });
  CHECK(text.find(" info callboard fragment_loaded program=abc nodes=3\n") != std::string::npos);
  log::start("cpu0#1 100%v", log::Level::kDebug);
  const std::string later = captured_stderr([] { log::debug("beat", ""); });
  CHECK(later.find(" debug cpu0#1 100%v beat\n") != std::string::npos);
  CHECK(later.find('T') == 10);
}

TEST_CASE("what a peer sent cannot begin a line of its own or hide one") {
  log::start("cpu0#1", log::Level::kInfo);
  const std::string text = captured_stderr([] { log::warning("refused", "name=a\n2026 info x\r\x1b[2J é {} %v"); });
  CHECK(text.find("refused name=a\\n2026 info x\\x0d\\x1b[2J é {} %v\n") != std::string::npos);
  CHECK(text.find('\n') == text.size() - 1);
}

TEST_CASE("events below the level are left out") {
  log::start("cpu0#1", log::Level::kWarning);
  const std::string text = captured_stderr([] {
    log::info("quiet", "x");
    log::error("loud", "y");
  });
  CHECK(text.find("quiet") == std::string::npos);
  CHECK(text.find(" error cpu0#1 loud y\n") != std::string::npos);
}

}  // namespace
}  // namespace callboard
