#include "tools/callboard/log_lines.h"

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::cli;

using Lines = std::vector<std::string>;

TEST_CASE("whole lines are taken, the rest waits for its end") {
  std::string text = "one\ntwo\r\nthr";
  CHECK(take_lines(text) == Lines{"one", "two"});
  CHECK(text == "thr");
  text += "ee\n\n";
  CHECK(take_lines(text) == Lines{"three", ""});
  CHECK(text.empty());
  CHECK(take_lines(text).empty());
}

TEST_CASE("control characters of a log do not reach the terminal") {
  CHECK(printable_line("a\tb \x1b[31mred\x07\x7f") == "a\tb  [31mred  ");
  CHECK(printable_line("\xc3\xa4") == "\xc3\xa4");
}

TEST_CASE("the lines of one start of an actor, with what libraries wrote in between") {
  const Lines log{"before any line of ours",
                  "2026-01-01T00:00:00.000001Z info cpu0#1 ready",
                  "Traceback",
                  "2026-01-01T00:00:01.000001Z info cpu0#2 ready",
                  "cpu0#1 is mentioned",
                  "2026-01-01T00:00:02.000001Z warning cpu0#2 over cpu0#3",
                  "2026-01-01T00:00:03.000001Z info cpu0#22 ready",
                  "2026-01-01T00:00:04.000001Z info cpu01#2 ready"};
  Incarnation at = 0;
  CHECK(of_start(log, "cpu0", 0, at) == log);
  CHECK(of_start(log, "cpu0", 1, at) == Lines{log[1], log[2]});
  at = 0;
  CHECK(of_start(log, "cpu0", 2, at) == Lines{log[3], log[4], log[5]});
  at = 0;
  CHECK(of_start(log, "cpu0", 3, at).empty());
  at = 0;
  CHECK(of_start({log[3]}, "cpu0", 2, at).size() == 1);
  CHECK(of_start({"goes on"}, "cpu0", 2, at) == Lines{"goes on"});  // of the same start, read later
}
