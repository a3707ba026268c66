// Code that runs inside a cluster's device must not be a client of that cluster: it would wait for the very device that
// waits for it.
#pragma once

#include <string>

#include "messages/base/error.h"

namespace callboard::actors {

/// A device's, first thing in main: this process, and what it starts, belongs to the cluster of `run_dir`.
void mark_inside_cluster(const std::string& run_dir);
/// kUsage if this process is a device of that cluster or was started by one (a Python kernel's helper, say).
Status check_outside_cluster(const std::string& run_dir);

}  // namespace callboard::actors
