// GIL domains in processes on a GPU. Each test but the first ones needs one and says so where there is none.
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <nlohmann/json.hpp>

#include "tests/kernels/process_domain/support/process_fixture.h"
#include "tests/kernels/support/fake_exchange_device.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/gpu.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kLarge = 1 << 20;

RuntimeOptions in_process_on_gpu(const std::vector<std::string>& functions) {
  RuntimeOptions options;
  options.kind = "cuda";
  options.python = process_options(functions);
  return options;
}

Fragment scaled(const std::string& name, const std::string& function = "scale") {
  FragmentMaker maker(name);
  const ValueId x = maker.node("aten::add.Tensor", {value(maker.input()), std::int64_t{1}});
  const bool has_factor = function == "scale";
  const ValueId y =
      has_factor ? maker.node("standin::scale", {value(x), 2.0}) : maker.node("standin::" + function, {value(x)});
  maker.output(maker.node("aten::add.Tensor", {value(y), std::int64_t{1}}));
  return maker.build();
}

/// A device's end that has nothing to give.
class EmptyRoom final : public DeviceRoom {
 public:
  Result<CudaIpcBlock> lend(const c10::Storage&) override { return nothing(); }
  Result<CudaIpcBlock> grant(std::uint64_t) override { return nothing(); }
  Result<std::string> begin_call() override { return nothing(); }
  std::vector<DomainPlace> take_let_go() override { return {}; }
  Status end_call(const DeviceAnswer&) override { return nothing(); }
  Result<c10::Storage> take(const DomainPlace&) override { return nothing(); }

 private:
  static tl::unexpected<Error> nothing() { return fail(ErrorCode::kOutOfMemory, "there is no memory here"); }
};
class RoomyExchange final : public FakeExchange {
 public:
  std::string device_uuid() const override { return "GPU-00000000-0000-0000-0000-000000000000"; }
  Result<std::unique_ptr<DeviceRoom>> make_room(StreamContext&) override { return std::make_unique<EmptyRoom>(); }
};

nlohmann::json exchange_of(TestDevice& device) {
  return nlohmann::json::parse(device.runtime().describe()).at("backend_state").at("exchange");
}

}  // namespace

TEST_CASE("a device whose memory no process can share refuses a domain in processes") {
  const auto stream = make_cpu_backend().value()->make_stream(StreamKind::kCompute);
  REQUIRE(stream);
  FakeExchange exchange;
  const auto made = make_gil_domain(process_options({"same"}), c10::Device(c10::DeviceType::CUDA, 0), kSelf, 1,
                                    test_memory().arena, test_memory().segments.get(),
                                    {&exchange, stream->get(), c10::Device(c10::DeviceType::CUDA, 0), "cuda"});
  REQUIRE_FALSE(made);
  CHECK(made.error().code == ErrorCode::kUnsupported);
  CHECK(made.error().hint == "give the device python: inline");
}

TEST_CASE("a child that cannot open its device's GPU refuses the start, and says which") {
  const auto stream = make_cpu_backend().value()->make_stream(StreamKind::kCompute);
  REQUIRE(stream);
  RoomyExchange exchange;
  const auto made = make_gil_domain(process_options({"same"}), c10::Device(c10::DeviceType::CUDA, 0), kSelf, 1,
                                    test_memory().arena, test_memory().segments.get(),
                                    {&exchange, stream->get(), c10::Device(c10::DeviceType::CUDA, 0), "cuda"});
  REQUIRE_FALSE(made);
  INFO(made.error().to_string());
  CHECK(made.error().code == ErrorCode::kEnvironment);  // no driver, no GPU, or none with that UUID
}

TEST_CASE("a Python kernel in a process reads a GPU's tensors and its result is the device's", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(in_process_on_gpu({"scale"}));
  const Fragment fragment = scaled("gpu scale");
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1'000}, kLarge}) {
    const at::Tensor x = at::arange(size, at::kFloat);
    for (int i = 0; i < 3; ++i) CHECK(identical(device.result(fragment, {x}), (x + 1) * 2 + 1));
  }
}

TEST_CASE("a hundred calls of a process on a GPU leave as many leases and slabs as ten", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(in_process_on_gpu({"scale"}));
  const Fragment fragment = scaled("gpu many");
  const at::Tensor x = at::arange(kLarge, at::kFloat);
  for (int i = 0; i < 10; ++i) device.result(fragment, {x});
  const auto before = exchange_of(device);
  for (int i = 0; i < 100; ++i) CHECK(identical(device.result(fragment, {x}), (x + 1) * 2 + 1));
  const auto after = exchange_of(device);
  CHECK(after.at("leases") == before.at("leases"));
  CHECK(after.at("slabs") == before.at("slabs"));
}

TEST_CASE("constants are read where they lie, and a declared write is made on a copy", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(in_process_on_gpu({"add_to", "scale"}));
  FragmentMaker maker("gpu write");
  const ValueId x = maker.input();
  const ValueId weight = add_constant(maker, at::full({kLarge}, 3.0F));
  const ValueId scaled_weight = maker.node("standin::scale", {value(weight), 2.0});
  const ValueId total = maker.node("aten::add.Tensor", {value(x), std::int64_t{0}});
  maker.node_without_outputs("standin::add_to", {value(total), value(scaled_weight)});
  maker.output(total);
  const Fragment fragment = maker.build();
  for (int i = 0; i < 2; ++i) {
    CHECK(identical(device.result(fragment, {at::ones({kLarge})}), at::full({kLarge}, 7.0F)));
  }
}

TEST_CASE("a process that ends in a call on a GPU costs that call", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  TestDevice device(in_process_on_gpu({"scale", "crashes"}));
  const at::Tensor x = at::arange(kLarge, at::kFloat);
  const Fragment good = scaled("gpu good");
  CHECK(identical(device.result(good, {x}), (x + 1) * 2 + 1));
  const auto leases = exchange_of(device).at("leases");
  const RunResult crashed = device.run(scaled("gpu crash", "crashes"), {to_wire(x)});
  REQUIRE(crashed.error);
  CHECK(crashed.error->code == ErrorCode::kPythonFailed);
  CHECK(identical(device.result(good, {x}), (x + 1) * 2 + 1));  // in another process
  CHECK(exchange_of(device).at("leases") == leases);
  const auto children = nlohmann::json::parse(device.runtime().describe()).at("python").at("children");
  REQUIRE(::kill(children.at(0).at("pid").get<pid_t>(), SIGKILL) == 0);  // between two calls
  CHECK(identical(device.result(good, {x}), (x + 1) * 2 + 1));
}

TEST_CASE("calls of several processes on one GPU are under way at once", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  RuntimeOptions options = in_process_on_gpu({"scale"});
  options.python->processes->count = 2;
  TestDevice device(std::move(options));
  FragmentMaker maker("gpu beside");
  const ValueId x = maker.input();
  const ValueId a = maker.node("standin::scale", {value(x), 2.0});
  const ValueId b = maker.node("standin::scale", {value(x), 3.0});
  maker.output(maker.node("aten::add.Tensor", {value(a), value(b)}));
  const Fragment fragment = maker.build();
  const at::Tensor input = at::arange(kLarge, at::kFloat);
  for (int i = 0; i < 5; ++i) CHECK(identical(device.result(fragment, {input}), input * 5));
}
