#include "actors/core/inside_cluster.h"

#include <cstdlib>

namespace callboard::actors {

namespace {

constexpr const char* kVariable = "CALLBOARD_INSIDE_CLUSTER";

}  // namespace

void mark_inside_cluster(const std::string& run_dir) { ::setenv(kVariable, run_dir.c_str(), 1); }

Status check_outside_cluster(const std::string& run_dir) {
  const char* inside = std::getenv(kVariable);
  if (inside == nullptr || inside != run_dir) return {};
  return fail(ErrorCode::kUsage,
              "this code runs inside a device of the cluster '" + run_dir +
                  "' (a Python kernel), so it cannot be a "
                  "client of that cluster: the call would wait for the device that waits for it",
              "give the program the operator itself, or use another cluster");
}

}  // namespace callboard::actors
