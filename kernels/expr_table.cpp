#include "kernels/expr_table.h"

#include <algorithm>
#include <utility>

#include "messages/base/check.h"

namespace callboard::kernels {

std::vector<std::pair<std::int32_t, std::int64_t>> ExprTable::key_of(const Expr& expr) {
  std::vector<std::pair<std::int32_t, std::int64_t>> key;
  key.reserve(expr.terms.size());
  for (const Expr::Term& term : expr.terms) key.emplace_back(static_cast<std::int32_t>(term.op), term.value);
  return key;
}

ExprTable::Index ExprTable::add(const Expr& expr) {
  const auto [place, fresh] = known_.try_emplace(key_of(expr), static_cast<Index>(entries_.size()));
  if (!fresh) return place->second;
  Entry entry{expr, {}, false};
  for (const Expr::Term& term : expr.terms) {
    if (term.op != ExprOp::kValue) continue;
    const auto value = static_cast<ValueId>(term.value);
    entry.reads.push_back(value);
    if (std::find(integers_read_.begin(), integers_read_.end(), value) == integers_read_.end()) {
      integers_read_.push_back(value);
    }
    if (value >= integers_.size()) {
      integers_.resize(value + 1, 0);
      integer_known_.resize(value + 1, true);
    }
  }
  entries_.push_back(std::move(entry));
  values_.push_back(0);
  begun_ = false;
  return place->second;
}

ExprTable::Index ExprTable::add_sizes(const std::vector<Expr>& sizes) {
  const auto first = static_cast<Index>(sizes_.size());
  for (const Expr& size : sizes) sizes_.push_back(add(size));
  expected_.resize(sizes_.size(), kLater);
  return first;
}

void ExprTable::set_unknown(ValueId value) {
  if (value < integer_known_.size()) integer_known_[value] = false;
}

std::string ExprTable::to_string(Index index, std::span<const std::string> symbol_names) const {
  return entries_[index].expr.to_string(symbol_names);
}

Status ExprTable::begin(std::span<const std::int64_t> symbols) {
  if (begun_ && std::ranges::equal(symbols, symbols_)) return {};
  begun_ = false;
  for (Index i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!entry.reads.empty()) continue;
    CALLBOARD_ASSIGN(values_[i], entry.expr.evaluate(symbols));
    entry.ready = true;
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    expected_[i] = entries_[sizes_[i]].ready ? values_[sizes_[i]] : kLater;
  }
  symbols_.assign(symbols.begin(), symbols.end());
  begun_ = true;
  return {};
}

void ExprTable::set_integer(ValueId value, std::int64_t integer) {
  CALLBOARD_CHECK(value < integers_.size(), "only integers that an expression reads are kept");
  integers_[value] = integer;
}

Result<std::optional<std::int64_t>> ExprTable::evaluate(Index index) const {
  const Entry& entry = entries_[index];
  if (entry.ready) return values_[index];
  for (const ValueId value : entry.reads) {
    if (!integer_known_[value]) return std::nullopt;
  }
  CALLBOARD_ASSIGN(const std::int64_t result, entry.expr.evaluate(symbols_, integers_));
  return result;
}

}  // namespace callboard::kernels
