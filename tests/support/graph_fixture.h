// Small programs by hand, for tests. Header only.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "messages/graph.h"

namespace callboard::test {

/// Every value is a float32 tensor of `sizes` unless said otherwise.
class GraphFixture {
 public:
  explicit GraphFixture(std::string name = "fixture") { program_.name = std::move(name); }

  ValueId input(const std::string& name, std::vector<std::int64_t> sizes = {4}) {
    const ValueId id = value(name, sizes);
    program_.inputs.push_back({name, id});
    return id;
  }
  /// `content` names the storage: equal contents are tied.
  ValueId constant(const std::string& name, std::int64_t elements = 4, std::string content = {}) {
    const ValueId id = value(name, {elements});
    if (content.empty()) content = name;
    program_.constants.push_back({name, id, ContentHash::of(content.data(), content.size()),
                                  static_cast<std::uint64_t>(elements) * 4,
                                  TensorMeta::contiguous(DType::kFloat32, {elements})});
    return id;
  }
  ValueId node(const std::string& op, std::vector<ValueId> reads, const std::string& module = {}, double cost = 1,
               std::vector<std::int64_t> sizes = {4}) {
    Node made;
    made.op = op;
    made.name = "n" + std::to_string(program_.nodes.size());
    made.module_path = module;
    made.cost = cost;
    for (ValueId id : reads) made.args.push_back(ArgValue{id});
    const ValueId id = value(made.name, sizes);
    made.outputs = {{false, {id}}};
    program_.nodes.push_back(std::move(made));
    return id;
  }
  void output(ValueId id) {
    program_.outputs.push_back({"out" + std::to_string(program_.outputs.size()), ArgValue{id}});
  }
  /// `before` is a constant made by constant().
  void state(const std::string& name, ValueId before, ValueId after) {
    for (std::uint32_t i = 0; i < program_.constants.size(); ++i) {
      if (program_.constants[i].value == before) program_.states.push_back({name, before, after, i});
    }
  }
  ProgramGraph& program() { return program_; }

 private:
  ValueId value(const std::string& name, const std::vector<std::int64_t>& sizes) {
    ValueSpec spec{name, ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{}};
    for (std::int64_t size : sizes) spec.sizes->push_back(Expr::constant(size));
    program_.values.push_back(std::move(spec));
    return static_cast<ValueId>(program_.values.size() - 1);
  }

  ProgramGraph program_;
};

/// x -> relu -> … -> relu, `count` nodes, modules "layer.0" … "layer.<count - 1>".
inline ProgramGraph chain_program(std::size_t count, const std::string& name = "chain") {
  GraphFixture fixture(name);
  ValueId last = fixture.input("x");
  for (std::size_t i = 0; i < count; ++i) last = fixture.node("aten::relu", {last}, "layer." + std::to_string(i));
  fixture.output(last);
  return fixture.program();
}

inline Placement split_placement(std::vector<std::pair<std::string, std::vector<std::string>>> rules) {
  Placement placement;
  placement.automatic = false;
  for (auto& [device, prefixes] : rules) placement.rules.push_back({device, prefixes, {}});
  return placement;
}

}  // namespace callboard::test
