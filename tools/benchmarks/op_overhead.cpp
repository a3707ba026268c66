// Time per operator of a chain of one-element additions: as a fragment through DeviceRuntime (default checks, no
// hooks), and as a loop over at::add on one thread in InferenceMode with the same allocator. Both in one process, in
// alternating rounds; prints one JSON line with the medians.
//   bench-op-overhead [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include "kernels/host_event.h"
#include "kernels/runtime.h"
#include "messages/graph_check.h"

namespace {

using namespace callboard;
using namespace callboard::kernels;

constexpr ValueId kNodes = 1'000;
constexpr int kRunsPerRound = 10;
constexpr std::chrono::seconds kPatience{60};

Fragment chain_of_additions() {
  Fragment fragment;
  fragment.program = ContentHash::of("op_overhead", 11);
  fragment.device = "cpu0";
  const ValueSpec spec{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::constant(1)}};
  for (ValueId value = 0; value < kNodes + 2; ++value) {
    fragment.values[value] = spec;
    fragment.values[value].name = "v" + std::to_string(value);
  }
  fragment.inputs = {{0, FragmentInput::Source::kProgramInput, 0}, {1, FragmentInput::Source::kProgramInput, 1}};
  for (ValueId i = 0; i < kNodes; ++i) {
    Node node;
    node.op = "aten::add.Tensor";
    node.args = {ArgValue{i == 0 ? 0 : i + 1}, ArgValue{1}};
    node.outputs = {NodeOutput{false, {i + 2}}};
    node.name = "add_" + std::to_string(i);
    fragment.nodes.push_back(std::move(node));
    fragment.node_ids.push_back(i);
  }
  fragment.outputs.push_back({kNodes + 1, true, {}});
  fragment.frees = compute_frees(fragment);
  return fragment;
}

[[noreturn]] void give_up(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status) give_up(status.error());
}

void await(const HostEvent& event, const char* what) {
  if (!event.wait_until(Clock::now() + kPatience)) give_up(Error(ErrorCode::kDeadlineExceeded, what));
}

WireValue one_float(float value) {
  InlineBytes bytes{std::string(reinterpret_cast<const char*>(&value), sizeof value)};
  return TensorHandle{TensorMeta::contiguous(DType::kFloat32, {1}), std::move(bytes)};
}

struct Run {
  RunResult result;
  HostEvent ended;
};

double fragment_us_per_op(DeviceRuntime& runtime, const ContentHash& program) {
  std::int64_t total_ns = 0;
  for (int i = 0; i < kRunsPerRound; ++i) {
    RunOrder order;
    order.run = static_cast<RunId>(i + 1);
    order.program = program;
    order.inputs = {one_float(0), one_float(1)};
    order.client = {"bench", 1};
    const auto run = std::make_shared<Run>();
    check(runtime.run(std::move(order), [run](RunResult result) {
      run->result = std::move(result);
      run->ended.record();
    }));
    await(run->ended, "the run did not end");
    if (run->result.error) give_up(*run->result.error);
    total_ns += run->result.run_ns;
  }
  return static_cast<double>(total_ns) / (1e3 * kNodes * kRunsPerRound);
}

double loop_us_per_op() {
  const c10::InferenceMode inference;
  const at::Tensor one = at::ones({1});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRunsPerRound; ++i) {
    at::Tensor sum = at::ones({1});
    for (ValueId k = 0; k < kNodes; ++k) sum = at::add(sum, one);
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / (kNodes * kRunsPerRound);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 60;
  ArenaOptions arena_options;
  arena_options.owner = {"bench", 1};
  auto arena = Arena::create(arena_options, {});
  if (!arena) give_up(arena.error());
  install_arena_allocator(*arena);
  at::set_num_threads(1);

  RuntimeOptions options;
  options.self = {"bench", 1};
  auto runtime = create_device_runtime(options, *arena, nullptr, nullptr);
  if (!runtime) give_up(runtime.error());
  const Fragment fragment = chain_of_additions();
  const auto loaded = std::make_shared<HostEvent>();
  check((*runtime)->load(fragment, [loaded](const Result<LoadedInfo>& info) {
    if (!info) give_up(info.error());
    loaded->record();
  }));
  await(*loaded, "the load did not end");

  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  fragment_us_per_op(**runtime, fragment.program);  // warm-up
  loop_us_per_op();
  for (int i = 0; i < rounds; ++i) {
    ours.push_back(fragment_us_per_op(**runtime, fragment.program));
    theirs.push_back(loop_us_per_op());
    ratios.push_back(ours.back() / theirs.back());
  }
  std::printf(
      "{\"nodes\": %u, \"rounds\": %d, \"ours_us_per_op\": %.4f, \"at_add_us_per_op\": %.4f, \"ratio\": %.4f}\n",
      kNodes, rounds, median(ours), median(theirs), median(ratios));
  return 0;
}
