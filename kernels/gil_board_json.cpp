#include "kernels/gil_board_json.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace callboard::kernels {

namespace {

nlohmann::json histogram_json(const DurationHistogram& histogram) {
  auto buckets = nlohmann::json::array();
  for (std::size_t i = 0; i < DurationHistogram::kBuckets; ++i) {
    if (histogram.count(i) != 0)
      buckets.push_back({{"below_us", std::uint64_t{1} << i}, {"count", histogram.count(i)}});
  }
  return {{"count", histogram.count()}, {"total_ns", histogram.total_ns()}, {"buckets", std::move(buckets)}};
}

}  // namespace

std::string gil_board_json(const GilBoard& board) {
  nlohmann::json text;
  const GilLedger& ledger = board.ledger;
  auto acquired = nlohmann::json::object();
  for (std::size_t i = 0; i < kGilSites; ++i) {
    const auto site = static_cast<GilSite>(i);
    acquired[std::string(gil_site_name(site))] = ledger.acquired(site);
  }
  text["gil"] = {{"acquired", std::move(acquired)},       {"wait", histogram_json(ledger.wait())},
                 {"hold", histogram_json(ledger.hold())}, {"waiting", ledger.waiting()},
                 {"waiting_most", ledger.waiting_most()}, {"refused_on_loop", ledger.on_loop()}};
  text["held_blocks"] = board.conversions.held_blocks.load(std::memory_order_relaxed);
  text["held_bytes"] = board.conversions.held_bytes.load(std::memory_order_relaxed);
  text["copied_results"] = board.conversions.copied_blocks.load(std::memory_order_relaxed);
  text["copied_result_bytes"] = board.conversions.copied_bytes.load(std::memory_order_relaxed);
  return text.dump();
}

}  // namespace callboard::kernels
