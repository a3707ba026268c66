// Time per call of an empty Python kernel, def empty(x): return x, inside a fragment (default checks, no hooks; all
// that a device does around it), and of a C++ loop that does the least: take the GIL, wrap a fresh tensor, call,
// unwrap, release. Both in one process on threads that keep their thread state, in alternating rounds; prints one JSON
// line.
//   calls     as above
//   streams   a C++ kernel while another thread holds the GIL, and while nobody does
//   process   an empty Python kernel in a GIL domain in a process; without a yardstick
//   bench-python-kernel calls|streams|process [rounds]
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/detach.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/python_variable.h>

#include "actors/device/helper_spawner.h"
#include "kernels/gil_domain.h"
#include "kernels/host_event.h"
#include "kernels/python/gil.h"
#include "kernels/python/inline_domain.h"
#include "kernels/runtime.h"
#include "messages/graph_check.h"

namespace {

using namespace callboard;
using namespace callboard::kernels;

constexpr ValueId kNodes = 1'000;
constexpr int kRunsPerRound = 10;
constexpr std::chrono::seconds kPatience{60};

/// x → op → … → op of one element.
Fragment chain_of(const std::string& op) {
  Fragment fragment;
  fragment.program = ContentHash::of(op.data(), op.size());
  fragment.device = "cpu0";
  const ValueSpec spec{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::constant(1)}};
  for (ValueId value = 0; value <= kNodes; ++value) {
    fragment.values[value] = spec;
    fragment.values[value].name = "v" + std::to_string(value);
  }
  fragment.inputs = {{0, FragmentInput::Source::kProgramInput, 0}};
  for (ValueId i = 0; i < kNodes; ++i) {
    Node node;
    node.op = op;
    node.args = {ArgValue{i}};
    node.outputs = {NodeOutput{false, {i + 1}}};
    node.name = "node_" + std::to_string(i);
    fragment.nodes.push_back(std::move(node));
    fragment.node_ids.push_back(i);
  }
  fragment.outputs.push_back({kNodes, true, {}});
  fragment.frees = compute_frees(fragment);
  return fragment;
}

[[noreturn]] void give_up(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  std::exit(1);
}

void await(const HostEvent& event, const char* what) {
  if (!event.wait_until(Clock::now() + kPatience)) give_up(Error(ErrorCode::kDeadlineExceeded, what));
}

/// Beside this program.
std::string device_program() {
  std::error_code ignored;
  return (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "callboard-device").string();
}

/// A folder with the module of both, gone at the end.
class ModuleFolder {
 public:
  ModuleFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "cb-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) give_up(Error(ErrorCode::kEnvironment, "no temporary folder can be made"));
    path_ = name;
    std::ofstream(path_ / "bench_kernels.py") << "def empty(x):\n    return x\n";
  }
  ~ModuleFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ModuleFolder(const ModuleFolder&) = delete;
  ModuleFolder& operator=(const ModuleFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Run {
  RunResult result;
  HostEvent ended;
};

double fragment_us_per_call(DeviceRuntime& runtime, const ContentHash& program) {
  std::int64_t total_ns = 0;
  const float one = 1;
  for (int i = 0; i < kRunsPerRound; ++i) {
    RunOrder order;
    order.run = static_cast<RunId>(i + 1);
    order.program = program;
    order.inputs = {TensorHandle{TensorMeta::contiguous(DType::kFloat32, {1}),
                                 InlineBytes{std::string(reinterpret_cast<const char*>(&one), sizeof one)}}};
    order.client = {"bench", 1};
    const auto run = std::make_shared<Run>();
    const Status sent = runtime.run(std::move(order), [run](RunResult result) {
      run->result = std::move(result);
      run->ended.record();
    });
    if (!sent) give_up(sent.error());
    await(run->ended, "the run did not end");
    if (run->result.error) give_up(*run->result.error);
    total_ns += run->result.run_ns;
  }
  return static_cast<double>(total_ns) / (1e3 * kNodes * kRunsPerRound);
}

double loop_us_per_call(PyObject* function) {
  const at::Tensor tensor = at::ones({1});
  const auto start = std::chrono::steady_clock::now();
  for (ValueId i = 0; i < kRunsPerRound * kNodes; ++i) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* argument = THPVariable_Wrap(at::detach(tensor));
    PyObject* result = PyObject_CallOneArg(function, argument);
    const at::Tensor unwrapped = THPVariable_Unpack(result);
    Py_DECREF(result);
    Py_DECREF(argument);
    PyGILState_Release(state);
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / (kRunsPerRound * kNodes);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

PyObject* empty_function() {
  const GilScopedAcquire gil(GilSite::kStart);
  PyObject* module = PyImport_ImportModule("bench_kernels");  // for good
  PyObject* function = module == nullptr ? nullptr : PyObject_GetAttrString(module, "empty");
  if (function == nullptr) give_up(Error(ErrorCode::kPythonFailed, "bench_kernels cannot be imported"));
  return function;
}

struct Rounds {
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  void add(double our, double their) {
    ours.push_back(our);
    theirs.push_back(their);
    ratios.push_back(our / their);
  }
};

void load(DeviceRuntime& runtime, const Fragment& fragment) {
  const auto loaded = std::make_shared<HostEvent>();
  const Status sent = runtime.load(fragment, [loaded](const Result<LoadedInfo>& info) {
    if (!info) give_up(info.error());
    loaded->record();
  });
  if (!sent) give_up(sent.error());
  await(*loaded, "the load did not end");
}

Rounds measure_calls(DeviceRuntime& runtime, int rounds) {
  const Fragment fragment = chain_of("bench::empty");
  load(runtime, fragment);
  PyObject* function = empty_function();
  fragment_us_per_call(runtime, fragment.program);  // warm-up
  loop_us_per_call(function);
  Rounds measured;
  for (int i = 0; i < rounds; ++i) {
    const double ours = fragment_us_per_call(runtime, fragment.program);
    measured.add(ours, loop_us_per_call(function));
  }
  return measured;
}

double measure_process(DeviceRuntime& runtime, int rounds) {
  const Fragment fragment = chain_of("bench::empty");
  load(runtime, fragment);
  fragment_us_per_call(runtime, fragment.program);  // warm-up
  std::vector<double> ours;
  for (int i = 0; i < rounds; ++i) ours.push_back(fragment_us_per_call(runtime, fragment.program));
  return median(ours);
}

Rounds measure_streams(DeviceRuntime& runtime, int rounds) {
  const Fragment fragment = chain_of("aten::relu");
  load(runtime, fragment);
  fragment_us_per_call(runtime, fragment.program);  // warm-up
  Rounds measured;
  for (int i = 0; i < rounds; ++i) {
    const double alone = fragment_us_per_call(runtime, fragment.program);
    const GilScopedAcquire held(GilSite::kCall);  // this thread's; the runs are the stream's
    measured.add(fragment_us_per_call(runtime, fragment.program), alone);
  }
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 60;
  if (what != "calls" && what != "streams" && what != "process") {
    std::fprintf(stderr, "usage: bench-python-kernel calls|streams|process [rounds]\n");
    return 2;
  }
  ArenaOptions arena_options;
  arena_options.owner = {"bench", 1};
  auto arena = Arena::create(arena_options, {});
  if (!arena) give_up(arena.error());
  install_arena_allocator(*arena);
  at::set_num_threads(1);
  register_gil_domain(make_inline_domain);

  const ModuleFolder folder;
  RuntimeOptions options;
  options.self = {"bench", 1};
  options.python = PythonOptions();
  options.python->path = {folder.path()};
  options.python->kernels = {{"bench_kernels:empty", "bench::empty(Tensor(a) x) -> Tensor(a)", false, ""}};
  actors::HelperSpawner spawner(device_program());
  if (what == "process") {
    options.python->processes.emplace();
    options.python->processes->spawn = [&](const actors::HelperSpawner::Fds& fds) { return spawner.spawn(fds); };
  }
  auto runtime = create_device_runtime(options, *arena, nullptr, nullptr);
  if (!runtime) give_up(runtime.error());
  if (what == "process") {
    std::printf("{\"nodes\": %u, \"rounds\": %d, \"ours_us\": %.4f}\n", kNodes, rounds,
                measure_process(**runtime, rounds));
    std::fflush(stdout);
    spawner.close();
    return 0;
  }
  const Rounds measured = what == "calls" ? measure_calls(**runtime, rounds) : measure_streams(**runtime, rounds);
  std::printf("{\"nodes\": %u, \"rounds\": %d, \"ours_us\": %.4f, \"yardstick_us\": %.4f, \"ratio\": %.4f}\n", kNodes,
              rounds, median(measured.ours), median(measured.theirs), median(measured.ratios));
  return 0;
}
