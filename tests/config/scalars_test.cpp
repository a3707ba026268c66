#include "config/scalars.h"

#include <string>

#include "tests/config/support.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::config;
using callboard::config::test::findings_of;

namespace {

DocumentNode plain(std::string text) {
  DocumentNode node;
  node.kind = DocumentNode::Kind::kScalar;
  node.text = std::move(text);
  return node;
}
DocumentNode in_quotes(std::string text) {
  DocumentNode node = plain(std::move(text));
  node.quoted = true;
  return node;
}

/// What is said about `count: <written>`.
std::string count_of(const std::string& written) {
  return findings_of("devices: [{kind: cpu, count: " + written + "}]\n");
}

}  // namespace

TEST_CASE("R66: only true and false are booleans") {
  CHECK(read_bool(plain("true")).value());
  CHECK_FALSE(read_bool(plain("false")).value());
  for (const char* text : {"yes", "no", "on", "off", "y", "n", "True", "FALSE", "1", "0", ""}) {
    INFO(text);
    REQUIRE_FALSE(read_bool(plain(text)).has_value());
    CHECK(read_bool(plain(text)).error().code == ErrorCode::kConfigWrongType);
  }
  CHECK(read_bool(plain("yes")).error().hint == "write true");
  CHECK(read_bool(plain("off")).error().hint == "write false");
  CHECK(read_bool(in_quotes("true")).error().hint == "write true, without quotes");
  CHECK(findings_of("devices: [{kind: cpu}]\nchecks: {nan: no}\n") ==
        "2:15 E203 checks.nan wants true or false, not 'no' | write false\n");
}

TEST_CASE("R66: whole numbers are decimal, without leading zeros, underscores, signs, points and exponents") {
  CHECK(read_int(plain("0")).value() == 0);
  CHECK(read_int(plain("-12")).value() == -12);
  CHECK(read_int(plain("9223372036854775807")).value() == INT64_MAX);
  CHECK(read_int(plain("9223372036854775808")).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(read_int(plain("99999999999999999999999999")).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(count_of("010") ==
        "1:30 E203 devices[0].count has a leading zero: 010 | write 10 (elsewhere a leading zero means octal, so it is "
        "refused)\n");
  CHECK(count_of("05555").find("write 5555") != std::string::npos);
  CHECK(count_of("00").find("write 0 ") != std::string::npos);
  CHECK(count_of("0x10") == "1:30 E203 devices[0].count wants a whole number, not '0x10' | write it in decimal\n");
  CHECK(count_of("0o17").find("write it in decimal") != std::string::npos);
  CHECK(count_of("1_0") ==
        "1:30 E203 devices[0].count wants a whole number, not '1_0' | write the digits without '_'\n");
  CHECK(count_of("1e3").find("a whole number has no '.' and no exponent") != std::string::npos);
  CHECK(count_of("1.10").find("a whole number has no '.' and no exponent") != std::string::npos);
  CHECK(count_of("+1").find("write it without '+'") != std::string::npos);
  CHECK(count_of("two") == "1:30 E203 devices[0].count wants a whole number, not 'two'\n");
  CHECK(count_of("true") == "1:30 E203 devices[0].count wants a whole number, not 'true'\n");
  CHECK(count_of("-1") == "1:30 E204 devices[0].count is -1; allowed is 1 to 256\n");
  CHECK(count_of("70000") == "1:30 E204 devices[0].count is 70000; allowed is 1 to 256\n");
  CHECK(findings_of("version: 1.10\ndevices: [{kind: cpu}]\n")
            .find("1:10 E203 version wants a whole number, not '1.10'") == 0);
  CHECK(findings_of("version: 2\ndevices: [{kind: cpu}]\n") == "1:10 E204 version is 2; allowed is only 1\n");
}

TEST_CASE("R66: quotes mean text, so a quoted number is no number") {
  CHECK(
      count_of("\"2\"") ==
      "1:30 E203 devices[0].count wants a whole number, but \"2\" is text because of its quotes | remove the quotes\n");
  CHECK(count_of("'x'") ==
        "1:30 E203 devices[0].count wants a whole number, but \"x\" is text because of its quotes\n");
  CHECK(count_of("[2]") == "1:30 E203 devices[0].count wants a whole number, not a list\n");
  CHECK(count_of("{a: 2}") == "1:30 E203 devices[0].count wants a whole number, not a map\n");
}

TEST_CASE("R66: text keeps its spelling, whatever a YAML 1.1 reader would make of it") {
  for (const char* name : {"no", "0123", "\"0123\"", "'true'", "1e3", "0x1f"}) {
    const Validation validation = config::test::validate("name: " + std::string(name) + "\ndevices: [{kind: cpu}]\n");
    INFO(name);
    REQUIRE(validation.ok());
    std::string spelled = name;
    std::erase_if(spelled, [](char c) { return c == '"' || c == '\''; });
    CHECK(validation.config.name == spelled);
  }
}

TEST_CASE("a duration is a whole number with a unit") {
  using std::chrono::milliseconds;
  CHECK(read_duration(plain("500ms")).value() == milliseconds(500));
  CHECK(read_duration(plain("3s")).value() == milliseconds(3'000));
  CHECK(read_duration(plain("2min")).value() == milliseconds(120'000));
  CHECK(read_duration(in_quotes("1h")).value() == milliseconds(3'600'000));
  CHECK(read_duration(plain("0s")).value() == milliseconds(0));
  CHECK(read_duration(plain("500")).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_duration(plain("500")).error().hint == "units are ms, s, min and h, as in 500ms or 3s");
  CHECK(read_duration(plain("5m")).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_duration(plain("5 s")).error().hint == "no space before the unit");
  CHECK(read_duration(plain("1.5s")).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_duration(plain("1e3")).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_duration(plain("-1s")).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_duration(plain("010s")).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_duration(plain("")).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_duration(plain("9223372036854775807h")).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(read_duration(plain("99999999999999999999s")).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(findings_of("devices: [{kind: cpu}]\nheartbeat: {interval: 500}\n") ==
        "2:23 E205 heartbeat.interval needs a unit: '500' | units are ms, s, min and h, as in 500ms or 3s\n");
  CHECK(findings_of("devices: [{kind: cpu}]\nlimits: {deadline: 1000h}\n") ==
        "2:20 E204 limits.deadline is 1000h; allowed is 1ms to 24h\n");
}

TEST_CASE("a size is a whole number with a unit of 1024s, or a percentage") {
  constexpr std::uint64_t kWhole = 1'000'000'000;
  CHECK(read_size(plain("1B"), kWhole).value() == 1);
  CHECK(read_size(plain("16KiB"), kWhole).value() == 16384);
  CHECK(read_size(plain("4GiB"), kWhole).value() == std::uint64_t{4} << 30);
  CHECK(read_size(plain("1TiB"), kWhole).value() == std::uint64_t{1} << 40);
  CHECK(read_size(plain("50%"), kWhole).value() == 500'000'000);
  CHECK(read_size(plain("100%"), kWhole).value() == kWhole);
  CHECK(read_size(plain("0%"), kWhole).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(read_size(plain("101%"), kWhole).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(read_size(plain("1.5%"), kWhole).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_size(plain("%"), kWhole).error().code == ErrorCode::kConfigWrongType);
  CHECK(read_size(plain("50%"), 0).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_size(plain("4GB"), kWhole).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_size(plain("4GB"), kWhole).error().hint == "did you mean 4GiB (powers of 1024)?");
  CHECK(read_size(plain("4kb"), kWhole).error().hint == "did you mean 4KiB (powers of 1024)?");
  CHECK(read_size(plain("4 GiB"), kWhole).error().hint.find("did you mean") == std::string::npos);
  CHECK(read_size(plain("4096"), kWhole).error().code == ErrorCode::kConfigBadUnit);
  CHECK(read_size(plain("9223372036854775807KiB"), kWhole).error().code == ErrorCode::kConfigOutOfRange);
  CHECK(findings_of("devices: [{kind: cpu, memory_limit: 4GB}]\n") ==
        "1:37 E205 devices[0].memory_limit has an unknown unit 'GB' | did you mean 4GiB (powers of 1024)?\n");
}

TEST_CASE("written values read back as themselves") {
  for (std::int64_t ms : {0, 1, 500, 1'000, 1'500, 60'000, 61'000, 3'600'000, 86'400'000}) {
    const auto duration = std::chrono::milliseconds(ms);
    CHECK(read_duration(plain(write_duration(duration))).value() == duration);
  }
  for (std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1023}, std::uint64_t{1024},
                              std::uint64_t{3} << 40, (std::uint64_t{1} << 40) + 1}) {
    CHECK(read_size(plain(write_size(bytes)), 0).value() == bytes);
  }
  CHECK(write_duration(std::chrono::milliseconds(120'000)) == "2min");
  CHECK(write_size(std::uint64_t{4} << 30) == "4GiB");
}

TEST_CASE("the nearest name is at most two edits away, and short words must be nearer") {
  const std::vector<std::string_view> names{"memory_limit", "kind", "max", "min", "index"};
  CHECK(nearest_name("memroy_limit", names) == "memory_limit");
  CHECK(nearest_name("memorylimi", names) == "memory_limit");
  CHECK(nearest_name("kimd", names) == "kind");
  CHECK(nearest_name("mix", names) == "max");
  CHECK(nearest_name("memory", names).empty());
  CHECK(nearest_name("x", names).empty());
  CHECK(nearest_name("", names).empty());
}

TEST_CASE("what is shown of a text is short, on one line and whole characters") {
  CHECK(shown("a\nb") == "a b");
  CHECK(shown(std::string(100, 'x')) == std::string(60, 'x') + "…");
  CHECK(shown(std::string(59, 'x') + "\xc3\xa4yz") == std::string(59, 'x') + "…");
}
