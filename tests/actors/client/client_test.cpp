#include "actors/client/client.h"

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "messages/limits.h"
#include "tests/actors/client/client_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;
using namespace std::chrono_literals;

TEST_CASE("a request's result has the program's outputs, known ones filled in", "[client]") {
  Connected c;
  CHECK(c.program->plan().at(0).device == "cpu0");
  CHECK(c.client->cluster().name == "fake");
  const auto future = c.submit(5s);
  const Submit sent = c.cluster.await<Submit>();
  CHECK(sent.program == c.program->id());
  CHECK(sent.symbols == std::vector<std::int64_t>{2});
  CHECK(sent.deadline_ms > 0);
  CHECK(sent.deadline_ms <= 5000);
  REQUIRE(sent.inputs.size() == 2);
  CHECK(sent.inputs[1] == WireValue(std::int64_t{1}));
  CHECK_FALSE(future->is_ready());
  std::promise<void> called;  // a second call would throw
  future->on_ready([&] { called.set_value(); });
  Outcome outcome = ok(sent.request, small(2.5f));
  outcome.state_version = 7;
  c.cluster.send(c.cluster.client(), outcome);
  bool waited = false;
  std::thread other([&] { waited = future->wait_for(kPatience); });
  auto result = future->get();
  other.join();
  CHECK(waited);
  REQUIRE(result);
  CHECK(result == future->get());
  CHECK((*result)->state_version == 7);
  const auto& outputs = (*result)->outputs;
  REQUIRE(outputs.size() == 5);
  const auto& y = std::get<TensorRef>(outputs[0]);
  CHECK(first_element(y) == 2.5f);
  CHECK(reinterpret_cast<std::uintptr_t>(y.data) % 64 == 0);
  CHECK(std::get<std::int64_t>(outputs[1]) == 8);
  CHECK(std::get<std::int64_t>(outputs[2]) == 3);
  CHECK(std::holds_alternative<std::monostate>(outputs[3]));
  std::atomic<int> late{0};
  future->on_ready([&] { ++late; });
  CHECK(called.get_future().wait_for(kPatience) == std::future_status::ready);
  CHECK(late == 1);
}

TEST_CASE("wrong inputs are refused before anything is sent, by name", "[client]") {
  Connected c;
  std::vector<float> values(16);
  const ClientValue x = tensor(values, {2, 4});
  const ClientValue n = std::int64_t{1};
  CHECK(c.refusal({x}, "'n'") == ErrorCode::kBadInput);
  CHECK(c.refusal({x, n, n}, "takes 2 inputs, 3 were given") == ErrorCode::kBadInput);
  CHECK(c.refusal({n, n}, "'x'") == ErrorCode::kBadInput);
  CHECK(c.refusal({x, 1.0}, "'n'") == ErrorCode::kBadInput);
  CHECK(c.refusal({x, true}, "'n'") == ErrorCode::kBadInput);
  CHECK(c.refusal({std::monostate(), n}, "'x'") == ErrorCode::kBadInput);
  CHECK(c.refusal({tensor(values, {4}), n}, "'x'") == ErrorCode::kBadInput);
  CHECK(c.refusal({tensor(values, {2, 5}), n}, "'x'") == ErrorCode::kBadInput);
  CHECK(c.refusal({tensor(values, {0, 4}), n}, "'x'") == ErrorCode::kBadInput);
  TensorRef wrong = tensor(values, {2, 4});
  wrong.meta.dtype = DType::kInt32;
  CHECK(c.refusal({wrong, n}, "'x'") == ErrorCode::kBadInput);
  SECTION("R47: a tensor that reaches beyond its memory") {
    TensorRef far = tensor(values, {2, 4});
    far.bytes = 31;
    CHECK(c.refusal({far, n}, "'x'") == ErrorCode::kBadInput);
    far = tensor(values, {2, 4});
    far.meta.strides = {std::int64_t{1} << 40, 1};
    CHECK(c.refusal({far, n}, "'x'") == ErrorCode::kBadInput);
    far.meta.strides = {INT64_MAX, 1};
    CHECK(c.refusal({far, n}, "'x'") == ErrorCode::kBadInput);
    far = tensor(values, {2, 4});
    far.meta.storage_offset = -1;
    CHECK(c.refusal({far, n}, "'x'") == ErrorCode::kBadInput);
    far = tensor(values, {2, 4});
    far.data = nullptr;
    CHECK(c.refusal({far, n}, "'x'") == ErrorCode::kBadInput);
  }
  const ClientValue good[] = {x, n};
  CHECK(c.program->submit(good, {.deadline = 0s}).error().code == ErrorCode::kBadArgument);
}

TEST_CASE("R29: small views travel as views of just what they touch", "[client]") {
  Connected c;
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 0.0f);
  TensorRef view = tensor(values, {3, 4});
  view.meta.strides = {1, 5};
  view.meta.storage_offset = 7;
  const ClientValue inputs[] = {view, std::int64_t{1}};
  REQUIRE(c.program->submit(inputs));
  const Submit sent = c.cluster.await<Submit>();
  const auto& handle = std::get<TensorHandle>(sent.inputs.at(0));
  CHECK(handle.meta.strides == std::vector<std::int64_t>{1, 5});
  // Behind as many bytes as the original starts off a line of 64: kernels may round by that.
  const auto off = reinterpret_cast<std::uintptr_t>(values.data() + 7) % 64;
  CHECK(handle.meta.storage_offset == static_cast<std::int64_t>(off / sizeof(float)));
  const auto& bytes = std::get<InlineBytes>(handle.data).bytes;
  REQUIRE(bytes.size() == off + (2 + 3 * 5 + 1) * sizeof(float));
  CHECK(std::memcmp(bytes.data() + off, values.data() + 7, bytes.size() - off) == 0);
}

TEST_CASE("a large input is copied once into shared memory that devices can read", "[client]") {
  Connected c;
  FakeDevice device(c.cluster);
  std::vector<float> values(100'000);
  std::iota(values.begin(), values.end(), 0.0f);
  TensorRef view = tensor(values, {20'000, 4});
  view.meta.storage_offset = 16;
  const ClientValue inputs[] = {view, std::int64_t{1}};
  auto future = c.program->submit(inputs);
  REQUIRE(future);
  const Submit sent = c.cluster.await<Submit>();
  const auto& handle = std::get<TensorHandle>(sent.inputs.at(0));
  const auto& block = std::get<ArenaBlock>(handle.data);
  CHECK(block.owner == c.cluster.client());
  CHECK(block.lease == 0);
  const auto off = reinterpret_cast<std::uintptr_t>(values.data() + 16) % 64;
  CHECK(handle.meta.storage_offset == static_cast<std::int64_t>(off / sizeof(float)));
  const std::string bytes = device.read(handle);
  REQUIRE(bytes.size() >= off + 80'000 * sizeof(float));
  CHECK(std::memcmp(bytes.data() + off, values.data() + 16, 80'000 * sizeof(float)) == 0);
}

TEST_CASE("R47: a tensor that reaches beyond its block of the arena is refused", "[client]") {
  Connected c;
  auto allocated = c.client->allocate(TensorMeta::contiguous(DType::kFloat32, {50'000, 4}));
  REQUIRE(allocated);
  TensorRef far = *allocated;
  far.meta.sizes = {1'000'000, 4};
  far.bytes = 16'000'000;
  CHECK(c.refusal({far, std::int64_t{1}}, "'x'") == ErrorCode::kBadInput);
}

TEST_CASE("CS-2: memory of the client's arena is used in place and kept until no device reads it", "[client]") {
  Connected c;
  FakeDevice device(c.cluster);
  auto allocated = c.client->allocate(TensorMeta::contiguous(DType::kFloat32, {50'000, 4}));
  REQUIRE(allocated);
  std::fill_n(reinterpret_cast<float*>(allocated->data), 200'000, 4.0f);
  const std::weak_ptr<void> alive = allocated->keep;
  TensorRef part = *allocated;
  part.meta.sizes = {40'000, 4};
  part.meta.storage_offset = 8;
  std::vector<ClientValue> inputs = {part, std::int64_t{1}};
  auto future = c.program->submit(inputs);
  REQUIRE(future);
  inputs.clear();
  part = {};
  *allocated = {};
  const Submit sent = c.cluster.await<Submit>();
  const auto& handle = std::get<TensorHandle>(sent.inputs.at(0));
  CHECK(handle.meta.storage_offset == 8);
  CHECK(std::get<ArenaBlock>(handle.data).offset % 4096 == 0);
  float seen = 0;
  std::memcpy(&seen, device.read(handle).data() + 32, sizeof seen);
  CHECK(seen == 4.0f);

  Outcome outcome = ok(sent.request, small(1));
  outcome.quiesced = false;
  c.cluster.send(c.cluster.client(), outcome);
  REQUIRE((*future)->get());
  CHECK_FALSE(alive.expired());
  c.cluster.send(c.cluster.client(), Quiesced{sent.request});
  // Whatever comes after it in the same order comes when it has been acted upon.
  c.cluster.on_message([](FakeCluster& cluster, const ActorId& from, const Message& message) {
    const auto* operation = std::get_if<Operation>(&message);
    if (operation != nullptr) cluster.send(from, OperationResult{operation->request, {}, "{}"});
    return operation != nullptr;
  });
  REQUIRE(c.client->operation("ping", "{}"));
  CHECK(alive.expired());
}

TEST_CASE("R5: a result is read where the device put it, its lease ends with the last reader", "[client]") {
  auto c = std::make_unique<Connected>();
  FakeDevice device(c->cluster);
  const auto future = c->submit();
  const Submit sent = c->cluster.await<Submit>();
  c->cluster.send(c->cluster.client(), ok(sent.request, device.result(c->cluster.client(), 100'000, 3.5f)));
  auto result = future->get();
  REQUIRE(result);
  TensorRef y = std::get<TensorRef>((*result)->outputs[0]);
  CHECK(first_element(y) == 3.5f);
  CHECK(device.await_leases(1));
  result = fail(Error());
  SECTION("the result outlives future and client") {
    c->program.reset();
    c->client.reset();
    CHECK(first_element(y) == 3.5f);
    reinterpret_cast<float*>(y.data)[0] = 9;  // stays here
    CHECK(first_element(y) == 9);
  }
}

TEST_CASE("R6: leases of results that are dropped, or that nobody wants, come back", "[client]") {
  Connected c;
  FakeDevice device(c.cluster);
  SECTION("dropped") {
    auto future = c.submit();
    const Submit sent = c.cluster.await<Submit>();
    c.cluster.send(c.cluster.client(), ok(sent.request, device.result(c.cluster.client(), 100'000, 1)));
    REQUIRE(future->get());
    CHECK(device.await_leases(1));
    future.reset();
    CHECK(device.await_leases(0));
  }
  SECTION("nobody waits") {
    c.submit().reset();
    const Submit sent = c.cluster.await<Submit>();
    c.cluster.send(c.cluster.client(), ok(sent.request, device.result(c.cluster.client(), 100'000, 1)));
    CHECK(device.await_leases(0));
  }
  SECTION("an outcome that does not fit the program") {
    auto future = c.submit();
    const Submit sent = c.cluster.await<Submit>();
    Outcome outcome = ok(sent.request, device.result(c.cluster.client(), 100'000, 1));
    outcome.outputs.push_back(device.result(c.cluster.client(), 100'000, 1));
    c.cluster.send(c.cluster.client(), outcome);
    CHECK(code_of(future->get()) == ErrorCode::kInternal);
    CHECK(device.await_leases(0));
  }
}

TEST_CASE("R5: a result whose memory cannot be opened is an error of its request", "[client]") {
  Connected c;
  const auto send = [&](TensorHandle handle) {
    auto future = c.submit();
    const Submit sent = c.cluster.await<Submit>();
    c.cluster.send(c.cluster.client(), ok(sent.request, std::move(handle)));
    return code_of(future->get());
  };
  TensorHandle handle;
  handle.meta = TensorMeta::contiguous(DType::kFloat32, {4});
  ArenaBlock block;
  block.owner = {"cpu9", 1};
  block.segment = 3;
  block.bytes = 4096;
  block.lease = 1;
  handle.data = block;
  CHECK(send(handle) == ErrorCode::kTensorLost);
  CudaIpcBlock cuda;
  cuda.owner = {"cuda0", 1};
  cuda.handles = std::string(144, 'h');
  cuda.bytes = 4096;
  handle.data = cuda;
  CHECK(send(handle) == ErrorCode::kUnsupported);
}

TEST_CASE("CS-1: the death of the coordinator's process ends every wait at once", "[client]") {
  Victim victim;
  FakeCluster::Options fake;
  fake.coordinator_pid = victim.pid;
  Connected c(fake);
  const auto future = c.submit();
  std::atomic<bool> called{false};
  future->on_ready([&] { called = true; });
  ErrorCode seen_elsewhere = ErrorCode::kOk;
  std::thread other([&] { seen_elsewhere = code_of(future->get()); });
  victim.kill();
  auto result = future->get();
  other.join();
  CHECK(seen_elsewhere == ErrorCode::kCoordinatorLost);
  REQUIRE(code_of(result) == ErrorCode::kCoordinatorLost);
  CHECK(!result.error().hint.empty());
  CHECK(code_of(c.submit()->get()) == ErrorCode::kCoordinatorLost);
  auto operation = c.client->operation("status", "{}");
  REQUIRE_FALSE(operation);
  CHECK(operation.error().code == ErrorCode::kCoordinatorLost);
}

TEST_CASE("CS-1: the end of the whole cluster ends every wait", "[client]") {
  auto c = std::make_unique<Connected>();
  const auto future = c->submit();
  auto client = std::move(c->client);
  auto program = std::move(c->program);
  c.reset();
  CHECK(code_of(future->get()) == ErrorCode::kCoordinatorLost);
}

TEST_CASE("a client that closes ends its futures as cancelled", "[client]") {
  Connected c;
  const auto future = c.submit();
  c.client.reset();
  CHECK(code_of(future->get()) == ErrorCode::kCancelled);
  future->cancel();
  const ClientValue inputs[] = {tensor(c.values, {2, 4}), std::int64_t{1}};
  auto late = c.program->submit(inputs);
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kCancelled);
}

TEST_CASE("CS-1: a silent coordinator does not hold a wait beyond the deadline and its margin", "[client]") {
  Connected c;
  const auto future = c.submit(1ms);
  CHECK(code_of(future->get()) == ErrorCode::kDeadlineExceeded);
  const Submit sent = c.cluster.await<Submit>();
  CHECK(c.cluster.await<CancelRequest>().request == sent.request);
  auto operation = c.client->operation("status", "{}", 1ms);
  REQUIRE_FALSE(operation);
  CHECK(operation.error().code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("cancelling asks the cluster, and its answer is the outcome", "[client]") {
  Connected c;
  const auto future = c.submit();
  const Submit sent = c.cluster.await<Submit>();
  future->cancel();
  CHECK(c.cluster.await<CancelRequest>().request == sent.request);
  Outcome outcome;
  outcome.request = sent.request;
  outcome.status = OutcomeStatus::kCancelled;
  outcome.error = Error(ErrorCode::kCancelled, "as you wish");
  c.cluster.send(c.cluster.client(), outcome);
  auto result = future->get();
  REQUIRE(code_of(result) == ErrorCode::kCancelled);
  CHECK(result.error().message == "as you wish");
}

TEST_CASE("too many requests in flight are refused where the caller does not wait", "[client]") {
  Connected c;
  std::vector<std::shared_ptr<Future>> futures;
  for (std::size_t i = 0; i < limits::kRequestsPerClientMax; ++i) futures.push_back(c.submit());
  const ClientValue inputs[] = {tensor(c.values, {2, 4}), std::int64_t{1}};
  auto refused = c.program->submit(inputs, {.wait = false});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
  CHECK(refused.error().message.find("1024 requests in flight, of 1024") != std::string::npos);
  const Submit sent = c.cluster.await<Submit>();
  c.cluster.send(c.cluster.client(), ok(sent.request, small(1)));
  REQUIRE(futures.front()->get());
  c.client.reset();
  for (std::size_t i = 1; i < futures.size(); ++i) CHECK(code_of(futures[i]->get()) == ErrorCode::kCancelled);
}
