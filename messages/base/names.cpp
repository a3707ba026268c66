#include "messages/base/names.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace callboard {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

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

}  // namespace callboard
