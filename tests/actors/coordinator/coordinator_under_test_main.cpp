// A coordinator process for coordinator_actor_test: RUN_DIR, and two CPU devices that never come.
#include "actors/coordinator/coordinator_actor.h"
#include "messages/base/log.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  callboard::log::start("coordinator#1", callboard::log::Level::kDebug);
  callboard::actors::CoordinatorProcessOptions options;
  options.run_dir = argv[1];
  options.config.name = "under-test";
  for (const char* name : {"cpu0", "cpu1"}) {
    callboard::config::DeviceConfig device;
    device.name = name;
    options.config.devices.push_back(device);
  }
  return callboard::actors::run_coordinator(std::move(options));
}
