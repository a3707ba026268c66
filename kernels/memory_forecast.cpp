#include "kernels/memory_forecast.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace callboard::kernels {

namespace {

/// More than any machine has; keeps the sum over all values of a fragment inside 64 bits.
constexpr std::uint64_t kBlockBytesMax = std::uint64_t{1} << 44;

/// nullopt where it cannot be known or does not fit 64 bits.
std::optional<std::uint64_t> bytes_of(std::size_t element_bytes, const std::vector<Expr>& sizes,
                                      std::span<const std::int64_t> symbols) {
  std::uint64_t bytes = element_bytes;
  for (const Expr& size : sizes) {
    const auto value = size.evaluate(symbols);
    if (!value || *value < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(*value), &bytes)) return std::nullopt;
  }
  return std::min(bytes, kBlockBytesMax);
}

bool reads_values(const Expr& expr) {
  return std::ranges::any_of(expr.terms, [](const Expr::Term& term) { return term.op == ExprOp::kValue; });
}

}  // namespace

MemoryForecast::MemoryForecast(const Fragment& fragment, const std::vector<std::vector<ValueId>>& frees,
                               std::span<const std::pair<ValueId, ValueId>> shared)
    : nodes_(fragment.nodes.size()) {
  for (const SymbolSpec& symbol : fragment.symbols) {
    smallest_.push_back(symbol.min);
    largest_.push_back(symbol.max);
    if (symbol.max == INT64_MAX) bounded_ = false;
  }

  std::map<ValueId, ValueId> owner;  // of a view: the value that has the memory
  for (const auto& [base, view] : shared) {
    const auto known = owner.find(base);
    owner.emplace(view, known == owner.end() ? base : known->second);
  }
  std::map<ValueId, std::size_t> last;  // of an owner: after which node the last of its views is gone
  for (std::size_t i = 0; i < frees.size(); ++i) {
    for (const ValueId value : frees[i]) {
      const auto known = owner.find(value);
      std::size_t& end = last.try_emplace(known == owner.end() ? value : known->second, i).first->second;
      end = std::max(end, i);
    }
  }
  std::set<ValueId> kept;  // outputs, and whatever has a view among them, stay to the end
  for (const FragmentOutput& output : fragment.outputs) {
    const auto known = owner.find(output.value);
    kept.insert(known == owner.end() ? output.value : known->second);
  }
  for (std::size_t i = 0; i < fragment.nodes.size(); ++i) {
    for (const NodeOutput& output : fragment.nodes[i].outputs) {
      for (const ValueId value : output.values) {
        const auto spec = fragment.values.find(value);
        if (value == kNoValue || owner.contains(value) || spec == fragment.values.end()) continue;
        if (spec->second.kind != ValueKind::kTensor || !spec->second.sizes) continue;
        if (spec->second.dtype == DType::kUndefined || std::ranges::any_of(*spec->second.sizes, reads_values)) continue;
        const auto end = last.find(value);
        const std::size_t gone = end == last.end() || kept.contains(value) ? nodes_ : end->second;
        blocks_.push_back({dtype_size(spec->second.dtype), *spec->second.sizes, i, gone});
      }
    }
  }
}

MemoryForecast::Peak MemoryForecast::peak(std::span<const std::int64_t> symbols) const {
  std::vector<std::uint64_t> begins(nodes_ + 1, 0);
  std::vector<std::uint64_t> ends(nodes_ + 2, 0);
  for (const Block& block : blocks_) {
    const std::uint64_t bytes = bytes_of(block.element_bytes, block.sizes, symbols).value_or(0);
    begins[block.first] += bytes;
    ends[block.last + 1] += bytes;
  }
  Peak peak;
  std::uint64_t now = 0;
  for (std::size_t i = 0; i < nodes_; ++i) {
    now = now - ends[i] + begins[i];
    if (now > peak.bytes) peak = {now, i};
  }
  return peak;
}

std::optional<MemoryForecast::Peak> MemoryForecast::largest() const {
  if (!bounded_) return std::nullopt;
  return peak(largest_);
}

MemoryForecast::Peak MemoryForecast::smallest() const { return peak(smallest_); }

}  // namespace callboard::kernels
