// Which GPUs a device actor could own, asked of its own program: that alone sees what CUDA sees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/cluster_config.h"
#include "messages/base/error.h"
#include "tools/callboard/programs.h"

namespace callboard::cli {

struct Gpu {
  std::uint32_t index = 0;  ///< CUDA's number, as in the cluster file
  std::string uuid;
  std::string name;
  std::string compute_capability;
  std::uint64_t memory_bytes = 0;
};

/// Main thread (it starts a program; about two seconds). The plug-in's, the driver's or CUDA's own error where there is
/// none.
Result<std::vector<Gpu>> probe_gpus(const Programs& programs);

/// Does each cuda device of the file have a GPU of its own among `gpus`? kEnvironment names the device and what is
/// here.
Status check_gpus(const config::ClusterConfig& config, const std::vector<Gpu>& gpus);

/// What the file asks of this machine beyond what config::check_runs_here() knows; probes only if it asks for GPUs.
Status check_devices_here(const config::ClusterConfig& config, const Programs& programs);

}  // namespace callboard::cli
