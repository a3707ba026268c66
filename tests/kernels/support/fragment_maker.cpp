#include "tests/kernels/support/fragment_maker.h"

#include "messages/graph_check.h"

namespace callboard::testing {

FragmentMaker::FragmentMaker(const std::string& name) {
  fragment_.program = ContentHash::of(name.data(), name.size());
  fragment_.device = "cpu0";
}

std::size_t FragmentMaker::symbol(const std::string& name, std::int64_t min, std::int64_t max) {
  fragment_.symbols.push_back({name, min, max});
  return fragment_.symbols.size() - 1;
}

ValueId FragmentMaker::add(ValueSpec spec) {
  if (spec.name.empty()) spec.name = "v" + std::to_string(next_);
  fragment_.values[next_] = std::move(spec);
  return next_++;
}

ValueId FragmentMaker::input(ValueSpec spec) {
  const ValueId id = add(std::move(spec));
  fragment_.inputs.push_back(
      {id, FragmentInput::Source::kProgramInput, static_cast<std::uint32_t>(fragment_.inputs.size())});
  return id;
}

ValueId FragmentMaker::constant(ContentHash storage, std::uint64_t storage_bytes, TensorMeta meta) {
  const ValueId id = add(tensor_spec(meta.dtype, meta.sizes));
  fragment_.constants.push_back(
      {"constant_" + std::to_string(id), id, std::move(storage), storage_bytes, std::move(meta)});
  return id;
}

void FragmentMaker::state(ValueId initial, ValueId after) {
  for (std::uint32_t i = 0; i < fragment_.constants.size(); ++i) {
    if (fragment_.constants[i].value == initial) {
      fragment_.states.push_back({"state_" + std::to_string(initial), initial, after, i});
    }
  }
}

ValueId FragmentMaker::node(const std::string& op, std::vector<Argument> args, Kwargs kwargs, ValueSpec output) {
  return node_of(op, std::move(args), std::move(kwargs), {{std::move(output)}})[0][0];
}

std::vector<std::vector<ValueId>> FragmentMaker::node_of(const std::string& op, std::vector<Argument> args,
                                                         Kwargs kwargs, std::vector<std::vector<ValueSpec>> outputs,
                                                         std::vector<bool> lists) {
  Node node;
  node.op = op;
  node.args = std::move(args);
  node.kwargs = std::move(kwargs);
  node.name = "node_" + std::to_string(fragment_.nodes.size());
  node.module_path = "model.layer";
  node.source = "model.py:" + std::to_string(10 + fragment_.nodes.size()) + " in forward";
  std::vector<std::vector<ValueId>> made;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::vector<ValueId> ids;
    for (ValueSpec& spec : outputs[i]) ids.push_back(add(std::move(spec)));
    node.outputs.push_back({i < lists.size() && lists[i], ids});
    made.push_back(std::move(ids));
  }
  fragment_.nodes.push_back(std::move(node));
  return made;
}

void FragmentMaker::node_without_outputs(const std::string& op, std::vector<Argument> args, Kwargs kwargs) {
  node_of(op, std::move(args), std::move(kwargs), {});
}

void FragmentMaker::drop_output(std::size_t position) {
  for (ValueId& id : fragment_.nodes.back().outputs[position].values) {
    fragment_.values.erase(id);
    id = kNoValue;
  }
}

void FragmentMaker::output(ValueId id, bool to_client, std::size_t edges) {
  FragmentOutput output{id, to_client, {}};
  for (std::size_t i = 0; i < edges; ++i) output.edges.push_back({static_cast<std::uint32_t>(i + 1), "cpu1"});
  fragment_.outputs.push_back(std::move(output));
}

Fragment FragmentMaker::build() {
  Fragment made = fragment_;
  for (std::uint32_t i = 0; i < made.nodes.size(); ++i) made.node_ids.push_back(100 + i);
  made.frees = compute_frees(made);
  return made;
}

}  // namespace callboard::testing
