#include "config/cluster_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/config/support.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::config;
using callboard::config::test::findings_of;
using callboard::config::test::validate;

namespace {

std::vector<std::string> names_of(const ClusterConfig& config) {
  std::vector<std::string> out;
  for (const DeviceConfig& device : config.devices)
    out.push_back(device.name + ":" + device.kind + ":" + std::to_string(device.index));
  return out;
}

std::string with_devices(const std::string& devices) { return findings_of("devices: [" + devices + "]\n"); }

}  // namespace

TEST_CASE("devices alone are a whole cluster file; everything else has its default") {
  const Validation validation = validate("devices: [{kind: cpu, count: 2}]");
  REQUIRE(validation.ok());
  const ClusterConfig& config = validation.config;
  CHECK(names_of(config) == std::vector<std::string>{"cpu0:cpu:0", "cpu1:cpu:1"});
  CHECK(config.name == "local");
  CHECK(config.devices[0].threads == 1);
  CHECK(config.devices[0].memory_limit == 0);
  CHECK(config.heartbeat.dead == Millis(3'000));
  CHECK(config.limits.requests_per_client == 1024);
  CHECK(config.checks.outputs);
  CHECK(validate("devices: [{}]").config.devices.size() == 1);
}

TEST_CASE("every key reaches its member") {
  const Validation validation = validate(R"(
version: 1
name: lab-a
retry: never
devices:
  - {name: "w{i}", kind: cpu, count: 2, threads: 3, memory_limit: 50%}
  - {name: gpu, kind: cuda, index: 4, memory_limit: 1GiB}
  - {name: named, kind: cuda, uuid: GPU-8a5c-03FF, output_device: cuda, cuda_graph: never}
restart: {policy: never, max: 7, window: 2min, backoff: {min: 1s, max: 2s}}
heartbeat: {interval: 1s, suspect: 2s, dead: 4s}
limits: {requests_per_client: 8, clients: 3, attempts: 9, deadline: 5s, start_timeout: 6s, stop_grace: 0s}
log: {level: debug, dir: /var/log/callboard}
tracing: {enabled: true, file: /tmp/trace.json}
checks: {outputs: false, nan: true}
)");
  REQUIRE(validation.errors == 0);
  const ClusterConfig& config = validation.config;
  CHECK(config.name == "lab-a");
  CHECK(names_of(config) == std::vector<std::string>{"w0:cpu:0", "w1:cpu:1", "gpu:cuda:4", "named:cuda:0"});
  CHECK(config.devices[2].uuid.empty());
  CHECK(config.devices[2].output_device == "cpu");
  CHECK(config.devices[2].cuda_graph == "auto");
  CHECK(config.devices[3].uuid == "GPU-8a5c-03FF");
  CHECK(config.devices[3].output_device == "cuda");
  CHECK(config.devices[3].cuda_graph == "never");
  CHECK(config.devices[1].threads == 3);
  CHECK(config.devices[1].memory_limit / (1 << 20) == 8191);  // a hundredth is taken first
  CHECK(config.devices[2].memory_limit == std::uint64_t{1} << 30);
  CHECK(config.restart.policy == "never");
  CHECK(config.restart.max == 7);
  CHECK(config.restart.window == Millis(120'000));
  CHECK(config.restart.backoff_min == Millis(1'000));
  CHECK(config.restart.backoff_max == Millis(2'000));
  CHECK(config.heartbeat.interval == Millis(1'000));
  CHECK(config.heartbeat.suspect == Millis(2'000));
  CHECK(config.heartbeat.dead == Millis(4'000));
  CHECK(config.limits.requests_per_client == 8);
  CHECK(config.limits.clients == 3);
  CHECK(config.limits.deadline == Millis(5'000));
  CHECK(config.limits.start_timeout == Millis(6'000));
  CHECK(config.limits.stop_grace == Millis(0));
  CHECK(config.log.level == log::Level::kDebug);
  CHECK(config.log.dir == "/var/log/callboard");
  CHECK(config.tracing.enabled);
  CHECK(config.tracing.file == "/tmp/trace.json");
  CHECK_FALSE(config.checks.outputs);
  CHECK(config.checks.nan);
}

TEST_CASE("JSON is read too, and errors name the path") {
  CHECK(
      validate(R"({"name": "j", "devices": [{"kind": "cpu", "count": 2}], "heartbeat": {"interval": "500ms"}})").ok());
  CHECK(findings_of(R"({"devices": [{"kind": "cpu"}, {"kind": "cpx"}]})") ==
        "1:40 E204 devices[1].kind is 'cpx'; allowed is cpu and cuda | did you mean 'cpu'?\n");
}

TEST_CASE("an unknown key gives the nearest name, where it belongs, or the list of names") {
  CHECK(findings_of("devices:\n  - {kind: cpu}\n  - {kind: cpu, memroy_limit: 1GiB}\n") ==
        "3:17 E201 unknown key 'memroy_limit' in devices[1] | did you mean 'memory_limit'?\n");
  CHECK(findings_of("devices: [{kind: cpu}]\ndeadline: 3s\n") ==
        "2:1 E201 unknown key 'deadline' at the top level | the key 'deadline' belongs in limits; allowed keys are "
        "version, name, retry, "
        "devices, python, operators, restart, heartbeat, limits, log, tracing and checks\n");
  CHECK(findings_of("devices: [{kind: cpu}]\nrestart: {backoff: {wait: 1s}}\n") ==
        "2:21 E201 unknown key 'wait' in restart.backoff | allowed keys are min and max\n");
}

TEST_CASE("R70: a section or key without a value is an error, the same on every reading") {
  const std::string text = "devices: [{kind: cpu}]\nlimits:\nlog: {level: }\n";
  const std::string expected =
      "2:1 E207 limits has no value | give it keys, or remove it: without the key its defaults hold\n"
      "3:7 E207 log.level has no value | give it one, or remove the key: the default is info\n";
  CHECK(findings_of(text) == expected);
  CHECK(findings_of(text) == expected);
  CHECK(findings_of("devices:\n").find("1:1 E207 devices has no value") == 0);
  CHECK(with_devices("~") == "1:11 E207 devices[0] has no value | write {kind: cpu}, or remove it\n");
  CHECK(findings_of("devices: [{kind: cpu}]\nlimits: {}\n").empty());
}

TEST_CASE("devices must be there, a list, and not empty") {
  CHECK(findings_of("name: x\n") ==
        "1:1 E207 the key 'devices' is missing | the smallest cluster file is: devices: [{kind: cpu}]\n");
  CHECK(findings_of("devices: []\n").find("1:10 E207 devices is empty") == 0);
  CHECK(findings_of("devices: {kind: cpu}\n") ==
        "1:10 E203 devices wants a list of maps, not a map | as in: devices: [{kind: cpu}]\n");
  CHECK(findings_of("devices: [cpu]\n") ==
        "1:11 E203 devices[0] wants a map, not 'cpu' | as in: devices: [{kind: cpu}]\n");
  CHECK(findings_of("devices: [{kind: cpu}]\nlog: [1]\n") == "2:6 E203 log wants keys, not a list\n");
}

TEST_CASE("default names and numbers are counted for each kind") {
  const Validation validation =
      validate("devices: [{kind: cpu}, {kind: cuda, count: 2}, {kind: cpu, count: 2}, {kind: cuda}]");
  REQUIRE(validation.ok());
  CHECK(names_of(validation.config) == std::vector<std::string>{"cpu0:cpu:0", "cuda0:cuda:0", "cuda1:cuda:1",
                                                                "cpu1:cpu:1", "cpu2:cpu:2", "cuda2:cuda:2"});
  CHECK(names_of(validate("devices: [{kind: cuda, index: [3, 1]}, {kind: cuda, index: 5, count: 2}]").config) ==
        std::vector<std::string>{"cuda3:cuda:3", "cuda1:cuda:1", "cuda5:cuda:5", "cuda6:cuda:6"});
}

TEST_CASE("names of devices are unique, well formed and not taken by other actors") {
  CHECK(with_devices("{name: a}, {name: b}, {name: a}") ==
        "1:40 E206 the name 'a' is taken twice: by devices[0] and by devices[2] | names are unique; {i} is the number "
        "among all devices of a kind\n");
  CHECK(with_devices("{name: x, count: 2}")
            .find("1:18 E206 devices[0].name is 'x' for 2 devices, whose names would be equal | put {i} into it") == 0);
  CHECK(with_devices("{name: Cpu}").find("1:18 E204 devices[0].name is 'Cpu', which is not a device name") == 0);
  CHECK(with_devices("{name: 'a#1'}").find("E204 devices[0].name is 'a#1'") != std::string::npos);
  CHECK(with_devices("{name: ''}").find("E204 devices[0].name is ''") != std::string::npos);
  CHECK(with_devices("{name: '../x'}").find("E204 devices[0].name is '../x'") != std::string::npos);
  CHECK(with_devices("{name: " + std::string(21, 'a') + "}").find("E204") != std::string::npos);
  CHECK(with_devices("{name: " + std::string(20, 'a') + "}").empty());
  CHECK(with_devices("{name: '" + std::string(19, 'a') + "{i}', count: 11}").find("has more than 20 characters") !=
        std::string::npos);
  CHECK(with_devices("{name: coordinator}")
            .find("E206 devices[0].name is 'coordinator', which another actor of the cluster has") !=
        std::string::npos);
}

TEST_CASE("an index is for cuda, each GPU once, and as many as count says") {
  CHECK(with_devices("{kind: cpu, index: 1}").find("1:30 E206 devices[0].index is for kind cuda only") == 0);
  CHECK(with_devices("{kind: cuda, index: [0, 1]}, {kind: cuda, name: g, index: 1}")
            .find("E206 GPU 1 is named by devices[0] and by devices[1]") != std::string::npos);
  CHECK(with_devices("{kind: cuda, index: [0, 1], count: 3}").find("names 2 GPUs, but count is 3") !=
        std::string::npos);
  CHECK(with_devices("{kind: cuda, index: []}").find("E207 devices[0].index is an empty list") != std::string::npos);
  CHECK(with_devices("{kind: cuda, index: [0, -1]}").find("E204 devices[0].index is -1; allowed is 0 to 1023") !=
        std::string::npos);
  CHECK(with_devices("{kind: cuda, index: [~]}").find("E207 devices[0].index holds an empty item") !=
        std::string::npos);
}

TEST_CASE("a UUID names one GPU, once, and in place of an index") {
  CHECK(with_devices("{kind: cuda, name: a, uuid: GPU-1f-2e}, {kind: cuda, name: b, uuid: MIG-1f}, {kind: cuda}")
            .empty());
  CHECK(with_devices("{kind: cpu, uuid: GPU-1f}").find("E206 devices[0].uuid is for kind cuda only") !=
        std::string::npos);
  CHECK(with_devices("{output_device: cpu}").find("devices[0].output_device is for kind cuda only") !=
        std::string::npos);
  CHECK(with_devices("{cuda_graph: never}").find("devices[0].cuda_graph is for kind cuda only") != std::string::npos);
  for (const char* wrong : {"GPU-", "gpu-1f", "GPU-1g", "GPU-1f-", "GPU--1f", "0"}) {
    INFO(wrong);
    CHECK(with_devices(std::string("{kind: cuda, name: a, uuid: '") + wrong + "'}")
              .find(std::string("E204 devices[0].uuid is '") + wrong + "', which is no GPU's UUID") !=
          std::string::npos);
  }
  CHECK(with_devices("{kind: cuda, name: a, uuid: GPU-1f, index: 0}").find("names its GPU twice") != std::string::npos);
  CHECK(with_devices("{kind: cuda, name: 'a{i}', uuid: GPU-1f, count: 2}").find("names one GPU, but count is 2") !=
        std::string::npos);
  CHECK(with_devices("{kind: cuda, uuid: GPU-1f}").find("devices[0].uuid needs a name beside it") != std::string::npos);
  CHECK(with_devices("{kind: cuda, name: a, uuid: GPU-1f}, {kind: cuda, name: b, uuid: GPU-1f}")
            .find("GPU GPU-1f is named by devices[0] and by devices[1]") != std::string::npos);
}

TEST_CASE("the number of devices is bounded") {
  CHECK(with_devices("{kind: cpu, count: 256}").empty());
  CHECK(with_devices("{kind: cpu, count: 200}, {kind: cpu, count: 57}") ==
        "1:55 E204 devices holds more than 256 devices (257 up to devices[1])\n");
}

TEST_CASE("heartbeat times must agree, with each other and with defaults") {
  const std::string devices = "devices: [{kind: cpu}]\n";
  CHECK(findings_of(devices + "heartbeat: {interval: 2s}\n") ==
        "2:23 E206 heartbeat.interval (2s) must be less than heartbeat.suspect (1500ms, the default)\n"
        "2:23 E206 heartbeat.dead (3s) must be at least three times heartbeat.interval (2s), so that one late beat is "
        "no death | set "
        "heartbeat.dead to 6s or more\n");
  CHECK(findings_of(devices + "heartbeat: {suspect: 3s}\n") ==
        "2:22 E206 heartbeat.suspect (3s) must be less than heartbeat.dead (3s, the default)\n");
  CHECK(findings_of(devices + "heartbeat: {interval: 100ms, suspect: 200ms, dead: 299ms}\n")
            .find("2:52 E206 heartbeat.dead (299ms)") == 0);
  CHECK(findings_of(devices + "heartbeat: {interval: 100ms, suspect: 200ms, dead: 300ms}\n").empty());
  CHECK(findings_of(devices + "restart: {backoff: {min: 40s}}\n") ==
        "2:26 E206 restart.backoff.min (40s) must be at most restart.backoff.max (30s, the default)\n");
}

TEST_CASE("cluster names become paths, so their grammar is narrow") {
  for (const char* name : {"'a/b'", "'..'", "Lab", "'-x'", "''", "'a b'", "a.b", "a_b"}) {
    INFO(name);
    CHECK(findings_of("name: " + std::string(name) + "\ndevices: [{kind: cpu}]\n").find("1:7 E204 name is '") == 0);
  }
  CHECK(findings_of("name: " + std::string(41, 'a') + "\ndevices: [{}]\n").find("1:7 E204") == 0);
  CHECK(findings_of("name: " + std::string(40, 'a') + "\ndevices: [{}]\n").empty());
}

TEST_CASE("paths are absolute and nothing in them is expanded") {
  CHECK(findings_of("devices: [{}]\nlog: {dir: logs}\n") ==
        "2:12 E204 log.dir is 'logs', which is not an absolute path | start it with '/'; '~' is not expanded\n");
  CHECK(findings_of("devices: [{}]\nlog: {dir: ~/logs}\n").find("E204 log.dir is '~/logs'") != std::string::npos);
  CHECK(findings_of("devices: [{}]\nlog: {dir: /tmp/$USER}\n").find("holds a '$': variables are not expanded") !=
        std::string::npos);
}

TEST_CASE("R53: a run directory too long for sockets is found here, with path, length and limit") {
  Machine machine{0, "/" + std::string(119, 'r'), {}};
  const Validation validation = validate_cluster("devices: [{kind: cpu}]", machine);
  REQUIRE(validation.errors == 1);
  CHECK(validation.findings[0].message ==
        "the run directory " + machine.run_root +
            "/local has 126 bytes; at most 74 are possible, because a socket's path ends at 107");
  CHECK(validation.findings[0].hint.find("CALLBOARD_RUN_DIR") != std::string::npos);
  machine.run_root = "/" + std::string(67, 'r');
  CHECK(validate_cluster("devices: [{kind: cpu}]", machine).ok());
  CHECK_FALSE(validate_cluster("name: local-1\ndevices: [{kind: cpu}]", machine).ok());
}

TEST_CASE("a kind without a backend here is a warning in a file, once, and an error before anything starts") {
  Machine machine = test::machine();
  machine.device_kinds = {"cpu"};
  const Validation validation = validate_cluster("devices: [{kind: cpu}, {kind: cuda}, {kind: cuda}]", machine);
  CHECK(validation.ok());
  REQUIRE(validation.warnings == 1);
  CHECK(validation.findings[0].message == "this installation has no backend for devices of kind 'cuda'");
  const Status refused = check_runs_here(validation.config, machine);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnsupported);
  CHECK(refused.error().message.find("'cuda0'") != std::string::npos);
  machine.device_kinds = {"cpu", "cuda"};
  CHECK(check_runs_here(validation.config, machine));
}

TEST_CASE("a GPU that one entry names twice is one fault") {
  CHECK(findings_of("devices: [{kind: cuda, index: [0, 0]}]\n")
            .find("GPU 0 is named twice by devices[0] | one device actor owns a GPU\n") != std::string::npos);
  CHECK(validate("devices: [{kind: cuda, index: [0, 0]}]").errors == 1);
}

TEST_CASE("Python kernels: every key reaches its member, and devices run them unless they are told not to") {
  const Validation validation = validate(R"(
devices: [{kind: cpu, count: 2}, {kind: cpu, python: none}]
python:
  executable: /venv/bin/python
  path: [/srv/a, /srv/b]
  kernels:
    - {target: "a.b:f"}
    - {target: "c:K.g", schema: "my::g(Tensor x) -> Tensor", random: true, warm_up: warm}
)");
  REQUIRE(validation.ok());
  const ClusterConfig& config = validation.config;
  CHECK(config.devices[0].python == "inline");
  CHECK(config.devices[1].python == "inline");
  CHECK(config.devices[2].python == "none");
  CHECK(config.python.executable == "/venv/bin/python");
  CHECK(config.python.path == std::vector<std::string>{"/srv/a", "/srv/b"});
  REQUIRE(config.python.kernels.size() == 2);
  CHECK(config.python.kernels[0].target == "a.b:f");
  CHECK(config.python.kernels[0].schema.empty());
  CHECK(config.python.kernels[1].schema == "my::g(Tensor x) -> Tensor");
  CHECK(config.python.kernels[1].random);
  CHECK(config.python.kernels[1].warm_up == "warm");
  CHECK(validate("devices: [{kind: cpu}]").config.devices[0].python == "none");
  CHECK(validate("devices: [{kind: cpu, python: inline}]").config.devices[0].python == "inline");
}

TEST_CASE("Python kernels in processes: how many, how long, how large") {
  const Validation validation = validate(R"(
devices: [{kind: cpu, python: process}, {kind: cpu}]
python:
  kernels: [{target: "a:f"}]
  count: 2
  spare: 1
  watchdog: 5s
  start_timeout: 3min
  memory_limit: 2GiB
)");
  REQUIRE(validation.ok());
  const ClusterConfig& config = validation.config;
  CHECK(config.devices[0].python == "process");
  CHECK(config.devices[1].python == "inline");
  CHECK(config.python.count == 2);
  CHECK(config.python.spare == 1);
  CHECK(config.python.watchdog == Millis(5'000));
  CHECK(config.python.start_timeout == Millis(180'000));
  CHECK(config.python.memory_limit == std::uint64_t{2} << 30);
  const auto on_gpu =
      findings_of("devices: [{kind: cuda, python: process}]\npython: {kernels: [{target: 'a:f'}], count: 2}\n");
  CHECK(on_gpu.empty());
  CHECK(findings_of("devices: [{kind: cpu}]\npython: {count: 0}\n").find("python.count") != std::string::npos);
  CHECK(findings_of("devices: [{kind: cpu}]\npython: {spare: 1}\n").find("python.spare has no effect") !=
        std::string::npos);
  CHECK(findings_of("devices: [{kind: cpu, python: process}]\n").find("python.kernels names no kernel") !=
        std::string::npos);
}

TEST_CASE("operator libraries: what an entry can and cannot be") {
  const std::string here = CALLBOARD_SOURCE_DIR "/README.md";  // a file is all that is looked for
  const std::string hash(64, 'a');
  const auto text = [](const std::string& list) { return "devices: [{kind: cpu}]\noperators: " + list + "\n"; };
  const auto has = [](const std::string& found, const std::string& part) {
    INFO(found);
    return found.find(part) != std::string::npos;
  };
  const Validation good = validate(text("[{path: " + here + "}, {path: /usr/bin/env, sha256: " + hash + "}]"));
  REQUIRE(good.ok());
  CHECK(good.findings.empty());
  REQUIRE(good.config.operators.size() == 2);
  CHECK(good.config.operators[0].path == here);
  CHECK(good.config.operators[0].sha256.empty());
  CHECK(good.config.operators[1].sha256 == hash);
  CHECK(check_runs_here(good.config, test::machine()));

  const std::string missing = text("[{path: /no/such/lib.so}]");
  CHECK(has(findings_of(missing), "2:20 W211 operators[0].path: /no/such/lib.so cannot be read: No such file"));
  const Status refused = check_runs_here(validate(missing).config, test::machine());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kFileNotFound);
  CHECK(has(refused.error().message, "/no/such/lib.so"));
  CHECK(has(findings_of(text("[{path: /usr}]")), "/usr is not a file"));

  CHECK(has(findings_of(text("[{}]")), "E207 operators[0] has no path"));
  CHECK(has(findings_of(text("[{path: lib.so}]")), "is not an absolute path"));
  CHECK(has(findings_of(text("[{path: /usr/bin/env}, {path: /usr/bin/env}]")),
            "is named by operators[0] and by operators[1]"));
  CHECK(has(findings_of(text("[{path: /usr/bin/env, sha256: abc}]")), "which is not 64 hexadecimal digits"));
  CHECK(has(findings_of(text("[{path: /usr/bin/env, sha265: abc}]")), "did you mean 'sha256'?"));
  CHECK(has(findings_of(text("/usr/bin/env")), "operators wants a list of maps"));
}

TEST_CASE("Python kernels: what an entry cannot be") {
  const auto found = [](const std::string& python) {
    return findings_of("devices: [{kind: cpu}]\npython: {" + python + "}\n");
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(found("kernels: [{}]"), "2:20 E207 python.kernels[0] has no target"));
  CHECK(has(found("kernels: [{target: scale}]"), "E204 python.kernels[0].target is 'scale', which is not of the form"));
  CHECK(has(found("kernels: [{target: \"1m:f\"}]"), "not of the form module:function"));
  CHECK(has(found("kernels: [{target: \"m:f\"}, {target: \"m:f\"}]"),
            "is named by python.kernels[0] and by python.kernels[1]"));
  CHECK(has(found("kernels: [{target: \"m:f\", random: true}]"), "python.kernels[0].random is given without a schema"));
  CHECK(has(found("kernels: [{target: \"m:f\", schema: \"f(Tensor x)\"}]"),
            "python.kernels[0].schema is 'f(Tensor x)', which names no operator with a namespace"));
  CHECK(has(found("kernels: [{target: \"m:f\", schema: \"aten::f(Tensor x) -> Tensor\"}]"),
            "which takes the namespace 'aten', which is not free | use your project's name there"));
  CHECK(
      has(found("kernels: [{target: \"m:f\", schema: \"a::f() -> ()\"}, {target: \"m:g\", schema: \"a::f() -> ()\"}]"),
          "E206 the operator 'a::f' is brought by python.kernels[0] and by python.kernels[1]"));
  CHECK(has(found("kernels: [{target: \"m:f\", warm_up: \"n:g\"}]"), "which is not a function's name"));
  CHECK(has(found("kernels: [{target: \"m:f\", wram_up: g}]"), "did you mean 'warm_up'?"));
  CHECK(has(found("kernels: {target: \"m:f\"}"), "python.kernels wants a list of maps"));
  CHECK(has(found("kernels: [f]"), "python.kernels[0] wants a map"));
  CHECK(has(found("path: /srv"), "python.path wants a list of paths"));
  CHECK(has(found("path: [srv]"), "not an absolute path"));
  CHECK(has(found("executable: python3"), "not an absolute path"));
  CHECK(found("kernels: []").empty());
  std::string many;
  for (int i = 0; i < 257; ++i) many += (i == 0 ? "" : ", ") + ("{target: \"m:f" + std::to_string(i)) + "\"}";
  CHECK(has(found("kernels: [" + many + "]"), "python.kernels has 257 entries; at most 256"));
  CHECK(has(findings_of("devices: [{kind: cpu, python: none}]\npython: {kernels: [{target: \"m:f\"}]}\n"),
            "W206 python.kernels names kernels, but every device has python: none"));
}

TEST_CASE("Python kernels without the plug-in are a warning in a file and an error before anything starts") {
  Machine machine = config::test::machine();
  machine.python = false;
  const Validation validation = validate_cluster("devices: [{kind: cpu, python: inline}]", machine);
  CHECK(validation.ok());
  REQUIRE(validation.findings.size() == 1);
  CHECK(validation.findings[0].message.find("cannot run Python kernels") != std::string::npos);
  const Status here = check_runs_here(validation.config, machine);
  REQUIRE_FALSE(here);
  CHECK(here.error().code == ErrorCode::kUnsupported);
  CHECK(here.error().hint.find("callboard_python.so") != std::string::npos);
  CHECK(check_runs_here(validate("devices: [{kind: cpu}]").config, machine));
}

TEST_CASE("memory beyond the machine's is a warning, not an error") {
  const Validation validation = validate("devices: [{kind: cpu, count: 2, memory_limit: 10GiB}]");
  CHECK(validation.ok());
  REQUIRE(validation.warnings == 1);
  CHECK(validation.findings[0].message == "the CPU devices may use 20GiB together; this machine has 16GiB");
  CHECK(validate("devices: [{kind: cpu, count: 2, memory_limit: 50%}]").warnings == 0);
  CHECK(validate("devices: [{kind: cuda, count: 2, memory_limit: 80GiB}]").warnings == 0);
  CHECK(findings_of("devices: [{}]\ntracing: {file: /t}\n")
            .find("2:17 W206 tracing.file is given, but tracing.enabled is false") == 0);
}

TEST_CASE("all errors come at once, sorted by position") {
  CHECK(findings_of("nmae: x\ndevices:\n  - {kind: gpu}\n  - {count: no}\nlog:\n  level: loud\nchecks: {nan: 1}\n") ==
        "1:1 E201 unknown key 'nmae' at the top level | did you mean 'name'?\n"
        "3:12 E204 devices[0].kind is 'gpu'; allowed is cpu and cuda | did you mean 'cuda'?\n"
        "4:13 E203 devices[1].count wants a whole number, not 'no'\n"
        "6:10 E204 log.level is 'loud'; allowed is trace, debug, info, warning and error\n"
        "7:15 E203 checks.nan wants true or false, not '1' | write true or false\n");
}

TEST_CASE("parse_cluster gives the findings as causes, each with file, line and column") {
  auto parsed = parse_cluster("devices: [{kind: cpu, cuont: 2}]\nnmae: x\n", "lab.yaml");
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().code == ErrorCode::kConfigUnknownKey);
  CHECK(parsed.error().message == "lab.yaml is not a valid cluster file: 2 errors");
  REQUIRE(parsed.error().causes.size() == 2);
  CHECK(parsed.error().causes[0].message == "lab.yaml:1:23: unknown key 'cuont' in devices[0]");
  CHECK(parsed.error().causes[0].hint == "did you mean 'count'?");
  CHECK(parsed.error().causes[1].message == "lab.yaml:2:1: unknown key 'nmae' at the top level");
  std::string many = "devices: [{}]\n";
  for (int i = 0; i < 200; ++i) many += "key" + std::to_string(i) + "x: 1\n";
  parsed = parse_cluster(many, "many.yaml");
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().message == "many.yaml is not a valid cluster file: 200 errors");
  CHECK(parsed.error().causes.size() == kFindingsMax);
}

TEST_CASE("load_cluster names a file that is not there and one that cannot be read") {
  CHECK(load_cluster("/nonexistent/x.yaml").error().code == ErrorCode::kFileNotFound);
  CHECK(load_cluster("/").error().code == ErrorCode::kFileUnreadable);
  CHECK(load_cluster("/dev/zero").error().code == ErrorCode::kFileUnreadable);
}

TEST_CASE("a pipe is read as long as somebody writes, and not waited for") {
  char folder[] = "/tmp/callboard-test-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto nobody = load_cluster(path);
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error().code == ErrorCode::kFileUnreadable);
  CHECK(nobody.error().message.find("nobody writes") != std::string::npos);
  ::unlink(path.c_str());
  ::rmdir(folder);

  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const std::string text = "devices: [{kind: cpu}]";
  REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  CHECK(load_cluster("/dev/fd/" + std::to_string(ends[0])).has_value());  // what bash's <(…) is
  ::close(ends[0]);
}

TEST_CASE("what is shown of a file that is no text is harmless") {
  const std::string binary("\x7f\x45LF\x00\x80\xff \xc2\x9b x", 13);
  const Validation validation = validate_cluster(binary, Machine::here());
  REQUIRE_FALSE(validation.ok());
  CHECK(validation.findings.front().hint == "is it the right file? It is not text");
  const std::string shown = format_findings(validation, binary, "x", false);
  CHECK(shown.find("    1 |  ELF ?? ") != std::string::npos);
  for (const char c : shown) CHECK((c == '\n' || (c >= 0x20 && c < 0x7f)));
}
