#include "config/document.h"

#include <chrono>
#include <string>

#include "tests/config/support.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::config;
using callboard::config::test::findings_of;
using callboard::config::test::validate;

TEST_CASE("a tree keeps the positions, quotes and order of its text") {
  Findings findings;
  const auto root = read_document("b: [1, \"2\"]\na: {c: ~}\n", findings);
  REQUIRE(root.has_value());
  CHECK(findings.errors() == 0);
  REQUIRE(root->entries.size() == 2);
  CHECK(root->entries[0].key == "b");
  CHECK(root->entries[0].value.at == Position{1, 4});
  REQUIRE(root->entries[0].value.items.size() == 2);
  CHECK_FALSE(root->entries[0].value.items[0].quoted);
  CHECK(root->entries[0].value.items[1].quoted);
  CHECK(root->entries[0].value.items[1].at == Position{1, 8});
  CHECK(root->entries[1].at == Position{2, 1});
  CHECK(root->entries[1].value.entries[0].value.kind == DocumentNode::Kind::kNull);
}

TEST_CASE("columns count characters, not bytes") {
  CHECK(findings_of("devices: [{kind: cpu}]\nlog: {'\xc3\xa4\xe2\x82\xac': 1, x: 2}\n")
            .find("2:16 E201 unknown key 'x'") != std::string::npos);
}

TEST_CASE("R65: a key given twice is refused with both lines") {
  CHECK(findings_of("devices: [{kind: cpu}]\nname: a\ndevices: [{kind: cpu}]\n") ==
        "3:1 E202 key 'devices' is there twice: first in line 1, again in line 3 | keep one of them\n");
  CHECK(findings_of("devices: [{kind: cpu, count: 1, \"count\": 2}]\n") ==
        "1:33 E202 key 'count' is there twice: first in line 1, again in line 1 | keep one of them\n");
  CHECK(findings_of("devices: [{kind: cpu}]\nx: 1\nx: 2\nx: 3\n")
            .find("4:1 E202 key 'x' is there twice: first in line 2") != std::string::npos);
}

TEST_CASE("R69: aliases and anchors are refused where they stand, a self-alias and a bomb at once") {
  CHECK(findings_of("devices: [{kind: cpu}]\nname: &n lab\n") ==
        "2:7 E200 anchors ('&') are not allowed | write the value out where it is used\n");
  CHECK(findings_of("a: &a [*a]\n").find("1:4 E200 anchors ('&') are not allowed") != std::string::npos);
  CHECK(findings_of("a: &a [*a]\n").find("1:8 E200 aliases ('*') are not allowed") != std::string::npos);
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k > 0 ? "," : "") + before;
    bomb += "]\n";
  }
  const auto started = std::chrono::steady_clock::now();
  const Validation validation = validate(bomb);
  // Not a timing: a walk that expanded 10^9 aliases would not end at all.
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(20));
  CHECK_FALSE(validation.ok());
  CHECK(validation.findings.size() == kFindingsMax);
  CHECK(validation.errors > kFindingsMax);
}

TEST_CASE("an alias as key, a complex key, an empty key and a merge key are refused") {
  CHECK(findings_of("devices: [{kind: cpu}]\n? [a, b]\n: 1\n").find("2:3 E200 a key is a list or a map") == 0);
  CHECK(findings_of("devices: [{kind: cpu}]\n? {a: b}\n: 1\n").find("2:3 E200 a key is a list or a map") == 0);
  CHECK(findings_of("devices: [{kind: cpu}]\n~: 1\n").find("2:1 E200 a key is empty") == 0);
  CHECK(findings_of("devices: &d [{kind: cpu}]\n*d : 1\n").find("2:1 E200 a key is an alias ('*')") !=
        std::string::npos);
  CHECK(findings_of("devices: [{kind: cpu}]\n<<: {name: x}\n") ==
        "2:1 E201 unknown key '<<' at the top level | merge keys are not supported: write the keys out\n");
}

TEST_CASE("a bracket that is not closed is named, also where the next one looks like a key") {
  CHECK(findings_of("devices:\n  - {kind: cpu,\n  - {kind: cpu}\n").find("2:5 E200 '{' is not closed") == 0);
  CHECK(findings_of("devices: [{kind: cpu,\n{kind: cpu}]\n").find("1:11 E200 '{' is not closed: at line 2") == 0);
  CHECK(findings_of("{\n").find("1:1 E200 '{' is not closed") == 0);
  CHECK(findings_of("devices: [{kind: cpu\n").find("1:11 E200 '{' is not closed: at line 1") == 0);
  CHECK(findings_of("devices: [{kind: cpu]\n").find("1:11 E200 '{' is not closed: at line 1") == 0);
  CHECK(findings_of("devices: [{kind: cpu}]\nlog: {{a: b}: c}\n").find("2:7 E200 a key is a list or a map") == 0);
  CHECK(findings_of("# [ {\nname: a[b\nx: '{'\ny: \"\\\"{\"\n? [a]\n: 1\n").find("5:3 E200 a key is a list") == 0);
}

TEST_CASE("tags are refused") {
  CHECK(findings_of("devices: [{kind: cpu}]\nname: !!str x\n") ==
        "2:7 E200 tags are not allowed ('tag:yaml.org,2002:str') | remove it: the key says what its value is\n");
  CHECK(findings_of("devices: !mine [{kind: cpu}]\n").find("1:10 E200 tags are not allowed ('!mine')") == 0);
}

TEST_CASE("a second document is refused where it starts, a lone '---' is not") {
  CHECK(findings_of("---\ndevices: [{kind: cpu}]\n").empty());
  CHECK(findings_of("%YAML 1.2\n---\ndevices: [{kind: cpu}]\n...\n").empty());
  CHECK(findings_of("devices: [{kind: cpu}]\n---\nname: x\n").find("2:1 E200 the file holds a second document") == 0);
}

TEST_CASE("depth, number of nodes and size of a file are bounded") {
  const std::string deep = "x: " + std::string(1'000, '[') + std::string(1'000, ']');
  CHECK(findings_of(deep).find("1:35 E200 nested deeper than 32 levels") == 0);
  CHECK_FALSE(findings_of("x: " + std::string(500'000, '[')).empty());
  CHECK_FALSE(findings_of(std::string(500'000, '{')).empty());
  std::string block;
  for (int i = 0; i < 500; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "x:\n";
  CHECK(findings_of(block).find("E200 nested deeper than 32 levels") != std::string::npos);
  std::string wide = "x: [";
  for (int i = 0; i < 20'000; ++i) wide += "1,";
  CHECK(findings_of(wide + "]").find(" E200 more than 10000 keys and values") != std::string::npos);
  CHECK(findings_of(std::string(kFileBytesMax + 1, '#'))
            .find("1:1 E200 the file has 1048577 bytes; at most 1048576 are read") == 0);
}

TEST_CASE(
    "what yaml-cpp would misread in silence is refused: end-of-transmission, NUL, UTF-16, bytes that are no UTF-8") {
  // Byte 4 is the end of the file to yaml-cpp: the second line would not exist.
  CHECK(findings_of("devices: [{kind: cpu}]\n\x04nmae: x\n") == "2:1 E200 a control character (code 4) | remove it\n");
  CHECK(findings_of(std::string_view("a\0b", 3)).find("1:2 E200 a control character (code 0)") == 0);
  CHECK(findings_of(std::string_view("\xff\xfe"
                                     "a\0",
                                     4))
            .find("1:1 E200 the file is not UTF-8 here | save it as UTF-8") == 0);
  CHECK(findings_of("name: a\xc0\x80").find("1:8 E200 the file is not UTF-8 here") == 0);
  CHECK(findings_of("name: \xed\xa0\x80").find("1:7 E200 the file is not UTF-8 here") == 0);
  CHECK(findings_of("name: \xf4\x90\x80\x80").find("1:7 E200 the file is not UTF-8 here") == 0);
  CHECK(findings_of("name: \xe2\x82").find("1:7 E200 the file is not UTF-8 here") == 0);
}

TEST_CASE("a byte-order mark and CRLF are fine and do not move positions") {
  CHECK(findings_of("\xef\xbb\xbf"
                    "devices: [{kind: cpu}]\r\nname: lab\r\n")
            .empty());
  CHECK(findings_of("\xef\xbb\xbf"
                    "nmae: x\r\ndevices: [{kind: cpu}]\r\n")
            .find("1:1 E201 unknown key 'nmae'") == 0);
}

TEST_CASE("broken YAML gives one error with its place and a hint") {
  CHECK(findings_of("devices:\n\t- kind: cpu\n").find("2:2 E200 this is not YAML: ") == 0);
  CHECK(findings_of("devices:\n\t- kind: cpu\n").find("indent with spaces") != std::string::npos);
  CHECK(findings_of("name: a: b\n").find("1:8 E200 this is not YAML: illegal map value") == 0);
}

TEST_CASE("a quote that is not closed is refused, though yaml-cpp alone would close it at the end of the file") {
  for (const char* text : {"name: \"abc", "name: \"abc\n", "name: 'abc\ndevices: [{kind: cpu}]\n",
                           "name: \"\ndevices: [{kind: cpu}]\n\n"}) {
    INFO(text);
    CHECK(findings_of(text).find(
              "E200 this is not YAML: illegal EOF in scalar | a quote is opened further up and not closed") !=
          std::string::npos);
  }
}

TEST_CASE("a bracket that is not closed is reported where it opens") {
  CHECK(findings_of("devices: [{kind: cpu}\nname: x\n") ==
        "1:10 E200 '[' is not closed: at line 2 it still stands open | close it, or look for a comma that is missing "
        "before line 2\n");
  CHECK(findings_of("log: {level: info\ndevices: [{kind: cpu}]\n").find("1:6 E200 '{' is not closed") == 0);
  // Here yaml-cpp takes it for a key.
  CHECK(findings_of("devices:\n- {kind: cpu\n").find("2:3 E200 '{' is not closed") != std::string::npos);
}

TEST_CASE("an empty item of a list is reported where its dash is") {
  CHECK(findings_of("devices:\n- \n  # nothing\n\n-\n- kind: cpu\n") ==
        "2:1 E207 devices[0] has no value | write {kind: cpu}, or remove it\n"
        "5:1 E207 devices[1] has no value | write {kind: cpu}, or remove it\n");
  CHECK(findings_of("devices:\n- kind: cpu\n- ~\n").find("3:3 E207 devices[1]") == 0);
  CHECK(findings_of("devices:\n- kind: cpu\n-\n").find("3:1 E207 devices[1]") == 0);
}

TEST_CASE("an empty file says what the smallest one is") {
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n", "~\n"}) {
    CHECK(findings_of(text).find(" E207 the file is empty | the smallest cluster file is: devices: [{kind: cpu}]") !=
          std::string::npos);
  }
  CHECK(findings_of("[1]") ==
        "1:1 E203 the file holds a list where it should hold keys | the smallest cluster file is: devices: [{kind: "
        "cpu}]\n");
  CHECK(findings_of("hello") ==
        "1:1 E203 the file holds 'hello' where it should hold keys | the smallest cluster file is: devices: [{kind: "
        "cpu}]\n");
}
