#include "tools/callboard/gpu_probe.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::cli;

namespace {

const std::vector<Gpu> kTwo{{0, "GPU-0a", "Model A", "8.0", 1 << 30}, {1, "GPU-1b", "Model B", "9.0", 1 << 30}};

config::DeviceConfig cuda(std::string name, std::uint32_t index, std::string uuid = {}) {
  config::DeviceConfig device;
  device.name = std::move(name);
  device.kind = "cuda";
  device.index = index;
  device.uuid = std::move(uuid);
  return device;
}

config::ClusterConfig cluster(std::vector<config::DeviceConfig> devices) {
  config::ClusterConfig config;
  config.devices = std::move(devices);
  return config;
}

/// A program in the device actor's place that prints `text`; removed at the end.
class Script {
 public:
  explicit Script(const std::string& text, int status = 0) {
    char name[] = "/tmp/callboard-probe-test-XXXXXX";
    path_ = mkdtemp(name);
    std::ofstream(path_ + "/out") << text;
    std::ofstream(path_ + "/device") << "#!/bin/sh\ncat '" << path_ << "/out'\nexit " << status << "\n";
    REQUIRE(chmod((path_ + "/device").c_str(), 0700) == 0);
  }
  ~Script() {
    unlink((path_ + "/out").c_str());
    unlink((path_ + "/device").c_str());
    rmdir(path_.c_str());
  }
  Programs programs() const { return {"/bin/true", path_ + "/device"}; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("a GPU is found by its number or by its UUID; out of range names how many there are") {
  CHECK(check_gpus(cluster({cuda("a", 0), cuda("b", 1)}), kTwo));
  CHECK(check_gpus(cluster({cuda("a", 0), cuda("b", 0, "GPU-1B")}), kTwo));
  const Status index = check_gpus(cluster({cuda("a", 2)}), kTwo);
  REQUIRE_FALSE(index);
  CHECK(index.error().code == ErrorCode::kEnvironment);
  CHECK(index.error().message == "device 'a' asks for GPU 2; 2 GPUs are here");
  CHECK(index.error().hint == "0: Model A (GPU-0a); 1: Model B (GPU-1b)");
  const Status uuid = check_gpus(cluster({cuda("a", 0, "GPU-77")}), {kTwo[0]});
  REQUIRE_FALSE(uuid);
  CHECK(uuid.error().message == "device 'a' asks for GPU GPU-77; 1 GPU is here");
}

TEST_CASE("one GPU named by number and by UUID is named twice") {
  const Status twice = check_gpus(cluster({cuda("a", 1), cuda("b", 0, "GPU-1b")}), kTwo);
  REQUIRE_FALSE(twice);
  CHECK(twice.error().code == ErrorCode::kConfigConflict);
  CHECK(twice.error().message == "GPU 1 (GPU-1b) is asked for by devices 'a' and 'b'");
}

TEST_CASE("what the device actor's program says of its GPUs is taken as it is, whatever libraries print before it") {
  const Script script(
      "a warning of some library\n"
      R"({"devices": [{"index": 3, "uuid": "GPU-0a", "name": "M", "compute_capability": "9.0", "memory_bytes": 5}]})"
      "\n");
  const auto gpus = probe_gpus(script.programs());
  REQUIRE(gpus);
  REQUIRE(gpus->size() == 1);
  CHECK(gpus->front().index == 3);
  CHECK(gpus->front().uuid == "GPU-0a");
  CHECK(gpus->front().name == "M");
  CHECK(gpus->front().compute_capability == "9.0");
  CHECK(gpus->front().memory_bytes == 5);
}

TEST_CASE("its error arrives with code and hint, and with the device that asked") {
  const Script script(R"({"error": {"code": 603, "message": "no driver", "hint": "install one"}})", 3);
  const Status refused = check_devices_here(cluster({cuda("g", 0)}), script.programs());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kEnvironment);
  CHECK(refused.error().message == "device 'g' cannot start: no driver");
  CHECK(refused.error().hint == "install one");
}

TEST_CASE("a program that says nothing of GPUs is told with its end and its words") {
  const Script script("ld.so: no such library\n", 127);
  const auto gpus = probe_gpus(script.programs());
  REQUIRE_FALSE(gpus);
  CHECK(gpus.error().code == ErrorCode::kEnvironment);
  CHECK(gpus.error().message.find("exit status 127") != std::string::npos);
  CHECK(gpus.error().detail.find("no such library") != std::string::npos);
}

TEST_CASE("a file without cuda devices asks nobody") {
  config::DeviceConfig cpu;
  cpu.name = "cpu0";
  CHECK(check_devices_here(cluster({cpu}), Programs{"/nowhere/a", "/nowhere/b"}));
}
