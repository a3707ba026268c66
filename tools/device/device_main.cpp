// callboard-device: a device actor's process. Started by the node actor; a person runs `callboard up`.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/core/crash_report.h"
#include "actors/device/device_actor.h"
#include "config/cluster_config.h"
#include "kernels/process_domain/domain_server.h"
#include "kernels/runtime.h"
#include "messages/base/log.h"

namespace {

/// Prints one line of JSON: {"devices": […]} or {"error": {…}}.
int probe(const std::string& kind) {
  const auto devices = callboard::kernels::probe_devices(kind);
  nlohmann::json line;
  if (devices) {
    line["devices"] = nlohmann::json::parse(*devices, nullptr, false);
  } else {
    line["error"] = {{"code", static_cast<int>(devices.error().code)},
                     {"message", devices.error().message},
                     {"hint", devices.error().hint}};
  }
  std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(nullptr);
  ::_exit(devices ? 0 : 3);  // no static destructors, as below
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "One device actor of a Callboard cluster. The node actor starts it; to start a cluster run: callboard up FILE"};
  callboard::actors::DeviceProcessOptions options;
  std::string config_file;
  std::string probe_kind;
  app.add_option("--probe", probe_kind, "List the devices of this kind that are here as JSON, and end");
  auto* run_dir = app.add_option("--run-dir", options.run_dir, "Run directory of the cluster");
  auto* name = app.add_option("--name", options.name, "Name of the device, as in the cluster file")->needs(run_dir);
  auto* incarnation = app.add_option("--incarnation", options.incarnation, "Number of this start")->needs(name);
  bool gil_domain = false;
  app.add_flag("--gil-domain", gil_domain, "Serve a device's Python kernels; only a device starts this");
  app.add_option("--config", config_file, "The cluster file in force; default: <run dir>/cluster.yaml");
  app.set_version_flag("--version", std::string(CALLBOARD_VERSION));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!probe_kind.empty()) return probe(probe_kind);
  if (gil_domain) {
    const int status = callboard::kernels::serve_gil_domain();
    std::fflush(nullptr);
    ::_exit(status);  // no static destructors, and Python is never finalized
  }
  if (incarnation->empty()) {
    std::fprintf(stderr, "--run-dir, --name and --incarnation are needed, or --probe\n");
    return 2;
  }
  callboard::actors::report_crashes();
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
