// Fragments in a few lines, for tests.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "messages/graph.h"

namespace callboard::testing {

inline ValueSpec tensor_spec(DType dtype, std::vector<std::int64_t> sizes) {
  std::vector<Expr> expressions;
  for (const std::int64_t size : sizes) expressions.push_back(Expr::constant(size));
  return ValueSpec{"", ValueKind::kTensor, dtype, std::move(expressions)};
}
inline ValueSpec any_tensor() { return ValueSpec{}; }
inline ValueSpec number_spec(ValueKind kind) { return ValueSpec{"", kind, DType::kUndefined, std::nullopt}; }
inline Argument value(ValueId id) { return ArgValue{id}; }
inline ArgIntList ints(const std::vector<std::int64_t>& items) {
  ArgIntList list;
  for (const std::int64_t item : items) list.items.push_back(Expr::constant(item));
  return list;
}

class FragmentMaker {
 public:
  using Kwargs = std::vector<std::pair<std::string, Argument>>;

  /// Distinct names make distinct programs.
  explicit FragmentMaker(const std::string& name);

  /// The program's symbol number.
  std::size_t symbol(const std::string& name, std::int64_t min = 1, std::int64_t max = INT64_MAX);
  ValueId input(ValueSpec spec = any_tensor());
  ValueId constant(ContentHash storage, std::uint64_t storage_bytes, TensorMeta meta);
  /// `initial` is a value made by constant(); its new value is set by set_after().
  void state(ValueId initial, ValueId after);

  /// A node with one output.
  ValueId node(const std::string& op, std::vector<Argument> args, Kwargs kwargs = {}, ValueSpec output = any_tensor());
  /// A node with any outputs: for each position the specs of its values; list[i] says that position i is a list.
  std::vector<std::vector<ValueId>> node_of(const std::string& op, std::vector<Argument> args, Kwargs kwargs,
                                            std::vector<std::vector<ValueSpec>> outputs, std::vector<bool> lists = {});
  /// Declares no output at all, or drops output `position` of the last node.
  void node_without_outputs(const std::string& op, std::vector<Argument> args, Kwargs kwargs = {});
  void drop_output(std::size_t position);
  void output(ValueId value, bool to_client = true, std::size_t edges = 0);
  Node& last_node() { return fragment_.nodes.back(); }

  Fragment build();

 private:
  ValueId add(ValueSpec spec);
  Fragment fragment_;
  ValueId next_ = 0;
};

}  // namespace callboard::testing
