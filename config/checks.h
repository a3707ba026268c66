// What the keys of a cluster file must be together, and which devices its entries stand for.
#pragma once

#include "config/findings.h"
#include "config/machine.h"
#include "config/reader.h"

namespace callboard::config {

/// Fills in `read.config.devices` and reports what contradicts.
void check_cluster(ClusterRead& read, const Machine& machine, Findings& findings);

}  // namespace callboard::config
