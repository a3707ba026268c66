// callboard-device: a device actor's process. Started by the node actor; a person runs `callboard up`.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include "actors/device/device_actor.h"
#include "config/cluster_config.h"
#include "messages/base/log.h"

int main(int argc, char** argv) {
  CLI::App app{
      "One device actor of a Callboard cluster. The node actor starts it; to start a cluster run: callboard up FILE"};
  callboard::actors::DeviceProcessOptions options;
  std::string config_file;
  app.add_option("--run-dir", options.run_dir, "Run directory of the cluster")->required();
  app.add_option("--name", options.name, "Name of the device, as in the cluster file")->required();
  app.add_option("--incarnation", options.incarnation, "Number of this start")->required();
  app.add_option("--config", config_file, "The cluster file in force; default: <run dir>/cluster.yaml");
  app.set_version_flag("--version", std::string(CALLBOARD_VERSION));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (config_file.empty()) config_file = options.run_dir + "/cluster.yaml";
  auto config = callboard::config::load_cluster(config_file);
  if (!config) {
    std::fprintf(stderr, "%s\n", config.error().to_string().c_str());
    return 2;
  }
  options.config = std::move(*config);
  callboard::log::start(callboard::ActorId{options.name, options.incarnation}.to_string(), options.config.log.level);
  const int status = callboard::actors::run_device(options);
  // No static destructors: LibTorch's take long, and memory that readers hold is not ours to take down.
  std::fflush(nullptr);
  ::_exit(status);
}
