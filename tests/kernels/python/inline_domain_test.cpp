// Python kernels in a device: through the loader, the seven steps and the hand-over, and everything that a function can
// do wrong.
#include "kernels/python/inline_domain.h"

#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "kernels/python/gil.h"
#include "tests/kernels/python/support/python_fixture.h"
#include "tests/kernels/support/gpu.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// x → standin::function(x, …).
Fragment of_one(const std::string& function, std::vector<Argument> further = {}, ValueSpec output = any_tensor()) {
  FragmentMaker maker(function);
  std::vector<Argument> arguments{value(maker.input())};
  for (Argument& argument : further) arguments.push_back(std::move(argument));
  maker.output(maker.node("standin::" + function, std::move(arguments), {}, std::move(output)));
  return maker.build();
}

/// The error of a run that must fail by its kernel.
Error run_error(const std::string& function, ValueSpec output = any_tensor()) {
  TestDevice device(with_python({function}));
  const Fragment fragment = of_one(function, {}, std::move(output));
  const RunResult result = device.run(fragment, {to_wire(at::ones({3}))});
  REQUIRE(result.error);
  CHECK(result.error->op == "standin::" + function);
  CHECK(result.error->node == fragment.node_ids.at(0));
  CHECK(has(result.error->detail, "inputs: x = "));
  return *result.error;
}

}  // namespace

TEST_CASE("a Python kernel runs between C++ kernels and gives what eager gives") {
  TestDevice device(with_python({"scale"}));
  for (const std::int64_t size : {4, 100'000}) {
    FragmentMaker maker("mixed" + std::to_string(size));
    const ValueId x = maker.input(tensor_spec(DType::kFloat32, {2, size}));
    const ValueId positive = maker.node("aten::relu", {value(x)});
    const ValueId scaled =
        maker.node("standin::scale", {value(positive), 2.5}, {}, tensor_spec(DType::kFloat32, {2, size}));
    maker.output(maker.node("aten::add.Tensor", {value(scaled), value(x)}));
    const at::Tensor given = at::rand({2, size}) - 0.5;
    CHECK(identical(device.result(maker.build(), {given}), at::relu(given) * 2.5 + given));
  }
}

TEST_CASE("several results, lists, mutation, optional and keyword arguments, numbers") {
  TestDevice device(with_python({"pair", "chunks", "add_to", "join", "described", "count"}));
  const at::Tensor x = at::rand({4, 3});
  {
    FragmentMaker maker("pair");
    const auto results = maker.node_of("standin::pair", {value(maker.input())}, {}, {{any_tensor()}, {any_tensor()}});
    maker.output(maker.node("aten::sub.Tensor", {value(results[0][0]), value(results[1][0])}));
    CHECK(identical(device.result(maker.build(), {x}), (x + 1) - x * 2));
  }
  {
    FragmentMaker maker("chunks");
    const auto parts = maker.node_of("standin::chunks", {value(maker.input()), std::int64_t{2}}, {},
                                     {{any_tensor(), any_tensor()}}, {true});
    maker.output(parts[0][1]);
    CHECK(identical(device.result(maker.build(), {x}), x.slice(0, 2, 4)));
  }
  {
    FragmentMaker maker("add_to");
    const ValueId total = maker.input();
    const ValueId added = maker.input();
    maker.node_without_outputs("standin::add_to", {value(total), value(added)});
    maker.output(maker.node("aten::clone", {value(total)}));
    const Fragment fragment = maker.build();
    const at::Tensor one = at::ones({4, 3});
    CHECK(identical(device.result(fragment, {x, one}), x + one));
    CHECK(identical(device.result(fragment, {x, one}), x + one));  // the input itself was not written to
  }
  {
    FragmentMaker maker("join");
    const ValueId a = maker.input();
    const ValueId b = maker.input();
    maker.output(maker.node("standin::join", {ArgValueList{{a, b}}}));
    CHECK(identical(device.result(maker.build(), {x, x}), at::cat({x, x})));
  }
  {
    run_python("EVENTS.clear()");
    FragmentMaker maker("described");
    const ValueId input = maker.input();
    maker.output(maker.node("standin::described", {value(input)},
                            {{"eps", 0.25},
                             {"sizes", ints({7, 8, 9})},
                             {"dtype", ArgDType{DType::kBFloat16}},
                             {"scale", std::int64_t{3}}}));
    CHECK(identical(device.result(maker.build(), {x}), x));
    CHECK(python_text("EVENTS[-1]") == "(0.25, 'a', [7, 8, 9], True, torch.bfloat16, 3)");
  }
  {
    FragmentMaker maker("count");
    const auto numbers = maker.node_of(
        "standin::count", {value(maker.input())}, {},
        {{number_spec(ValueKind::kInt)}, {number_spec(ValueKind::kFloat)}, {number_spec(ValueKind::kBool)}});
    maker.output(maker.node("aten::full", {ints({2}), value(numbers[0][0])}));
    CHECK(identical(device.result(maker.build(), {x}), at::full({2}, 12, at::kLong)));
  }
}

TEST_CASE("a declared write goes to a copy of what the run was given, as for a C++ operator") {
  TestDevice device(with_python({"add_to"}));
  const at::Tensor weight = at::full({4}, 3.0);
  FragmentMaker maker("weights");
  const ValueId x = maker.input();
  const ValueId constant = add_constant(maker, weight);
  maker.node_without_outputs("standin::add_to", {value(constant), value(x)});
  maker.output(maker.node("aten::clone", {value(constant)}));
  const Fragment fragment = maker.build();
  for (int i = 0; i < 3; ++i) CHECK(identical(device.result(fragment, {at::ones({4})}), at::full({4}, 4.0)));
  CHECK(identical(weight, at::full({4}, 3.0)));
}

TEST_CASE("kernels find ordinary tensors without gradients and the device's threads") {
  RuntimeOptions options = with_python({"modes"});
  options.threads = 1;
  TestDevice device(std::move(options));
  const at::Tensor modes = device.result(of_one("modes"), {at::ones({3})});
  CHECK_FALSE(modes[0].item<bool>());  // inference mode
  CHECK_FALSE(modes[1].item<bool>());  // gradients
  CHECK_FALSE(modes[2].item<bool>());  // an inference tensor
  CHECK(modes[3].item<bool>());        // one thread
}

TEST_CASE("a result that is an argument, or looks into one, as its schema says, is the blob's own memory") {
  TestDevice device(with_python({"same", "row"}));
  FragmentMaker maker("views");
  const ValueId x = maker.input();
  const ValueId fresh = maker.node("aten::add.Tensor", {value(x), value(x)});
  const ValueId row = maker.node("standin::row", {value(maker.node("standin::same", {value(fresh)}))});
  maker.node("aten::add_.Tensor", {value(row), value(row)});  // written through the view
  maker.output(maker.node("aten::clone", {value(fresh)}));
  CHECK(identical(device.result(maker.build(), {at::ones({2, 2})}),
                  at::cat({at::full({1, 2}, 2.0), at::full({1, 2}, 4.0)})));
}

TEST_CASE("purity follows the declarations") {
  TestDevice device(with_python({"scale", "noise", "add_to"}));
  CHECK(device.load(of_one("scale", {2.0}))->pure);
  const auto noise = device.load(of_one("noise"));
  REQUIRE(noise);
  CHECK(noise->random);
  CHECK_FALSE(noise->pure);
}

TEST_CASE("a function without the decorator runs by the schema of the cluster file") {
  RuntimeOptions options;
  options.python = python_options({{"standin_kernels:plain", "standin::plain(Tensor x) -> Tensor", false, ""}});
  TestDevice device(std::move(options));
  CHECK(identical(device.result(of_one("plain"), {at::ones({3})}), at::zeros({3})));
}

TEST_CASE("warm-up functions run once, on the kernels' own thread with one intra-op thread, before the first call") {
  {
    const auto domain = make_domain({});
    run_python("EVENTS.clear()");
  }
  RuntimeOptions options = with_python({"warmed", "modes"});
  options.threads = 2;
  TestDevice device(std::move(options));
  CHECK(python_text("len(EVENTS)") == "1");
  CHECK(python_text("EVENTS[0]").find("warm on cpu, 1 thread, main Dummy") == 0);
  CHECK(identical(device.result(of_one("warmed"), {at::ones({2})}), at::ones({2})));
  const at::Tensor modes = device.result(of_one("modes"), {at::ones({3})});
  CHECK_FALSE(modes[3].item<bool>());  // its two threads again
}

TEST_CASE("a start tells each of its steps before it begins") {
  test_memory();
  std::vector<std::string> steps;
  PythonOptions options = python_options({{"standin_kernels:scale", "", false, ""},
                                          {"standin_kernels:warmed", "", false, ""},
                                          {"no_such_module:f", "", false, ""}});
  options.step = [&](std::string_view step) { steps.emplace_back(step); };
  CHECK_FALSE(make_gil_domain(options, c10::Device(c10::DeviceType::CPU)));
  CHECK(steps == std::vector<std::string>{"starting the interpreter and importing torch",
                                          "importing the module 'standin_kernels'",
                                          "importing the module 'no_such_module'"});
  options.kernels.pop_back();
  auto domain = make_gil_domain(options, c10::Device(c10::DeviceType::CPU));
  REQUIRE(domain);
  steps.clear();
  REQUIRE((*domain)->warm_up(1));
  CHECK(steps == std::vector<std::string>{"running the warm-up standin_kernels:warmed"});
}

TEST_CASE("a warm-up that fails is the device's start that fails, with the traceback") {
  test_memory();
  RuntimeOptions options;
  options.self = kSelf;
  options.python =
      python_options({{"standin_kernels:plain", "standin::plain(Tensor x) -> Tensor", false, "warm_up_fails"}});
  const auto runtime = create_device_runtime(std::move(options), test_memory().arena, test_memory().segments.get(),
                                             [](const ContentHash&, std::uint64_t) -> Result<ConstantStorage> {
                                               return fail(ErrorCode::kConstantMissing, "none");
                                             });
  REQUIRE_FALSE(runtime);
  CHECK(runtime.error().code == ErrorCode::kPythonFailed);
  CHECK(has(runtime.error().message, "standin_kernels:warm_up_fails raised ValueError: no warmth on cpu"));
  CHECK(has(runtime.error().detail, "standin_kernels.py"));
}

// -- bad input: the allow list
// ---------------------------------------------------------------------------------------------------------------

TEST_CASE("an operator that no entry brings is refused when it is loaded, with what to write") {
  TestDevice device(with_python({"scale"}));
  const auto unknown = device.load(of_one("no_such_kernel"));
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == ErrorCode::kUnknownOperator);
  CHECK(has(unknown.error().hint, "python: {kernels: [{target: \"module:function\"}]}"));
}

TEST_CASE("a function that is not on the list does not run, though importing its module registered the operator") {
  TestDevice device(with_python({"scale"}));
  const auto refused = device.load(of_one("from_numpy"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kUnknownOperator);
  CHECK(has(refused.error().message, "is the Python kernel 'standin_kernels:from_numpy', which python.kernels"));
  CHECK(has(refused.error().hint, "python: {kernels:"));
}

TEST_CASE("entries that cannot be: module, function, schema, signature, types, operator twice") {
  const auto error = [](const std::string& target, const std::string& schema = "", const std::string& warm_up = "") {
    const Error found = domain_error({{target, schema, false, warm_up}});
    CHECK(has(found.message, "Python kernel '" + target + "'"));
    return found;
  };
  const Error module = error("no_such_module:f");
  CHECK(module.code == ErrorCode::kPythonFailed);
  CHECK(has(module.message, "No module named 'no_such_module'"));
  CHECK(has(module.hint, "python.path"));
  CHECK(has(error("standin_kernels:no_such_function").message, "has no function 'no_such_function'"));
  CHECK(has(error("standin_kernels:not_a_function").message, "is a int, which cannot be called"));
  CHECK(has(error("standin_kernels").message, "module:function"));
  CHECK(has(error("standin_kernels:plain").message, "has no schema"));
  CHECK(has(error("standin_kernels:plain", "standin::plain(Tensor").message, "cannot be read"));
  CHECK(has(error("standin_kernels:plain", "plain(Tensor x) -> Tensor").message, "has no namespace"));
  CHECK(has(error("standin_kernels:plain", "aten::relu(Tensor x) -> Tensor").message, "namespace of PyTorch"));
  CHECK(has(error("standin_kernels:plain", "standin::plain(Tensor x, Tensor y) -> Tensor").message,
            "does not take the arguments of its schema"));
  CHECK(has(error("standin_kernels:takes_two").message, "does not take the arguments of its schema"));
  CHECK(has(error("standin_kernels:scale", "standin::scale(Tensor x) -> Tensor").message, "the function's own is"));
  CHECK(has(error("standin_kernels:plain", "standin::plain(Tensor x) -> Tensor", "no_warmth").message, "no_warmth"));
  const Error type = error("standin_kernels:plain", "standin::plain(Dict(str, Tensor) x) -> Tensor");
  CHECK(type.code == ErrorCode::kUnsupported);
  CHECK(has(type.message, "'x' is of type Dict"));
  CHECK(error("standin_kernels:plain", "standin::plain(Tensor x) -> str").code == ErrorCode::kUnsupported);
  CHECK(has(error("standin_kernels:plain", "standin::plain(Tensor x, ...) -> Tensor").message, "has '...'"));
  const Error twice = domain_error({{"standin_kernels:scale", "", false, ""},
                                    {"standin_kernels:plain", "standin::scale(Tensor x) -> Tensor", false, ""}});
  CHECK(has(twice.message, "is brought by 'standin_kernels:scale' already"));
}

TEST_CASE("an import that fails is told with its traceback") {
  const auto domain = make_domain({});
  run_python("import sys, types; sys.modules['half_module'] = None");
  const Error error = domain_error({{"half_module:f", "", false, ""}});
  CHECK(error.code == ErrorCode::kPythonFailed);
  CHECK(has(error.message, "importing the module 'half_module'"));
  CHECK_FALSE(error.detail.empty());
}

TEST_CASE("a node that does not fit the schema is refused when it is loaded") {
  TestDevice device(with_python({"scale", "pair"}));
  const auto missing = device.load(of_one("scale"));
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kBadArgument);
  CHECK(has(missing.error().message, "factor"));
  const auto outputs = device.load(of_one("pair"));
  REQUIRE_FALSE(outputs);
  CHECK(outputs.error().code == ErrorCode::kOutputMismatch);
}

// -- bad input: what functions do
// ------------------------------------------------------------------------------------------------------------

TEST_CASE("an exception arrives with type, text and traceback") {
  const Error error = run_error("raises");
  CHECK(error.code == ErrorCode::kPythonFailed);
  CHECK(has(error.detail, "inputs: x = float32[3] on cpu"));
  CHECK(error.message == "the Python kernel standin_kernels:raises raised ValueError: nothing to do for (3,)");
  CHECK(has(error.detail, "Traceback (most recent call last)"));
  CHECK(has(error.detail, "standin_kernels.py\", line "));
}

TEST_CASE("BaseException, deep recursion: errors of the call, no end of the process") {
  CHECK(has(run_error("exits").message, "raised SystemExit: 3"));
  CHECK(has(run_error("interrupts").message, "raised KeyboardInterrupt"));
  CHECK(has(run_error("recurses").message, "raised RecursionError"));
}

TEST_CASE("memory that is out is kOutOfMemory, as for a C++ operator") {
  CHECK(run_error("out_of_memory").code == ErrorCode::kOutOfMemory);
}

TEST_CASE("R27: a traceback keeps no tensors") {
  TestDevice device(with_python({"raises_with_memory"}));
  const Fragment fragment = of_one("raises_with_memory");
  device.run(fragment, {to_wire(at::ones({3}))});
  const std::uint64_t before = test_memory().arena->stats().in_use_bytes;
  for (int i = 0; i < 20; ++i) {
    const RunResult result = device.run(fragment, {to_wire(at::ones({3}))});
    REQUIRE(result.error);
    CHECK(has(result.error->detail, "KeyError: 'inner'"));
  }
  CHECK(test_memory().arena->stats().in_use_bytes == before);
}

TEST_CASE("results that are none of the schema's") {
  const auto message = [](const std::string& function) {
    const Error error = run_error(function);
    CHECK(error.code == ErrorCode::kOutputMismatch);
    CHECK(has(error.message, "the result of the Python kernel standin_kernels:" + function));
    return error.message;
  };
  CHECK(has(message("returns_none"), "found None"));
  CHECK(has(message("returns_dict"), "found a dict"));
  CHECK(has(message("returns_number"), "found a int"));
  CHECK(has(message("returns_numpy"), "numpy.ndarray"));
  CHECK(has(message("returns_list"), "found a list of 1"));
  CHECK(has(message("returns_sparse"), "sparse"));
  CHECK(has(message("returns_subclass"), "Subclass, a tensor that computes in Python"));
  for (const auto& [function, part] : {std::pair{"returns_three", "found a tuple of 3 where the schema returns 2"},
                                       std::pair{"returns_nested", "item 1: found a tuple of 2"}}) {
    TestDevice device(with_python({function}));
    FragmentMaker maker(function);
    const auto results = maker.node_of("standin::" + std::string(function), {value(maker.input())}, {},
                                       {{any_tensor()}, {any_tensor()}});
    maker.output(results[0][0]);
    const RunResult result = device.run(maker.build(), {to_wire(at::ones({3}))});
    REQUIRE(result.error);
    CHECK(has(result.error->message, part));
  }
  TestDevice device(with_python({"returns_something"}));
  FragmentMaker maker("something");
  const ValueId x = maker.input();
  maker.node_without_outputs("standin::returns_something", {value(x)});
  maker.output(maker.node("aten::clone", {value(x)}));
  const RunResult result = device.run(maker.build(), {to_wire(at::ones({3}))});
  REQUIRE(result.error);
  CHECK(has(result.error->message, "where the schema returns nothing"));
}

TEST_CASE("a text of an exception that is long or coloured arrives short and plain") {
  const Error error = run_error("raises_long_and_coloured");
  CHECK(has(error.message, "raised RuntimeError: red and mmm"));
  CHECK(has(error.message, "bytes left out) …"));
  CHECK(has(error.detail, "standin_kernels.py"));
  CHECK(has(error.detail, "the end"));
  const std::string all = error.to_string();
  CHECK(all.size() < 8'000);
  for (const char* escape : {"\x1b", "[31m", "\r"}) CHECK_FALSE(has(all, escape));
}

TEST_CASE("a result that shares memory with an argument or another result, which no schema says") {
  const auto refused = [](const std::string& function) {
    const Error error = run_error(function);
    CHECK(error.code == ErrorCode::kOutputMismatch);
    CHECK(has(error.hint, ".clone()"));
    return error.message;
  };
  CHECK(has(refused("returns_argument"), "it shares its memory with the argument 'x', which the schema does not say"));
  CHECK(has(refused("returns_view"), "shares its memory with the argument 'x'"));
  const auto domain = make_domain(standin({"returns_twice", "returns_overlapping", "parts_of"}));
  const Error twice = call_error(*domain, "returns_twice", {at::ones({3})});
  CHECK(twice.code == ErrorCode::kOutputMismatch);
  CHECK(has(twice.message, "item 1 shares its memory with item 0"));
  const c10::List<at::Tensor> parts(std::vector<at::Tensor>{at::ones({2}), at::ones({2})});
  CHECK(has(call_error(*domain, "returns_overlapping", {parts}).message, "shares its memory with another tensor"));
  const at::Tensor x = at::rand({4});
  const auto views = call(*domain, "parts_of", {x}).at(0).toTensorVector();
  REQUIRE(views.size() == 2);
  CHECK(views[1].storage().unsafeGetStorageImpl() == x.storage().unsafeGetStorageImpl());
}

TEST_CASE("step 5 holds Python's results to what the program declares: shape, dtype, device") {
  const ValueSpec declared = tensor_spec(DType::kFloat32, {3});
  CHECK(has(run_error("wrong_shape", declared).message, "expected float32[3] on cpu, found float32[2, 2] on cpu"));
  CHECK(has(run_error("wrong_dtype", declared).message, "expected float32[3] on cpu, found float64[3] on cpu"));
  CHECK(has(run_error("wrong_device", declared).message, "found float32[3] on meta"));
}

TEST_CASE("a write that is not declared is an error, also where the function then raises") {
  const Error error = run_error("writes_secretly");
  CHECK(error.code == ErrorCode::kPythonFailed);
  CHECK(has(error.message, "wrote to its argument 'x', which its schema does not declare"));
  CHECK(has(error.hint, "mutates=('x',)"));
  CHECK(has(run_error("writes_and_raises").message, "after the write"));
}

TEST_CASE("a write that is not declared into a constant ends the device: nothing computes with it any more") {
  for (const char* function : {"writes_secretly", "writes_and_raises"}) {
    RuntimeOptions options = with_python({function});
    std::vector<std::string> failures;
    options.device_failed = [&](const Error& error) { failures.push_back(error.op); };
    TestDevice device(std::move(options));
    FragmentMaker maker("damage" + std::string(function));
    maker.output(maker.node("standin::" + std::string(function), {value(add_constant(maker, at::full({4}, 3.5)))}));
    const Fragment fragment = maker.build();
    CHECK(device.run(fragment, {}).error);
    CHECK(failures == std::vector<std::string>{"standin::" + std::string(function)});
    const RunResult later = device.run(fragment, {});
    REQUIRE(later.error);
    CHECK(later.error->code == ErrorCode::kDeviceFailed);
    CHECK(failures.size() == 1);
  }
}

TEST_CASE("a function that keeps its argument or its result cannot change what others have") {
  TestDevice device(with_python({"keeps_result", "spoils_kept"}));
  run_python("KEPT.clear()");
  const RunResult kept = device.run(of_one("keeps_result"), {to_wire(at::ones({50'000}))});
  REQUIRE_FALSE(kept.error);
  device.result(of_one("spoils_kept"), {at::ones({2})});
  CHECK(identical(from_wire(kept.to_client.at(0)), at::full({50'000}, 2.0)));
}

TEST_CASE("a function may start processes and threads; R28: the process is the Python that is configured") {
  TestDevice device(with_python({"helper_process", "starts_thread"}));
  const at::Tensor minor = device.result(of_one("helper_process"), {at::ones({1})});
  CHECK(minor.item<float>() == std::stof(python_text("sys.version_info[1]")));
  CHECK(identical(device.result(of_one("starts_thread"), {at::ones({2})}), at::full({2}, 2.0)));
  CHECK(python_text("KEPT[-1][0].is_alive()") == "True");
  run_python("KEPT[-1][1].set()\nKEPT.pop()[0].join(20)");
}

TEST_CASE("R15: errors of many threads at once leave the GIL scope as plain data") {
  const auto domain = make_domain(standin({"raises", "scale"}));
  constexpr int kThreads = 4;
  constexpr int kCalls = 250;
  std::vector<int> failed(kThreads, 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < kCalls; ++k) {
        failed[static_cast<std::size_t>(i)] +=
            has(call_error(*domain, "raises", {at::ones({2})}).message, "ValueError") ? 1 : 0;
        call(*domain, "scale", {at::ones({2}), 2.0});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == std::vector<int>(kThreads, kCalls));
}

TEST_CASE("a device tells of its domain: versions, operators and the ledger, without taking the GIL") {
  TestDevice device(with_python({"scale"}));
  device.result(of_one("scale", {2.0}), {at::ones({3})});
  nlohmann::json text;
  {
    const GilScopedAcquire held(GilSite::kCall);  // describe() would not come back
    std::thread([&] { text = nlohmann::json::parse(device.runtime().describe()); }).join();
  }
  const nlohmann::json& python = text.at("python");
  CHECK(python.at("domain") == "inline");
  CHECK(python.at("torch") == python_text("torch.__version__"));
  CHECK(python.at("operators").at(0).at("op") == "standin::scale");
  CHECK(python.at("operators").at(0).at("target") == "standin_kernels:scale");
  CHECK(python.at("gil").at("acquired").at("call").get<int>() >= 1);
  CHECK(python.at("gil").at("wait").at("count").get<int>() >= 1);
}

namespace {

void check_a_kernel_that_changes_the_stream(const std::string& kind) {
  RuntimeOptions options = with_python({"changes_stream"});
  options.kind = kind;
  TestDevice device(options);
  run_python("EVENTS.clear()");
  FragmentMaker maker("changes_stream on " + kind);
  const ValueId y = maker.node("standin::changes_stream", {value(maker.input())});
  maker.output(maker.node("aten::add.Tensor", {value(y), std::int64_t{1}}));
  const Fragment fragment = maker.build();
  for (int round = 0; round < 5; ++round) {
    const at::Tensor x = at::rand({1 << 18});
    CHECK(identical(device.result(fragment, {x}), x * 2 + 1));
  }
  // The one that the guard set before each call; the kernel had left another one each time.
  CHECK(python_text("len(set(EVENTS))") == (kind == "cuda" ? "1" : "0"));
}

}  // namespace

TEST_CASE("a kernel that would set another stream on a GPU computes the same on the cpu") {
  check_a_kernel_that_changes_the_stream("cpu");
}

TEST_CASE("a kernel that sets another CUDA stream leaves the device's current, and its output is in order") {
  CALLBOARD_NEEDS_GPU();
  check_a_kernel_that_changes_the_stream("cuda");
}
