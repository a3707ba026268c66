#include "tests/simulation/fake_runtime.h"

#include <algorithm>
#include <utility>

namespace callboard::simulation {

Content constant_content(const Constant& constant) {
  return content_of("constant " + std::string(constant.storage.bytes()));
}

Content evaluate(const Node& node, const std::map<ValueId, Content>& values) {
  if (node.op == "sim::count") return values.at(std::get<ArgValue>(node.args.at(0)).value) + 1;
  Content result = content_of(node.op);
  for (const Argument& argument : node.args) result = mix(result, values.at(std::get<ArgValue>(argument).value));
  return result;
}

void FakeRuntime::unload(const ContentHash& program) {
  std::erase_if(loaded_, [&](const auto& entry) { return entry.first.first == program; });
}

void FakeRuntime::run(kernels::RunOrder order, Done done) {
  queue_.push_back(Job{std::move(order), std::move(done), {}});
  if (!running_) start_next();
}

void FakeRuntime::cancel(RunId run, const Error& reason) {
  for (Job& job : queue_) {
    if (job.order.run == run && !job.cancelled) job.cancelled = reason;
  }
}

void FakeRuntime::start_next() {
  running_ = !queue_.empty();
  if (!running_) return;
  for (const WireValue& input : queue_.front().order.inputs) memory_.read(self_, input);  // while it runs it reads
  const Duration time = world_.between(std::chrono::microseconds(10), faults_.slowest);
  world_.at(std::max(world_.now(), busy_until_) + time, [this, alive = std::weak_ptr<int>(alive_)] {
    if (alive.expired()) return;
    if (busy_until_ > world_.now()) return start_next();  // it was stopped meanwhile
    complete();
  });
}

void FakeRuntime::complete() {
  Job job = std::move(queue_.front());
  queue_.pop_front();
  kernels::RunResult result;
  if (job.cancelled) {
    result.error = job.cancelled;
  } else if (job.order.deadline <= world_.now()) {
    result.error = Error(ErrorCode::kDeadlineExceeded, "the deadline passed between two kernels");
  } else {
    result = compute(job.order);
  }
  for (const WireValue& input : job.order.inputs) give_back(input);
  job.done(std::move(result));
  start_next();
}

kernels::RunResult FakeRuntime::compute(const kernels::RunOrder& order) {
  kernels::RunResult result;
  const auto found = loaded_.find({order.program, order.fragment});
  if (found == loaded_.end()) {
    result.error = Error(ErrorCode::kProgramUnknown, "not loaded");
    return result;
  }
  Loaded& loaded = found->second;
  const Fragment& fragment = loaded.fragment;
  std::map<ValueId, Content> values;
  for (const Constant& constant : fragment.constants) values[constant.value] = constant_content(constant);
  for (const State& state : fragment.states) {
    const auto held = loaded.states.find(state.name);
    values[state.before] = held == loaded.states.end() ? 0 : held->second;
  }
  for (std::size_t i = 0; i < fragment.inputs.size(); ++i) {
    values[fragment.inputs[i].value] = memory_.read(self_, order.inputs.at(i));
  }
  for (std::size_t i = 0; i < fragment.nodes.size(); ++i) {
    const Node& node = fragment.nodes[i];
    if (node.op == "sim::fragile" && world_.chance(faults_.fails)) {
      result.error = Error(ErrorCode::kKernelFailed, "the kernel threw");
      result.error->node = fragment.node_ids[i];
      return result;
    }
    values[node.outputs.at(0).values.at(0)] = evaluate(node, values);
  }
  for (const State& state : fragment.states) loaded.states[state.name] = values.at(state.after);
  if (!fragment.states.empty()) result.state_version = ++loaded.version;
  hand_out(fragment, order, values, result);
  return result;
}

void FakeRuntime::hand_out(const Fragment& fragment, const kernels::RunOrder& order,
                           const std::map<ValueId, Content>& values, kernels::RunResult& result) {
  std::size_t edge_number = 0;
  for (const FragmentOutput& output : fragment.outputs) {
    const Content content = values.at(output.value);
    const bool small = world_.chance(0.3);
    if (output.to_client) {
      result.to_client.push_back(small ? Memory::small(content) : memory_.lend(self_, order.client, content));
    }
    for (std::size_t i = 0; i < output.edges.size(); ++i) {
      const ActorId& holder = order.edge_holders.at(edge_number++);
      result.on_edges.push_back(small ? Memory::small(content) : memory_.lend(self_, holder, content));
    }
  }
}

void FakeRuntime::give_back(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  const auto* block = handle == nullptr ? nullptr : std::get_if<ArenaBlock>(&handle->data);
  if (block != nullptr && block->lease != 0) on_release(block->owner, block->lease);
}

}  // namespace callboard::simulation
