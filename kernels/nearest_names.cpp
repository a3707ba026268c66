#include "kernels/nearest_names.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace callboard::kernels {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view wanted, std::span<const std::string> names, std::size_t count) {
  const std::size_t distance_max = wanted.size() / 2;
  std::vector<std::pair<std::size_t, const std::string*>> near;
  for (const std::string& name : names) {
    const std::size_t shorter = std::min(name.size(), wanted.size());
    if (std::max(name.size(), wanted.size()) - shorter > distance_max) continue;
    const std::size_t distance = edit_distance(wanted, name);
    if (distance <= distance_max) near.emplace_back(distance, &name);
  }
  std::ranges::sort(
      near, [](const auto& a, const auto& b) { return std::tie(a.first, *a.second) < std::tie(b.first, *b.second); });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < near.size() && i < count; ++i) result.push_back(*near[i].second);
  return result;
}

}  // namespace callboard::kernels
