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
    case GilSite::kStop:
      return "stop";
  }
  return "unknown";
}

std::uint64_t DurationHistogram::count() const {
  std::uint64_t sum = 0;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) sum += count(bucket);
  return sum;
}

void DurationHistogram::add(const DurationHistogram& other) {
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    counts_[bucket].fetch_add(other.count(bucket), std::memory_order_relaxed);
  }
  total_ns_.fetch_add(other.total_ns(), std::memory_order_relaxed);
}

void GilLedger::add(const GilLedger& other) {
  for (std::size_t site = 0; site < kGilSites; ++site) {
    acquired_[site].fetch_add(other.acquired(static_cast<GilSite>(site)), std::memory_order_relaxed);
  }
  on_loop_.fetch_add(other.on_loop(), std::memory_order_relaxed);
  waiting_.fetch_add(other.waiting(), std::memory_order_relaxed);
  waiting_most_.store(std::max(waiting_most(), other.waiting_most()), std::memory_order_relaxed);
  wait_.add(other.wait());
  hold_.add(other.hold());
}

void ConversionCounts::add(const ConversionCounts& other) {
  held_blocks.fetch_add(other.held_blocks.load(std::memory_order_relaxed), std::memory_order_relaxed);
  held_bytes.fetch_add(other.held_bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  copied_blocks.fetch_add(other.copied_blocks.load(std::memory_order_relaxed), std::memory_order_relaxed);
  copied_bytes.fetch_add(other.copied_bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace callboard::kernels
