#include "tools/callboard/console.h"

#include <nlohmann/json.hpp>

#include "tools/callboard/exit_codes.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::cli;

TEST_CASE("columns are aligned by characters and cells cannot break the table") {
  Table table({"A", "LONG"});
  table.add({"\xc3\xa4\xc3\xb6\xc3\xbc", "x"}, Style::kGood);
  table.add({"y", "two\nlines \x1b[31m"}, Style::kBad);
  CHECK(table.text(Console{}, 0) == "A    LONG\n\xc3\xa4\xc3\xb6\xc3\xbc  x\ny    two lines  [31m\n");
}

TEST_CASE("colour is around the cell, not its padding") {
  Console console;
  console.colour_out = true;
  Table table({"A", "B"});
  table.add({"ok", "1"}, Style::kGood);
  CHECK(table.text(console, 0) == "\x1b[1mA\x1b[0m   \x1b[1mB\x1b[0m\n\x1b[32mok\x1b[0m  1\n");
}

TEST_CASE("each class of error has its exit code") {
  CHECK(exit_code_of(Error(ErrorCode::kUsage, "")) == kExitUsage);
  CHECK(exit_code_of(Error(ErrorCode::kConfigUnknownKey, "")) == kExitUsage);
  CHECK(exit_code_of(Error(ErrorCode::kFileNotFound, "")) == kExitUsage);
  CHECK(exit_code_of(Error(ErrorCode::kAddressInUse, "")) == kExitEnvironment);
  CHECK(exit_code_of(Error(ErrorCode::kPermission, "")) == kExitEnvironment);
  CHECK(exit_code_of(Error(ErrorCode::kNotReady, "")) == kExitNotReady);
  CHECK(exit_code_of(Error(ErrorCode::kStartFailed, "")) == kExitFailed);
  CHECK(exit_code_of(Error(ErrorCode::kClusterNotFound, "")) == kExitFailed);
  CHECK(exit_code_of(Error(ErrorCode::kKernelFailed, "")) == kExitFailed);
  CHECK(exit_code_of(Error(ErrorCode::kInternal, "")) == kExitFailed);
}

TEST_CASE("errors as JSON keep their causes and survive bytes that are no UTF-8") {
  Error error(ErrorCode::kBadInput, "bad \xff", "hint");
  error.causes.emplace_back(ErrorCode::kBadInput, "cause");
  const auto json = nlohmann::json::parse(dump(error_json(error)));
  CHECK(json["code"] == 400);
  CHECK(json["causes"][0]["message"] == "cause");
  CHECK_FALSE(json.contains("actor"));
}

TEST_CASE("sizes and times are short") {
  CHECK(size_text(0) == "0 B");
  CHECK(size_text(1023) == "1023 B");
  CHECK(size_text(1536) == "1.5 KiB");
  CHECK(size_text(std::uint64_t{512} << 20) == "512 MiB");
  CHECK(time_text(std::chrono::milliseconds(420)) == "420 ms");
  CHECK(time_text(std::chrono::milliseconds(4'200)) == "4.2 s");
  CHECK(time_text(std::chrono::milliseconds(123'000)) == "2 min 3 s");
}

TEST_CASE("times of options need a unit") {
  CHECK(parse_duration("--wait", "60s").value() == std::chrono::milliseconds(60'000));
  CHECK(parse_duration("--wait", "60").error().code == ErrorCode::kUsage);
  CHECK(parse_duration("--wait", "60").error().message == "--wait needs a unit: '60'");
}
