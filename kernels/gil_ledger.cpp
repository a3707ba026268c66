#include "kernels/gil_ledger.h"

namespace callboard::kernels {

std::string_view gil_site_name(GilSite site) {
  switch (site) {
    case GilSite::kStart:
      return "start";
    case GilSite::kImport:
      return "import";
    case GilSite::kWarmUp:
      return "warm_up";
    case GilSite::kCall:
      return "call";
    case GilSite::kThreadEnd:
      return "thread_end";
  }
  return "unknown";
}

std::uint64_t DurationHistogram::count() const {
  std::uint64_t sum = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) sum += count(bucket);
  return sum;
}

}  // namespace callboard::kernels
