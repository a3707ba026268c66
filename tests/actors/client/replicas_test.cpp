#include "actors/client/replicas.h"

#include "tests/actors/client/client_fixture.h"
#include "tests/actors/client/scripted_program.h"

using namespace callboard;
using namespace callboard::actors;
using namespace std::chrono_literals;

namespace {

struct Replicated {
  std::vector<std::shared_ptr<ScriptedProgram>> devices;
  std::shared_ptr<Program> program;

  explicit Replicated(std::size_t count, ReplicaOptions options = {}, std::int64_t min = 1) {
    std::vector<std::shared_ptr<Program>> programs;
    for (std::size_t i = 0; i < count; ++i) {
      devices.push_back(std::make_shared<ScriptedProgram>(rows_graph(min), "cpu" + std::to_string(i)));
      programs.push_back(devices.back());
    }
    auto made = make_replicated(std::move(programs), options);
    REQUIRE(made);
    program = *made;
  }

  ~Replicated() {
    for (const auto& device : devices) device->end_all();
  }
  Replicated(const Replicated&) = delete;
  Replicated& operator=(const Replicated&) = delete;

  /// Row i is i, everywhere.
  std::shared_ptr<Future> submit(std::int64_t rows, std::optional<Duration> deadline = {}) {
    TensorRef x = rows_of(0, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::fill_n(reinterpret_cast<float*>(x.data) + 2 * row, 2, static_cast<float>(row));
    }
    const ClientValue inputs[] = {std::move(x), std::int64_t{5}};
    auto future = program->submit(inputs, {.deadline = deadline});
    REQUIRE(future);
    return *future;
  }
};

std::vector<float> share_of(const ScriptedCall& call) { return column_of(call.inputs.at(0)); }

}  // namespace

TEST_CASE("rows go in order and evenly to the replicas, and come back in order", "[replicas]") {
  Replicated r(3);
  const auto future = r.submit(7, 5s);
  std::vector<ScriptedCall> calls;
  for (const auto& device : r.devices) calls.push_back(device->await());
  CHECK(share_of(calls[0]) == std::vector<float>{0, 1, 2});
  CHECK(share_of(calls[1]) == std::vector<float>{3, 4});
  CHECK(share_of(calls[2]) == std::vector<float>{5, 6});
  for (const auto& call : calls) {
    // A later part has what the earlier ones left of it.
    REQUIRE(call.deadline);
    CHECK(*call.deadline <= Duration(5s));
    CHECK(*call.deadline > Duration::zero());
    CHECK(std::get<std::int64_t>(call.inputs.at(1)) == 5);
  }
  int told = 0;
  future->on_ready([&] { ++told; });
  calls[2].future->end(negated(calls[2]));
  calls[0].future->end(negated(calls[0]));
  CHECK_FALSE(future->wait_for(0s));
  calls[1].future->end(negated(calls[1]));
  CHECK(told == 1);
  const FutureValue value = future->get();
  REQUIRE(value);
  CHECK(column_of((*value)->outputs.at(0)) == std::vector<float>{0, -1, -2, -3, -4, -5, -6});
  CHECK(std::get<std::int64_t>((*value)->outputs.at(1)) == 28);  // of all rows, not of a share
  CHECK(std::get<std::int64_t>((*value)->outputs.at(2)) == 3);
  CHECK(std::holds_alternative<std::monostate>((*value)->outputs.at(3)));
  CHECK(value == future->get());
}

TEST_CASE("a batch smaller than the replicas uses those that have least to do", "[replicas]") {
  Replicated r(3);
  const auto one = r.submit(1);
  CHECK(share_of(r.devices[0]->await()) == std::vector<float>{0});
  const auto two = r.submit(2);
  CHECK(share_of(r.devices[1]->await()) == std::vector<float>{0});
  CHECK(share_of(r.devices[2]->await()) == std::vector<float>{1});
  CHECK(r.devices[0]->calls() == 1);
}

TEST_CASE("no share is smaller than what the program allows", "[replicas]") {
  Replicated r(3, {}, 2);
  const auto future = r.submit(5);
  CHECK(share_of(r.devices[0]->await()) == std::vector<float>{0, 1, 2});
  CHECK(share_of(r.devices[1]->await()) == std::vector<float>{3, 4});
  CHECK(r.devices[2]->calls() == 0);
}

TEST_CASE("the first part that fails ends the request, with its replica, and stops the others", "[replicas]") {
  Replicated r(3);
  const auto future = r.submit(3);
  std::vector<ScriptedCall> calls;
  for (const auto& device : r.devices) calls.push_back(device->await());
  calls[0].future->end(negated(calls[0]));
  Error root(ErrorCode::kKernelFailed, "boom", "a hint");
  root.actor = "cpu1#1";
  root.node = 4;
  calls[1].future->end(fail(root));
  REQUIRE(future->is_ready());
  CHECK(calls[2].future->cancels == 1);
  calls[2].future->fail_with(ErrorCode::kCancelled, "as you wish");
  const FutureValue value = future->get();
  REQUIRE_FALSE(value);
  CHECK(value.error().code == ErrorCode::kKernelFailed);
  CHECK(value.error().message == "replica 1 (cpu1): boom");
  CHECK(value.error().actor == "cpu1#1");
  CHECK(value.error().node == 4);
}

TEST_CASE("cancelling a request cancels all its parts", "[replicas]") {
  Replicated r(2);
  const auto future = r.submit(4);
  const ScriptedCall left = r.devices[0]->await();
  const ScriptedCall right = r.devices[1]->await();
  future->cancel();
  CHECK(left.future->cancels == 1);
  CHECK(right.future->cancels == 1);
  left.future->fail_with(ErrorCode::kCancelled, "as you wish");
  CHECK(code_of_future(*future) == ErrorCode::kCancelled);
}

TEST_CASE("a part that is refused leaves no other part running", "[replicas]") {
  Replicated r(2);
  r.devices[1]->refuse(Error(ErrorCode::kOverloaded, "full"));
  const ClientValue inputs[] = {rows_of(1, 2), std::int64_t{1}};
  const auto refused = r.program->submit(inputs);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
  CHECK(r.devices[0]->await().future->cancels == 1);
}

TEST_CASE("wrong inputs are refused before any replica hears of them", "[replicas]") {
  Replicated r(2);
  TensorRef far = rows_of(1, 2);
  far.bytes = 4;
  ClientValue inputs[] = {far, std::int64_t{1}};
  CHECK(r.program->submit(inputs).error().code == ErrorCode::kBadInput);
  inputs[0] = rows_of(1, 65);
  CHECK(r.program->submit(inputs).error().code == ErrorCode::kBadInput);
  CHECK(r.devices[0]->calls() + r.devices[1]->calls() == 0);
}

TEST_CASE("replicas that give other rows than they got are an error", "[replicas]") {
  Replicated r(2);
  r.devices[0]->answer(negated);
  r.devices[1]->answer([](const ScriptedCall&) { return rows_result(rows_of(1, 5)); });
  CHECK(code_of_future(*r.submit(2)) == ErrorCode::kOutputMismatch);
  r.devices[1]->answer([](const ScriptedCall&) { return rows_result(rows_of(1, 1, 3)); });
  const FutureValue value = r.submit(2)->get();
  REQUIRE_FALSE(value);
  CHECK(value.error().message.find("output 'y'") != std::string::npos);
}

TEST_CASE("without scatter each request goes whole to the replica with the least to do", "[replicas]") {
  Replicated r(3, {false, {}});
  const auto first = r.submit(4);
  const auto second = r.submit(4);
  const auto third = r.submit(4);
  std::vector<ScriptedCall> calls;
  for (const auto& device : r.devices) calls.push_back(device->await());
  CHECK(share_of(calls[1]) == std::vector<float>{0, 1, 2, 3});
  calls[1].future->end(negated(calls[1]));
  CHECK(code_of_future(*second) == ErrorCode::kOk);
  const auto fourth = r.submit(1);
  CHECK(share_of(r.devices[1]->await()) == std::vector<float>{0});
}

TEST_CASE("a replica that lost its device is left out for a while", "[replicas]") {
  Replicated r(2, {false, {}});
  const auto first = r.submit(1);
  r.devices[0]->await().future->fail_with(ErrorCode::kActorDied, "killed");
  CHECK(code_of_future(*first) == ErrorCode::kActorDied);
  const auto second = r.submit(1);
  const auto third = r.submit(1);
  CHECK(r.devices[0]->calls() == 1);
  CHECK(r.devices[1]->calls() == 2);
  SECTION("not where there is no other") {
    r.devices[1]->await().future->fail_with(ErrorCode::kActorUnavailable, "down");
    const auto fourth = r.submit(1);
    CHECK(r.devices[0]->calls() == 2);
  }
}

TEST_CASE("replicas that cannot be are refused", "[replicas]") {
  const auto refusal = [](std::vector<std::shared_ptr<Program>> programs, const ReplicaOptions& options = {}) {
    const auto made = make_replicated(std::move(programs), options);
    return made ? ErrorCode::kOk : made.error().code;
  };
  const auto rows = std::make_shared<ScriptedProgram>(rows_graph());
  CHECK(refusal({}) == ErrorCode::kBadArgument);
  CHECK(refusal({rows, std::make_shared<ScriptedProgram>(rows_graph(1, 63))}) == ErrorCode::kBadArgument);
  CHECK(refusal({rows}, {true, {7, {}}}) == ErrorCode::kUnsupported);
  CHECK(refusal({rows}, {false, {7, {}}}) == ErrorCode::kOk);
  ProgramGraph stateful = rows_graph();
  stateful.states.push_back({"count", 0, 0, 0});
  CHECK(refusal({std::make_shared<ScriptedProgram>(stateful)}) == ErrorCode::kUnsupported);
  CHECK(refusal({std::make_shared<ScriptedProgram>(stateful)}, {false, {}}) == ErrorCode::kUnsupported);
}

TEST_CASE("a program with replicas shows all of them", "[replicas]") {
  Replicated r(2);
  REQUIRE(r.program->plan().size() == 2);
  CHECK(r.program->plan()[1].device == "cpu1");
  CHECK(r.program->plan()[1].index == 1);
  CHECK(r.program->graph() == r.devices[0]->graph());
  CHECK(r.program->id() != r.devices[0]->id());
  CHECK(r.program->id() != Replicated(3).program->id());
}

TEST_CASE("a batch along an inner dimension is divided and joined there", "[replicas]") {
  FragmentBuilder builder("inner");
  const std::vector<Expr> sizes{Expr::constant(2), builder.symbol("batch", 1, 64).value()};
  const ValueId x = builder.add_tensor_input("x", DType::kFloat32, sizes).value();
  const ValueId y = builder.call("aten::neg", {ArgValue{x}}, {"y", ValueKind::kTensor, DType::kFloat32, sizes}).value();
  REQUIRE(builder.add_output("y", y));
  std::vector<std::shared_ptr<Program>> programs;
  for (const char* name : {"cpu0", "cpu1", "cpu2"}) {
    auto device = std::make_shared<ScriptedProgram>(builder.finish().value(), name);
    device->answer([](const ScriptedCall& call) {
      FutureValue value = negated(call);
      auto result = std::make_shared<RequestResult>(**value);
      result->outputs.resize(1);
      return FutureValue(std::move(result));
    });
    programs.push_back(std::move(device));
  }
  const auto program = make_replicated(programs, {true, {1, {}}}).value();
  TensorRef input = rows_of(0, 2, 7);
  for (int i = 0; i < 14; ++i) reinterpret_cast<float*>(input.data)[i] = static_cast<float>(i);
  const ClientValue inputs[] = {input};
  const auto result = program->submit(inputs).value()->get();
  REQUIRE(result);
  const auto& whole = std::get<TensorRef>((*result)->outputs.at(0));
  CHECK(whole.meta == TensorMeta::contiguous(DType::kFloat32, {2, 7}));
  for (int i = 0; i < 14; ++i) CHECK(element(whole, i / 7, i % 7) == static_cast<float>(-i));
}

TEST_CASE("replicas are loaded one by one, and an error names its replica", "[replicas]") {
  Connected c;
  std::vector<Placement> placements(2);
  placements[0].devices = {"cpu0"};
  placements[1].devices = {"cpu1"};
  auto program = load_replicas(*c.client, rows_graph(), {}, placements, {});
  REQUIRE(program);
  CHECK((*program)->plan().size() == 2);
  const ClientValue inputs[] = {rows_of(3, 2), std::int64_t{1}};
  auto future = (*program)->submit(inputs);
  REQUIRE(future);
  const Submit left = c.cluster.await<Submit>();
  const Submit right = c.cluster.await<Submit>();
  CHECK(left.program == program_hash(rows_graph(), placements[0]));
  CHECK(right.program == program_hash(rows_graph(), placements[1]));
  CHECK(left.symbols == std::vector<std::int64_t>{1, 2});

  c.cluster.on_message([](FakeCluster& cluster, const ActorId& from, const Message& message) {
    const auto* load = std::get_if<LoadProgram>(&message);
    if (load == nullptr || load->placement.devices.front() != "cpu1") return answer_load(cluster, from, message);
    cluster.send(from, ProgramLoaded{load->request, Error(ErrorCode::kBadPlacement, "no such device"), {}, {}});
    return true;
  });
  const auto refused = load_replicas(*c.client, rows_graph(1, 3), {}, placements, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kBadPlacement);
  CHECK(refused.error().message == "replica 1 (cpu1): no such device");
}
