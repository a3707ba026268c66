// The size expressions of a fragment, each distinct one evaluated once per run. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/graph.h"

namespace callboard::kernels {

/// Belongs to one stream. Expressions over symbols alone are evaluated by begin(); those that read a value which a node
/// makes are evaluated when they are asked for.
class ExprTable {
 public:
  using Index = std::uint32_t;
  /// Stands in expected() for a size that is not known before its node ran; real sizes are never negative.
  static constexpr std::int64_t kLater = -1;

  // -- while loading -------------------------------------------------------------------------------------------------
  /// Equal expressions get one index.
  Index add(const Expr& expr);
  /// A run of sizes that lie next to each other in expected(); where they start.
  Index add_sizes(const std::vector<Expr>& sizes);
  /// The values whose integers the expressions read; each must be told by set_integer() when it is made.
  const std::vector<ValueId>& integers_read() const { return integers_read_; }
  /// These values are not made in this fragment: an expression over one of them gives nullopt.
  void set_unknown(ValueId value);
  std::string to_string(Index index, std::span<const std::string> symbol_names) const;

  // -- while running -------------------------------------------------------------------------------------------------
  /// Costs nothing when the symbols are those of the run before. kBadInput where an expression cannot be evaluated.
  Status begin(std::span<const std::int64_t> symbols);
  void set_integer(ValueId value, std::int64_t integer);

  bool is_ready(Index index) const { return entries_[index].ready; }
  /// Of one that is_ready().
  std::int64_t ready_value(Index index) const { return values_[index]; }
  /// Any; nullopt if it reads a value that is not known here.
  Result<std::optional<std::int64_t>> evaluate(Index index) const;

  const std::int64_t* expected(Index first) const { return expected_.data() + first; }
  Index size_index(Index position) const { return sizes_[position]; }

 private:
  struct Entry {
    Expr expr;
    std::vector<ValueId> reads;  // values in it; empty: symbols alone
    bool ready = false;
  };
  static std::vector<std::pair<std::int32_t, std::int64_t>> key_of(const Expr& expr);

  std::vector<Entry> entries_;
  std::vector<std::int64_t> values_;    // by entry; valid where ready
  std::vector<Index> sizes_;            // runs of sizes, as entries
  std::vector<std::int64_t> expected_;  // the same, evaluated
  std::map<std::vector<std::pair<std::int32_t, std::int64_t>>, Index> known_;
  std::vector<ValueId> integers_read_;
  std::vector<std::int64_t> integers_;  // by value id
  std::vector<bool> integer_known_;     // by value id; false: not in this fragment
  std::vector<std::int64_t> symbols_;   // of the last begin()
  bool begun_ = false;
};

}  // namespace callboard::kernels
