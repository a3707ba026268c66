// GIL domains in processes: what crosses, what stays, and everything that costs a child its life and the device
// nothing.
#include "kernels/process_domain/process_domain.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <nlohmann/json.hpp>

#include "kernels/kernel_failure.h"
#include "tests/kernels/process_domain/support/process_fixture.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kLarge = 100'000;  // elements: far above what travels as bytes

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const PythonOperator& operator_of(const GilDomain& domain, const std::string& function) {
  for (const PythonOperator& op : domain.operators()) {
    if (op.op == "standin::" + function) return op;
  }
  throw std::runtime_error("no operator standin::" + function);
}

std::vector<c10::IValue> call(GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments,
                              const StopSignal* stop = nullptr) {
  const c10::InferenceMode inference;
  torch::jit::Stack stack(std::move(arguments));
  std::vector<GilDomain::Undeclared> undeclared;
  domain.call(operator_of(domain, function), stack, undeclared, stop);
  if (!undeclared.empty()) throw std::runtime_error("it wrote to what it did not declare");
  return stack;
}

at::Tensor tensor_of(GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments) {
  return call(domain, function, std::move(arguments)).at(0).toTensor();
}

Error error_of(GilDomain& domain, const std::string& function, std::vector<c10::IValue> arguments,
               const StopSignal* stop = nullptr) {
  try {
    call(domain, function, std::move(arguments), stop);
  } catch (const KernelFailure& failure) {
    return failure.error();
  }
  throw std::runtime_error(function + " did not fail");
}

nlohmann::json told(const GilDomain& domain) { return nlohmann::json::parse(domain.describe()); }

/// Stops what runs once it is told to.
class Stop final : public StopSignal {
 public:
  explicit Stop(TimePoint deadline = kNever) : deadline_(deadline) {}
  std::optional<Error> stop_reason() const override {
    if (cancelled) return Error(ErrorCode::kCancelled, "nobody wants it");
    if (Clock::now() >= deadline_) return Error(ErrorCode::kDeadlineExceeded, "too late");
    return std::nullopt;
  }
  TimePoint deadline() const override { return deadline_; }
  std::atomic<bool> cancelled{false};

 private:
  const TimePoint deadline_;
};

RuntimeOptions in_process(const std::vector<std::string>& functions) {
  RuntimeOptions options;
  options.python = process_options(functions);
  return options;
}

/// The call that must cost its child; then the next one works, in another process.
Error fatal(const std::string& function, PythonOptions options) {
  options.kernels.push_back({"standin_kernels:process_number", "", false, ""});
  const auto domain = make_process_domain(std::move(options));
  const at::Tensor one = at::ones({1});
  const double before = tensor_of(*domain, "process_number", {one}).item<double>();
  const Error error = error_of(*domain, function, {one});
  const double after = tensor_of(*domain, "process_number", {one}).item<double>();
  CHECK(after != before);
  CHECK(told(*domain).at("ended") == 1);
  return error;
}

}  // namespace

TEST_CASE("arguments and results cross as they are: views, strides, dtypes, bits, lists, numbers, none") {
  const auto domain = make_process_domain(process_options({"same", "pair", "row", "join", "described", "count"}));
  const std::vector<at::Tensor> tensors = {
      at::rand({3}),
      at::rand({kLarge}),
      at::rand({300, 200}).t(),
      at::rand({400, 300}).slice(0, 100, 200),
      at::ones({0, 4}),
      at::full({}, 7, at::kLong),
      at::arange(kLarge, at::kInt),
      at::rand({kLarge}).to(at::kBFloat16),
      at::complex(at::rand({40'000}), at::rand({40'000})).conj(),
      at::rand({1, kLarge}).expand({3, kLarge}),
  };
  for (const at::Tensor& x : tensors) {
    const at::Tensor y = tensor_of(*domain, "same", {x});
    CHECK(identical(x, y));
    CHECK(x.strides() == y.strides());
    CHECK(x.storage().unsafeGetStorageImpl() == y.storage().unsafeGetStorageImpl());  // it is the argument
  }
  const at::Tensor rows = at::rand({2, kLarge});
  const at::Tensor row = tensor_of(*domain, "row", {rows});
  CHECK(identical(row, rows[1]));
  CHECK(row.storage().unsafeGetStorageImpl() == rows.storage().unsafeGetStorageImpl());
  const c10::List<at::Tensor> parts(std::vector<at::Tensor>{rows[0], rows[1]});
  CHECK(identical(tensor_of(*domain, "join", {parts, c10::IValue()}), at::cat({rows[0], rows[1]})));
  const auto numbers = call(*domain, "count", {at::ones({4})});
  CHECK(numbers[0].toInt() == 4);
  CHECK(numbers[1].toDouble() == 4.0);
  CHECK(numbers[2].toBool());
  const c10::List<std::int64_t> sizes({7, 8});
  CHECK(identical(tensor_of(*domain, "described",
                            {rows, 0.25, std::string("b"), sizes, false, static_cast<std::int64_t>(at::kHalf), 3}),
                  rows));
}

TEST_CASE("a large result lies in the device's own memory from the start and outlives its maker") {
  const auto domain = make_process_domain(process_options({"scale", "ends_process"}));
  const at::Tensor x = at::rand({kLarge});
  const at::Tensor y = tensor_of(*domain, "scale", {x, 2.5});
  const auto where = test_memory().arena->find(y.const_data_ptr());
  REQUIRE(where);
  CHECK(where->zone == Zone::kHelpers);
  CHECK_FALSE(error_of(*domain, "ends_process", {at::ones({1})}).message.empty());
  CHECK(identical(y, x * 2.5));
  const ActorId passer_by{"client", 99};
  CHECK(test_memory().arena->lease(y.const_data_ptr(), passer_by));  // and goes on without a copy
  test_memory().arena->holder_gone(passer_by);
}

TEST_CASE("what others lent to the device is read where it lies") {
  TestDevice device(in_process({"scale"}));
  FragmentMaker maker("lent in");
  const ValueId x = maker.input(tensor_spec(DType::kFloat32, {kLarge}));
  maker.output(maker.node("standin::scale", {value(x), 2.0}, {}, tensor_spec(DType::kFloat32, {kLarge})));
  const Fragment fragment = maker.build();
  const std::uint64_t copied = test_memory().arena->stats().copied_in_bytes;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor given = at::rand({kLarge});
    CHECK(identical(device.result(fragment, {given}), given * 2));
  }
  CHECK(test_memory().arena->stats().copied_in_bytes == copied);
  CHECK(test_memory().peer->stats().leases == 0);
}

TEST_CASE("memory of the device that calls have used comes back") {
  const std::uint64_t before = test_memory().arena->stats().in_use_bytes;
  {
    const auto domain = make_process_domain(process_options({"scale", "pair"}));
    for (int i = 0; i < 50; ++i) {
      const at::Tensor x = at::rand({kLarge + 4096 * i});
      CHECK(identical(tensor_of(*domain, "scale", {x, 2.0}), x * 2));
      CHECK(identical(call(*domain, "pair", {x})[1].toTensor(), x * 2));
    }
    // What the child keeps for its next results is bounded.
    CHECK(test_memory().arena->stats().in_use_bytes <= before + (64u << 20));
  }
  CHECK(test_memory().arena->stats().in_use_bytes == before);
}

TEST_CASE("what a kernel frees serves its next allocation, whatever the sizes") {
  const std::uint64_t before = test_memory().arena->stats().in_use_bytes;
  const auto domain = make_process_domain(process_options({"many_temporaries", "scale"}));
  // 100 times 48 MiB one after the other, and then 3 MiB ones behind 64 MiB of others: the arena has 1 GiB.
  const at::Tensor x = at::ones({12 << 20});
  CHECK(tensor_of(*domain, "many_temporaries", {x, std::int64_t{100}})[0].item<float>() == 101.0F);
  for (int i = 0; i < 64; ++i) tensor_of(*domain, "scale", {at::ones({256 << 10}), 2.0});
  const at::Tensor small = at::ones({768 << 10});
  CHECK(tensor_of(*domain, "many_temporaries", {small, std::int64_t{500}})[0].item<float>() == 501.0F);
  CHECK(test_memory().arena->stats().in_use_bytes <= before + x.nbytes() + small.nbytes() + (64u << 20));
}

TEST_CASE("a declared write becomes the argument's new value, and never reaches what the run was given") {
  TestDevice device(in_process({"add_to"}));
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{4}, kLarge}) {
    FragmentMaker maker("add_to" + std::to_string(size));
    const ValueId total = maker.input();
    const ValueId added = maker.input();
    const ValueId view = maker.node("aten::view", {value(total), ints({-1})});  // made before the write
    maker.node_without_outputs("standin::add_to", {value(total), value(added)});
    maker.node_without_outputs("standin::add_to", {value(total), value(added)});
    maker.output(maker.node("aten::clone", {value(total)}));
    maker.output(maker.node("aten::clone", {value(view)}));
    const Fragment fragment = maker.build();
    const at::Tensor x = at::rand({size});
    const at::Tensor kept = x.clone();
    const at::Tensor one = at::ones({size});
    for (int i = 0; i < 2; ++i) {
      const RunResult result = device.run(fragment, {to_wire(x), to_wire(one)});
      REQUIRE_FALSE(result.error);
      CHECK(identical(from_wire(result.to_client.at(0)), kept + one + one));
      CHECK(identical(from_wire(result.to_client.at(1)), kept + one + one));
      CHECK(identical(x, kept));
    }
  }
}

TEST_CASE("a child that ends in the midst of a declared write has spoilt nothing") {
  TestDevice device(in_process({"adds_and_ends", "add_to"}));
  const at::Tensor weight = at::full({kLarge}, 3.0);
  const auto adds = [&](const std::string& function) {
    FragmentMaker maker(function);
    const ValueId x = maker.input();
    const ValueId constant = add_constant(maker, weight);
    maker.node_without_outputs("standin::" + function, {value(constant), value(x)});
    maker.output(maker.node("aten::clone", {value(constant)}));
    return maker.build();
  };
  const RunResult ended = device.run(adds("adds_and_ends"), {to_wire(at::ones({kLarge}))});
  REQUIRE(ended.error);
  CHECK(ended.error->code == ErrorCode::kPythonFailed);
  CHECK(has(ended.error->message, "exit status 7"));
  CHECK(ended.error->op == "standin::adds_and_ends");
  CHECK(identical(device.result(adds("add_to"), {at::ones({kLarge})}), at::full({kLarge}, 4.0)));
  CHECK(identical(weight, at::full({kLarge}, 3.0)));
}

TEST_CASE("a write that is not declared stays with the child and fails the call") {
  TestDevice device(in_process({"writes_secretly", "scale"}));
  const at::Tensor weight = at::full({kLarge}, 3.0);
  FragmentMaker maker("writes_secretly");
  const ValueId constant = add_constant(maker, weight);
  maker.input();
  maker.output(maker.node("standin::writes_secretly", {value(constant)}));
  const Fragment fragment = maker.build();
  for (int i = 0; i < 2; ++i) {  // the device goes on
    const RunResult result = device.run(fragment, {to_wire(at::ones({1}))});
    REQUIRE(result.error);
    CHECK(result.error->code == ErrorCode::kPythonFailed);
    CHECK(has(result.error->message, "does not declare as written"));
  }
  CHECK(identical(weight, at::full({kLarge}, 3.0)));
}

TEST_CASE("what Python keeps of arguments and results parts from the device's memory") {
  const auto domain = make_process_domain(
      process_options({"keeps_argument", "keeps_result", "keeps_written", "kept_sum", "spoils_kept", "same"}));
  at::Tensor x = at::ones({kLarge});
  call(*domain, "keeps_argument", {x});
  const at::Tensor result = tensor_of(*domain, "keeps_result", {x});  // of twos
  {
    const auto block = domain->memory_to_write(at::zeros({kLarge}).storage());
    REQUIRE(block);
    at::Tensor written = at::zeros({0}).set_(*block, 0, {kLarge}, {1});
    written.fill_(4);
    call(*domain, "keeps_written", {written});
    CHECK(identical(written, at::full({kLarge}, 5.0)));
    written.fill_(100);  // the device's to use for something else
  }
  x.fill_(50);
  CHECK(tensor_of(*domain, "kept_sum", {at::ones({1})}).item<double>() == kLarge * (1.0 + 2.0 + 5.0));
  call(*domain, "spoils_kept", {at::ones({1})});
  CHECK(identical(result, at::full({kLarge}, 2.0)));
  CHECK(identical(x, at::full({kLarge}, 50.0)));
}

TEST_CASE("a thread of Python's own may allocate between calls, and the next call return it") {
  const auto domain = make_process_domain(process_options({"allocates_between"}));
  call(*domain, "allocates_between", {at::ones({1})});
  CHECK(identical(tensor_of(*domain, "allocates_between", {at::ones({1})}), at::full({kLarge}, 3.0)));
}

TEST_CASE("os._exit, a crash, a stack that is used up: an error of the call with how it ended and where") {
  const Error exits = fatal("ends_process", process_options({"ends_process"}));
  CHECK(exits.code == ErrorCode::kPythonFailed);
  CHECK(has(exits.message, "the Python kernel standin_kernels:ends_process ended the process of its GIL domain"));
  CHECK(has(exits.message, "exit status 9"));
  const Error crash = fatal("crashes", process_options({"crashes"}));
  CHECK(has(crash.message, "signal 11"));
  CHECK(has(crash.detail, "standin_kernels.py"));
  const Error deep = fatal("recurses_in_c", process_options({"recurses_in_c"}));
  CHECK(has(deep.message, "signal 11"));
}

TEST_CASE("sys.exit, KeyboardInterrupt, recursion in Python: errors of the call, and the child goes on") {
  const auto domain = make_process_domain(process_options({"exits", "interrupts", "recurses", "process_number"}));
  const double before = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
  for (const char* function : {"exits", "interrupts", "recurses"}) {
    const Error error = error_of(*domain, function, {at::ones({1})});
    CHECK(error.code == ErrorCode::kPythonFailed);
    CHECK(has(error.detail, "standin_kernels.py"));
  }
  CHECK(tensor_of(*domain, "process_number", {at::ones({1})}).item<double>() == before);
}

TEST_CASE("a call that takes too long is interrupted, where Python lets it; else its process is replaced") {
  {
    PythonOptions options = process_options({"spins", "process_number"});
    options.processes->watchdog = std::chrono::milliseconds(300);
    const auto domain = make_process_domain(std::move(options));
    const double before = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
    const Error error = error_of(*domain, "spins", {at::ones({1})});
    CHECK(error.code == ErrorCode::kDeadlineExceeded);
    CHECK(has(error.message, "ran longer than python.watchdog"));
    CHECK(has(error.detail, "in spins"));
    CHECK(tensor_of(*domain, "process_number", {at::ones({1})}).item<double>() == before);
  }
  for (const char* function : {"holds_the_gil", "spins_stubbornly"}) {
    PythonOptions options = process_options({function});
    options.processes->watchdog = std::chrono::milliseconds(300);
    const Error error = fatal(function, std::move(options));
    CHECK(error.code == ErrorCode::kDeadlineExceeded);
    CHECK(has(error.message, "its process was replaced"));
    CHECK(has(error.detail, std::string("in ") + function));  // where it hung
  }
}

TEST_CASE("deadlines and cancellation reach running Python") {
  const auto domain = make_process_domain(process_options({"spins", "process_number"}));
  const double before = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
  const Stop late(Clock::now() + std::chrono::milliseconds(200));
  CHECK(error_of(*domain, "spins", {at::ones({1})}, &late).code == ErrorCode::kDeadlineExceeded);
  Stop cancelled;
  std::thread canceller([&] {
    while (told(*domain).at("children").at(0).at("state") != "busy") std::this_thread::yield();
    cancelled.cancelled = true;
  });
  const Error error = error_of(*domain, "spins", {at::ones({1})}, &cancelled);
  canceller.join();
  CHECK(error.code == ErrorCode::kCancelled);
  CHECK(error.message == "nobody wants it");
  CHECK(tensor_of(*domain, "process_number", {at::ones({1})}).item<double>() == before);
}

TEST_CASE("a child with more memory than it may have ends, and its call says so") {
  PythonOptions options = process_options({"eats_memory"});
  options.processes->memory_limit = std::uint64_t{1} << 30;
  const Error error = fatal("eats_memory", std::move(options));
  CHECK(error.code == ErrorCode::kOutOfMemory);
  CHECK(has(error.message, "python.memory_limit"));
}

TEST_CASE("a result that the device's memory has no room for is kOutOfMemory, and the child goes on") {
  const auto domain = make_process_domain(process_options({"scale", "process_number"}));
  const double before = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
  const at::Tensor wide = at::ones({1}).expand({std::int64_t{1} << 29});  // 2 GiB as a result, of one element
  CHECK(error_of(*domain, "scale", {wide, 2.0}).code == ErrorCode::kOutOfMemory);
  CHECK(tensor_of(*domain, "process_number", {at::ones({1})}).item<double>() == before);
}

TEST_CASE("a child killed between calls is replaced before anybody needs it, at once where there is a spare one") {
  PythonOptions options = process_options({"process_number"});
  options.processes->spare = 1;
  const auto domain = make_process_domain(std::move(options));
  const auto pids = idle_children(*domain);
  REQUIRE(pids.size() == 2);
  const double first = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
  REQUIRE(::kill(static_cast<pid_t>(first), SIGKILL) == 0);
  const double second = tensor_of(*domain, "process_number", {at::ones({1})}).item<double>();
  CHECK(second != first);
  CHECK(std::ranges::find(pids, static_cast<std::int64_t>(second)) != pids.end());  // the spare one
  CHECK(await_idle(*domain, 2));
  CHECK(told(*domain).at("ended") == 1);
}

TEST_CASE("kernels that do not need each other run in as many processes at once as there are") {
  RuntimeOptions options = in_process({"meets", "scale", "add_to", "raises", "process_number"});
  options.python->processes->count = 2;
  TestDevice device(std::move(options));
  const at::Tensor x = at::rand({kLarge});
  {
    char folder[] = "/tmp/cb-meet-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    FragmentMaker maker("meet");
    const ValueId input = maker.input();
    const ValueId a = maker.node("standin::meets", {value(input), std::string(folder)});
    const ValueId b = maker.node("standin::meets", {value(input), std::string(folder)});
    maker.output(maker.node("aten::add.Tensor", {value(a), value(b)}));
    CHECK(identical(device.result(maker.build(), {x}), (x + 1) + (x + 1)));
    std::filesystem::remove_all(folder);
  }
  {
    // Results are waited for where they are needed, and a write waits for whoever reads what it writes to.
    FragmentMaker maker("order");
    const ValueId input = maker.input();
    const ValueId own = maker.node("aten::clone", {value(input)});
    const ValueId twice = maker.node("standin::scale", {value(own), 2.0});
    const ValueId thrice = maker.node("standin::scale", {value(own), 3.0});
    maker.node_without_outputs("standin::add_to", {value(own), value(input)});
    const ValueId relu = maker.node("aten::relu", {value(thrice)});
    const ValueId four = maker.node("standin::scale", {value(twice), 2.0});
    const ValueId more = maker.node("standin::scale", {value(relu), 1.0});
    maker.output(maker.node("aten::sub.Tensor", {value(four), value(more)}));
    maker.output(own);
    const Fragment fragment = maker.build();
    for (int i = 0; i < 5; ++i) {
      const RunResult result = device.run(fragment, {to_wire(x)});
      REQUIRE_FALSE(result.error);
      CHECK(identical(from_wire(result.to_client.at(0)), x * 2 * 2 - at::relu(x * 3)));
      CHECK(identical(from_wire(result.to_client.at(1)), x + x));
    }
  }
  {
    FragmentMaker maker("one fails");
    const ValueId input = maker.input();
    const ValueId good = maker.node("standin::scale", {value(input), 2.0});
    const ValueId bad = maker.node("standin::raises", {value(input)});
    const ValueId further = maker.node("standin::scale", {value(input), 3.0});
    maker.output(maker.node("aten::add.Tensor", {value(good), value(bad)}));
    maker.output(further);
    const RunResult result = device.run(maker.build(), {to_wire(x)});
    REQUIRE(result.error);
    CHECK(result.error->code == ErrorCode::kPythonFailed);
    CHECK(result.error->op == "standin::raises");
    CHECK(has(result.error->message, "nothing to do for"));
  }
  const auto text = nlohmann::json::parse(device.runtime().describe());
  CHECK(text.at("python").at("ended") == 0);
  CHECK(text.at("python").at("children").size() == 2);
}

TEST_CASE("a call under way gets its memory while the device runs its own kernels") {
  RuntimeOptions options = in_process({"scale", "same"});
  options.python->processes->count = 2;
  TestDevice device(std::move(options));
  FragmentMaker maker("beside");
  const ValueId input = maker.input();
  const ValueId far = maker.node("standin::scale", {value(input), 2.0});
  ValueId near = input;
  for (int i = 0; i < 400; ++i) near = maker.node("aten::add.Tensor", {value(near), std::int64_t{1}});
  const ValueId other = maker.node("standin::scale", {value(near), 3.0});
  const ValueId third = maker.node("standin::scale", {value(input), 5.0});  // more of them than places
  const ValueId sum = maker.node("aten::add.Tensor", {value(far), value(other)});
  maker.output(maker.node("aten::add.Tensor", {value(sum), value(third)}));
  const Fragment fragment = maker.build();
  const at::Tensor x = at::full({kLarge}, 2.0);
  for (int i = 0; i < 5; ++i) {
    CHECK(identical(device.result(fragment, {x}), at::full({kLarge}, 4.0) + at::full({kLarge}, 1206.0) + x * 5));
    if (i != 1) continue;
    // One of the two is killed: the run makes do with the other until the new one is there.
    const auto children = nlohmann::json::parse(device.runtime().describe()).at("python").at("children");
    REQUIRE(::kill(children.at(0).at("pid").get<pid_t>(), SIGKILL) == 0);
  }
}

TEST_CASE("a start that fails says what the child says, with its traceback") {
  PythonOptions options = process_options({"no_such_function"});
  const auto missing = make_gil_domain(options, c10::Device(c10::DeviceType::CPU), kSelf, 1, test_memory().arena,
                                       test_memory().segments.get());
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kBadArgument);
  CHECK(has(missing.error().message, "no_such_function"));
  PythonOptions ends = process_options({"same"});
  ends.executable = "/no/such/python";
  const auto nowhere = make_gil_domain(ends, c10::Device(c10::DeviceType::CPU), kSelf, 1, test_memory().arena,
                                       test_memory().segments.get());
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == ErrorCode::kEnvironment);
  const auto unshared = make_gil_domain(process_options({"same"}), c10::Device(c10::DeviceType::CUDA, 0), kSelf, 1,
                                      test_memory().arena, test_memory().segments.get());
  REQUIRE_FALSE(unshared);
  CHECK(unshared.error().code == ErrorCode::kUnsupported);
}

TEST_CASE("a start that takes too long ends, and says where it stood") {
  PythonOptions options = process_options({});
  options.kernels = {{"standin_kernels:plain", "standin::plain(Tensor x) -> Tensor", false, "warms_for_ever"}};
  Error late;
  for (const int seconds : {8, 40, 160}) {  // on a busy machine the time may be up before it comes so far
    options.processes->start_timeout = std::chrono::seconds(seconds);
    const auto never = make_gil_domain(options, c10::Device(c10::DeviceType::CPU), kSelf, 1, test_memory().arena,
                                       test_memory().segments.get());
    REQUIRE_FALSE(never);
    late = never.error();
    if (has(late.message, "warm-up")) break;
  }
  CHECK(late.code == ErrorCode::kStartFailed);
  CHECK(has(late.message, "not ready in time, while running the warm-up standin_kernels:warms_for_ever"));
  CHECK(has(late.detail, "in warms_for_ever"));
}

TEST_CASE("a module that hangs or crashes at its import is named, with where") {
  const auto error = [](const std::string& module, std::vector<std::string>& steps, std::chrono::seconds timeout) {
    steps.clear();
    PythonOptions options = process_options({});
    options.kernels = {{module + ":f", "", false, ""}};
    options.processes->start_timeout = timeout;
    options.step = [&steps](std::string_view step) { steps.emplace_back(step); };
    const auto made = make_gil_domain(options, c10::Device(c10::DeviceType::CPU), kSelf, 1, test_memory().arena,
                                      test_memory().segments.get());
    REQUIRE_FALSE(made);
    CHECK(made.error().code == ErrorCode::kStartFailed);
    return made.error();
  };
  std::vector<std::string> steps;
  const Error crash = error("crashes_at_import", steps, std::chrono::seconds(300));
  CHECK(has(crash.message, "ended before it was ready, while importing the module 'crashes_at_import': signal 11"));
  CHECK(has(crash.detail, "crashes_at_import.py"));
  Error hang;
  for (const int seconds : {8, 40, 160}) {  // on a busy machine the time may be up before torch is imported
    hang = error("hangs_at_import", steps, std::chrono::seconds(seconds));
    if (steps.size() > 1) break;
  }
  CHECK(has(hang.message, "was not ready in time, while importing the module 'hangs_at_import'"));
  CHECK(has(hang.detail, "hangs_at_import.py"));
  REQUIRE(steps.size() == 2);
  CHECK(steps[0] == "starting the interpreter and importing torch in process 1 of the GIL domain");
  CHECK(steps[1] == "importing the module 'hangs_at_import' in process 1 of the GIL domain");
}
