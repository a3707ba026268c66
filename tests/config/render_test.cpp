#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "config/schema.h"
#include "tests/config/support.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::config;
using callboard::config::test::validate;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string source(const std::string& path) { return std::string(CALLBOARD_SOURCE_DIR) + "/" + path; }

constexpr const char* kFull = R"yaml(
name: lab-a
devices:
  - {name: "w{i}-x", kind: cpu, count: 2, threads: 3, memory_limit: 1500MiB}
  - {kind: cuda, index: [4, 2], memory_limit: 1GiB}
  - {name: g, kind: cuda, uuid: GPU-3f0c-9A, output_device: cuda, cuda_graph: never}
  - {kind: cpu, python: none}
python:
  executable: /srv/venv/bin/python
  path: [/srv/kernels, "/srv/more kernels"]
  count: 3
  spare: 1
  watchdog: 7s
  start_timeout: 90s
  memory_limit: 3GiB
  kernels:
    - {target: "norms:rms_norm"}
    - {target: "pkg.ops:Model.scale", schema: "my::f(Tensor(a!) x, str m=\"a\") -> ()", random: true, warm_up: warm}
operators:
  - {path: /srv/lib/libmyops.so}
  - {path: "/srv/more libs/x.so", sha256: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
restart: {policy: never, max: 7, window: 2min, backoff: {min: 1s, max: 2s}}
heartbeat: {interval: 1001ms, suspect: 2s, dead: 4s}
limits: {requests_per_client: 8, clients: 3, attempts: 9, deadline: 5s, start_timeout: 6s, stop_grace: 0s}
log: {level: warning, dir: "/var/log/call \"board\" \\x # no"}
tracing: {enabled: true, file: /tmp/trace.json}
checks: {outputs: false, nan: true}
)yaml";

}  // namespace

TEST_CASE("the effective file reads back to the same structure") {
  for (const char* text : {"devices: [{kind: cpu, count: 2}]", kFull}) {
    const Validation first = validate(text);
    REQUIRE(first.errors == 0);
    const std::string written = to_yaml(first.config);
    INFO(written);
    const Validation second = validate(written);
    REQUIRE(second.errors == 0);
    CHECK(to_yaml(second.config) == written);
    REQUIRE(second.config.devices.size() == first.config.devices.size());
    for (std::size_t i = 0; i < first.config.devices.size(); ++i) {
      CHECK(second.config.devices[i].name == first.config.devices[i].name);
      CHECK(second.config.devices[i].kind == first.config.devices[i].kind);
      CHECK(second.config.devices[i].index == first.config.devices[i].index);
      CHECK(second.config.devices[i].threads == first.config.devices[i].threads);
      CHECK(second.config.devices[i].memory_limit == first.config.devices[i].memory_limit);
      CHECK(second.config.devices[i].uuid == first.config.devices[i].uuid);
      CHECK(second.config.devices[i].output_device == first.config.devices[i].output_device);
      CHECK(second.config.devices[i].cuda_graph == first.config.devices[i].cuda_graph);
      CHECK(second.config.devices[i].python == first.config.devices[i].python);
    }
    CHECK(second.config.python.executable == first.config.python.executable);
    CHECK(second.config.python.path == first.config.python.path);
    CHECK(second.config.python.count == first.config.python.count);
    CHECK(second.config.python.spare == first.config.python.spare);
    CHECK(second.config.python.watchdog == first.config.python.watchdog);
    CHECK(second.config.python.start_timeout == first.config.python.start_timeout);
    CHECK(second.config.python.memory_limit == first.config.python.memory_limit);
    REQUIRE(second.config.python.kernels.size() == first.config.python.kernels.size());
    for (std::size_t i = 0; i < first.config.python.kernels.size(); ++i) {
      CHECK(second.config.python.kernels[i].target == first.config.python.kernels[i].target);
      CHECK(second.config.python.kernels[i].schema == first.config.python.kernels[i].schema);
      CHECK(second.config.python.kernels[i].random == first.config.python.kernels[i].random);
      CHECK(second.config.python.kernels[i].warm_up == first.config.python.kernels[i].warm_up);
    }
    CHECK(second.config.log.dir == first.config.log.dir);
    CHECK(second.config.heartbeat.interval == first.config.heartbeat.interval);
    CHECK(second.config.restart.policy == first.config.restart.policy);
    CHECK(second.config.checks.nan == first.config.checks.nan);
  }
}

TEST_CASE("every key of the table is in the schema, in the reference and in the effective file") {
  const auto schema = nlohmann::json::parse(cluster_schema_json());
  const std::string reference = cluster_reference_markdown();
  const std::string yaml = to_yaml(validate(kFull).config);
  std::set<std::string_view> paths;
  for (const Field& field : fields()) {
    INFO(field.path);
    CHECK(paths.insert(field.path).second);
    CHECK_FALSE(field.doc.empty());
    CHECK(reference.find("| `" + std::string(field.key()) + "` |") != std::string::npos);
    // A device's count becomes entries; without a bound of its own, edge_bytes follows the devices' memory.
    if (field.key() != "count" && field.key() != "edge_bytes")
      CHECK(yaml.find(std::string(field.key()) + ": ") != std::string::npos);
    std::string pointer;
    std::string path(field.path);
    for (std::size_t at = path.find("[]"); at != std::string::npos; at = path.find("[]")) path.replace(at, 2, "\x01");
    for (char c : path + ".") {
      if (c == '.') {
        pointer += "/";
      } else if (c == '\x01') {
        pointer += "/items";
      } else {
        pointer += c;
      }
    }
    std::string full;
    std::istringstream parts(pointer);
    for (std::string part; std::getline(parts, part, '/');) full += part == "items" ? "/items" : "/properties/" + part;
    CHECK(schema.contains(nlohmann::json::json_pointer(full)));
  }
  CHECK(schema["additionalProperties"] == false);
}

TEST_CASE("the shipped reference page and schema are up to date") {
  // To renew it: callboard config reference > docs/cluster-file.md
  CHECK(read_file(source("docs/cluster-file.md")) == cluster_reference_markdown());
}

TEST_CASE("the shipped examples are valid and have no warnings") {
  for (const char* name : {"one_cpu", "two_cpu"}) {
    const std::string text = read_file(source("config/examples/" + std::string(name) + ".yaml"));
    INFO(name);
    REQUIRE_FALSE(text.empty());
    CHECK(callboard::config::test::findings_of(text).empty());
  }
}

TEST_CASE("findings are shown with the line and a caret under the place") {
  const std::string text = "devices:\n  - {kind: cpu, memroy_limit: 1GiB}\n";
  CHECK(format_findings(validate(text), text, "lab.yaml", false) ==
        "lab.yaml:2:17: error[E201] unknown key 'memroy_limit' in devices[0]: did you mean 'memory_limit'?\n"
        "    2 |   - {kind: cpu, memroy_limit: 1GiB}\n"
        "      |                 ^^^^^^^^^^^^\n"
        "1 error, 0 warnings\n");
  CHECK(format_findings(validate(text), text, "lab.yaml", true).find("\x1b[31;1merror[E201]\x1b[0m") !=
        std::string::npos);
  CHECK(format_findings(validate("devices: [{}]"), "", "x", true).empty());
  const std::string wide = "devices: [{}]\nlog: {dir: /" + std::string(500, 'x') + ", lvel: 1}\n";
  const std::string shown = format_findings(validate(wide), wide, "f", false);
  CHECK(shown.find("f:2:515: error[E201]") == 0);
  CHECK(shown.find(", lvel: 1}\n      |                               ^^^^\n") != std::string::npos);
}

TEST_CASE("findings as JSON say the same") {
  const auto json = nlohmann::json::parse(findings_json(validate("devices: [{kind: cpx}]"), "a\xff.yaml"));
  CHECK(json["ok"] == false);
  CHECK(json["errors"] == 1);
  CHECK(json["findings"][0]["line"] == 1);
  CHECK(json["findings"][0]["column"] == 18);
  CHECK(json["findings"][0]["code"] == "E204");
  CHECK(json["findings"][0]["severity"] == "error");
}

TEST_CASE("K12: whatever is done to a file, the answer is a configuration or findings with places in it") {
  const std::string alphabet = "\n\n  \t:-{}[],#&*!|>'\"%@`?~<$0123abcdevinx\\\x01\x04\xc3\xa4\xff";
  const std::string seeds[] = {kFull, read_file(source("config/examples/two_cpu.yaml")),
                               R"({"devices": [{"kind": "cpu"}], "a": "\u00e4"})"};
  std::mt19937 random(20'240'607);
  int refused = 0;
  for (int round = 0; round < 6'000; ++round) {
    std::string text = seeds[random() % 3];
    for (int edits = 1 + static_cast<int>(random() % 6); edits > 0; --edits) {
      const std::size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 1:
          text.erase(at, random() % 8);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
        default:
          text.resize(at);
          break;
      }
      if (text.empty()) text = "x";
    }
    const Validation validation = validate(text);
    if (validation.ok()) {
      CHECK_FALSE(validation.config.devices.empty());
      CHECK(validate(to_yaml(validation.config)).ok());
    } else {
      ++refused;
      const auto lines = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
      for (const Finding& finding : validation.findings) {
        const bool inside = finding.at.line >= 1 && finding.at.line <= lines && finding.at.column >= 1;
        if (!inside) FAIL(text << "\nat " << finding.at.line << ":" << finding.at.column << " " << finding.message);
      }
      CHECK_FALSE(format_findings(validation, text, "f", true).empty());
    }
  }
  CHECK(refused > 1'000);
}

TEST_CASE("a file of 200 written-out devices is read") {
  std::string text = "devices:\n";
  for (int i = 0; i < 200; ++i) {
    text += "  - name: worker-" + std::to_string(i) + "\n    kind: cpu\n    threads: 2\n    memory_limit: 32MiB\n";
  }
  const Validation validation = validate(text);
  CHECK(validation.ok());
  CHECK(validation.config.devices.size() == 200);
}
