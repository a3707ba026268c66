// From the document tree to values, key by key, along the table of schema.h. Knows nothing of how keys depend on each
// other: that is checks.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/document.h"
#include "config/findings.h"
#include "config/schema.h"

namespace callboard::config {

struct Place {
  Position at;
  int width = 1;
};

/// Where the values are that the file gives, by key path ("heartbeat.dead"; within an entry of devices: "count").
using Places = std::map<std::string, Place, std::less<>>;

struct EntryRead {
  DeviceEntry entry;
  Place place;
  Places given;
  std::string label;    ///< "devices[1]"
  bool broken = false;  ///< has findings: what follows from its values is not to be believed
};

/// An entry of python.kernels.
struct KernelRead {
  PythonKernelConfig kernel;
  Place place;
  Places given;
  std::string label;  ///< "python.kernels[1]"
};

/// An entry of operators.
struct LibraryRead {
  OperatorLibraryConfig library;
  Place place;
  Places given;
  std::string label;  ///< "operators[0]"
};

struct ClusterRead {
  ClusterConfig config;  ///< without what is in the lists below
  std::vector<EntryRead> devices;
  std::vector<KernelRead> kernels;
  std::vector<LibraryRead> libraries;
  Places given;
};

/// `memory_bytes`: what percentages are of; 0 refuses them.
ClusterRead read_cluster(const DocumentNode& root, std::uint64_t memory_bytes, Findings& findings);

}  // namespace callboard::config
