#include "messages/base/plain_text.h"

#include <string>

#include "tests/support/test.h"

using callboard::plain_text;

namespace {

constexpr std::size_t kAll = 1000;

bool is_plain(const std::string& text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("text that is plain stays as it is") {
  for (const char* text : {"", "one line", "two\nlines\twith a tab", "Ünïcödé … 日本 🙂"})
    CHECK(plain_text(text, kAll) == text);
}

TEST_CASE("escape sequences go whole, of every kind, also unfinished ones") {
  CHECK(plain_text("\x1b[31mred\x1b[0m", kAll) == "red");
  CHECK(plain_text("\x1b[1;38;5;200mx\x1b[K\x1b[2Jy", kAll) == "xy");
  CHECK(plain_text("\x1b]0;a title\x07here", kAll) == "here");
  CHECK(plain_text("\x1b]8;;http://a\x1b\\link", kAll) == "link");
  CHECK(plain_text("\x1b(Bx\x1b=y\x1b"
                   "cz",
                   kAll) == "xyz");
  CHECK(plain_text("\xC2\x9B"
                   "31mred",
                   kAll) == "red");
  CHECK(plain_text("\x1b]no end\nnext line", kAll) == "no end\nnext line");
  for (const char* unfinished : {"x\x1b", "x\x1b[", "x\x1b[31", "x\x1b(",
                                 "x\xC2\x9B"
                                 "3"}) {
    CHECK(plain_text(unfinished, kAll) == "x");
  }
}

TEST_CASE("control characters go, newline and tab stay") {
  std::string all;
  for (int byte = 0; byte < 0x20; ++byte) all += static_cast<char>(byte);
  all.erase(0x1B, 1);
  CHECK(plain_text(all + "\x7f", kAll) == "\t\n");
  CHECK(plain_text("10%\r20%\r", kAll) == "10%20%");
}

TEST_CASE("what is no UTF-8 becomes a question mark, byte by byte") {
  CHECK(plain_text("\xFF\xC3", kAll) == "??");
  CHECK(plain_text("\xC0\xAF", kAll) == "??");            // overlong
  CHECK(plain_text("\xED\xA0\x80", kAll) == "???");       // half of a surrogate pair
  CHECK(plain_text("\xF4\x90\x80\x80", kAll) == "????");  // beyond the last character
}

TEST_CASE("the middle of a long text is left out, and what is there says how much") {
  const std::string text = "START" + std::string(5'000, 'm') + "END";
  const std::string cut = plain_text(text, 200);
  CHECK(cut.size() <= 200);
  CHECK(cut.starts_with("STARTm"));
  CHECK(cut.ends_with("mEND"));
  const std::size_t kept = static_cast<std::size_t>(std::count(cut.begin(), cut.end(), 'm'));
  CHECK(cut.find("(" + std::to_string(5'000 - kept) + " bytes left out)") != std::string::npos);
}

TEST_CASE("a cut keeps characters whole, and counts what is left when escape sequences are gone") {
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += "\x1b[31mé\x1b[0m\n";
  for (std::size_t bytes = 0; bytes < 150; ++bytes) {
    const std::string cut = plain_text(text, bytes);
    CHECK(is_plain(cut));
    CHECK(plain_text(cut, kAll) == cut);  // still UTF-8
    CHECK(cut.find("left out") != std::string::npos);
  }
  CHECK(plain_text(text, 6'000).size() == 6'000);  // 2000 of three bytes
}
