// Typed construction of a program: gives ids and names, keeps the constants' bytes, and refuses misuse where it
// happens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/client/client.h"
#include "actors/client/profile.h"
#include "messages/graph.h"

namespace callboard::actors {

/// The bytes behind a constant. Unchanged and readable as long as the builder (or `keep`) lives.
struct ConstantStorage {
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  std::shared_ptr<void> keep;
};

/// Not thread-safe. Every add_… checks what it is given against what was added before (kBadGraph, kUseBeforeDefinition,
/// kBadArgument); a refused call leaves the builder as it was. What only the whole shows, finish() checks.
class FragmentBuilder {
 public:
  explicit FragmentBuilder(std::string name = {});

  /// Number of the symbol.
  Result<std::size_t> add_symbol(std::string name, std::int64_t min = 0, std::int64_t max = INT64_MAX);
  /// Shorthand: a symbol's expression.
  Result<Expr> symbol(std::string name, std::int64_t min = 0, std::int64_t max = INT64_MAX);

  Result<ValueId> add_input(ValueSpec spec);
  Result<ValueId> add_tensor_input(std::string name, DType dtype, std::optional<std::vector<Expr>> sizes = {});

  /// Hashes the storage once for each (address, length); equal storages are one. `meta` lies within the storage.
  Result<ValueId> add_constant(std::string name, ConstantStorage storage, TensorMeta meta, bool requires_grad = false);
  /// The constant `before` is a buffer that the program replaces by `after`, for the next run to read.
  Status add_state(std::string name, ValueId before, ValueId after);

  /// What an output position makes. nullopt: nobody wants it.
  struct Slot {
    bool is_list = false;
    std::vector<std::optional<ValueSpec>> values;  ///< not a list: exactly one
    static Slot one(ValueSpec spec) { return Slot{false, {std::move(spec)}}; }
    static Slot unused() { return Slot{false, {std::nullopt}}; }
  };
  /// `node.outputs` is filled in (what it holds is ignored), and `node.name` where it is empty. The outputs' ids.
  Result<std::vector<NodeOutput>> add_node(Node node, std::vector<Slot> slots);
  /// A node with one output.
  Result<ValueId> call(std::string op, std::vector<Argument> args, ValueSpec output);

  Status add_output(ProgramOutput output);
  Status add_output(std::string name, ValueId value) { return add_output({std::move(name), ArgValue{value}}); }
  void set_annotation(std::string key, std::string value) { graph_.annotations[std::move(key)] = std::move(value); }

  const ProgramGraph& graph() const { return graph_; }
  /// Checks the whole (check_program).
  Result<ProgramGraph> finish() const;
  /// Of profile_nodes(), for the graph that finish() gives.
  void set_costs(const NodeCosts& costs) { actors::set_costs(graph_, costs); }
  /// One for each distinct storage; valid as long as the builder.
  std::vector<ConstantBytes> constants() const;
  std::uint64_t constant_bytes() const;
  /// Bytes of one distinct storage; nullptr if there is none with that hash.
  const ConstantStorage* find_storage(const ContentHash& hash) const;

 private:
  Result<ValueId> new_value(ValueSpec spec);
  Status check_spec(const ValueSpec& spec) const;
  Status check_expr(const Expr& expr, const std::string& where) const;
  Status check_value(ValueId value, const std::string& where) const;
  Status check_argument(const Argument& argument, const std::string& where) const;

  ProgramGraph graph_;
  std::map<ContentHash, ConstantStorage> storages_;
  std::map<std::pair<const void*, std::uint64_t>, ContentHash> hashes_;  // of storages that stay where they are
  std::vector<std::shared_ptr<void>> keeps_;                             // of storages that equal another
  std::map<ValueId, std::uint32_t> constant_of_;                         // value -> index into constants
  std::set<std::string> input_names_, output_names_, symbol_names_;
};

}  // namespace callboard::actors
