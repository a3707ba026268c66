// Connecting, loading, operations, events: the client beside its requests (client_test.cpp).
#include <atomic>
#include <optional>

#include "actors/client/client.h"
#include "messages/limits.h"
#include "tests/actors/client/client_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;
using namespace std::chrono_literals;

TEST_CASE("connecting says why it does not", "[client]") {
  SECTION("no such cluster") {
    FakeCluster cluster;
    Client::Options absent = options();
    absent.cluster = "absent";
    CHECK(Client::connect(absent).error().code == ErrorCode::kClusterNotFound);
  }
  SECTION("the coordinator refuses") {
    FakeCluster::Options fake;
    std::atomic<Role> role{Role::kNode};
    fake.admit = [&role](const Hello& hello) -> Status {  // on the cluster's thread
      role = hello.role;
      return fail(ErrorCode::kOverloaded, "too many clients");
    };
    FakeCluster cluster(fake);
    auto refused = Client::connect(options());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kOverloaded);
    CHECK(role == Role::kClient);
  }
  SECTION("nobody listens") {
    FakeCluster::Options fake;
    fake.listens = false;
    FakeCluster cluster(fake);
    Client::Options impatient = options();
    impatient.connect_timeout = 100ms;
    CHECK_FALSE(Client::connect(impatient));
  }
  SECTION("the caller is interrupted") {
    FakeCluster::Options fake;
    fake.listens = false;
    FakeCluster cluster(fake);
    Client::Options asked = options();
    asked.interrupted = [] { return true; };
    CHECK(Client::connect(asked).error().code == ErrorCode::kCancelled);
  }
  SECTION("the coordinator's process is gone") {
    Victim victim;
    const pid_t pid = victim.pid;
    victim.kill();
    FakeCluster::Options fake;
    fake.coordinator_pid = pid;
    FakeCluster cluster(fake);
    CHECK(Client::connect(options()).error().code == ErrorCode::kCoordinatorLost);
  }
}

TEST_CASE("operations give the coordinator's answer or its error, and stop for signals", "[client]") {
  FakeCluster cluster;
  std::atomic<bool> stop{false};
  Client::Options asked = options();
  asked.interrupted = [&] { return stop.load(); };
  auto client = Client::connect(asked).value();
  cluster.on_message([](FakeCluster& fake, const ActorId& from, const Message& message) {
    const auto* operation = std::get_if<Operation>(&message);
    if (operation == nullptr || operation->name == "silent") return false;
    std::optional<Error> error;
    if (operation->name == "bad") error = Error(ErrorCode::kUsage, "no such operation");
    fake.send(from, OperationResult{operation->request, error, operation->arguments});
    return true;
  });
  CHECK(client->operation("echo", R"({"a":1})").value() == R"({"a":1})");
  CHECK(client->operation("bad", "{}").error().code == ErrorCode::kUsage);
  stop = true;
  CHECK(client->operation("silent", "{}").error().code == ErrorCode::kCancelled);
}

TEST_CASE("loading reports what the coordinator, the graph or the constants lack", "[client]") {
  FakeCluster cluster;
  auto client = Client::connect(options()).value();
  const std::vector<float> weights{1, 2, 3, 4};
  FragmentBuilder builder("weighted");
  const ValueId x = builder.add_tensor_input("x", DType::kFloat32).value();
  const ValueId w =
      builder.add_constant("layer.weight", {weights.data(), 16, nullptr}, TensorMeta::contiguous(DType::kFloat32, {4}))
          .value();
  const ValueId y =
      builder.call("aten::mul.Tensor", {ArgValue{x}, ArgValue{w}}, {"y", ValueKind::kTensor, {}, {}}).value();
  REQUIRE(builder.add_output("y", y));
  const ProgramGraph graph = builder.finish().value();

  auto missing = client->load(graph, {}, {});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kConstantMissing);
  CHECK(missing.error().message.find("'layer.weight'") != std::string::npos);

  ProgramGraph broken = graph;
  broken.nodes[0].args[0] = ArgValue{77};
  CHECK_FALSE(client->load(broken, builder.constants(), {}));

  cluster.on_message([](FakeCluster& fake, const ActorId& from, const Message& message) {
    const auto* load = std::get_if<LoadProgram>(&message);
    if (load == nullptr) return false;
    fake.send(from, ProgramLoaded{load->request, Error(ErrorCode::kUnknownOperator, "no aten::mul"), {}, {}});
    return true;
  });
  CHECK(client->load(graph, builder.constants(), {}).error().code == ErrorCode::kUnknownOperator);
  cluster.on_message([](FakeCluster& fake, const ActorId& from, const Message& message) {
    const auto* load = std::get_if<LoadProgram>(&message);
    if (load == nullptr) return false;
    fake.send(from, ProgramLoaded{load->request, {}, ContentHash::of("other", 5), {}});
    return true;
  });
  CHECK(client->load(graph, builder.constants(), {}).error().code == ErrorCode::kInternal);
  ProgramGraph huge = graph;
  huge.annotations["big"] = std::string(limits::kMessageBytesMax + 1, 'x');
  CHECK(client->load(huge, builder.constants(), {}).error().code == ErrorCode::kTooLarge);

  cluster.on_message(answer_load);
  auto program = client->load(graph, builder.constants(), {});
  REQUIRE(program);
  CHECK(client->load(graph, {}, {}));  // the host has them by now
}

TEST_CASE("a program is unloaded by its last user, after its last request", "[client]") {
  Connected c;
  auto again = c.client->load(example_graph(), {}, {});
  REQUIRE(again);
  const ContentHash id = c.program->id();
  const auto future = c.submit();
  again->reset();
  c.program.reset();
  const Submit sent = c.cluster.await<Submit>();
  c.cluster.send(c.cluster.client(), ok(sent.request, small(1)));
  REQUIRE(future->get());
  CHECK(c.cluster.await<UnloadProgram>().program == id);
}

TEST_CASE("actor events reach whoever asked for them", "[client]") {
  Connected c;
  std::mutex mutex;
  std::condition_variable came;
  std::optional<ActorEvent> seen;
  c.client->on_actor_event([&](const ActorEvent& event) {
    std::lock_guard lock(mutex);
    seen = event;
    came.notify_all();
  });
  c.submit();
  c.cluster.await<Submit>();
  c.cluster.send(c.cluster.client(), ActorEvent{{"cpu0", 2}, "down", Error(ErrorCode::kActorDied, "killed")});
  std::unique_lock lock(mutex);
  REQUIRE(came.wait_for(lock, kPatience, [&] { return seen.has_value(); }));
  CHECK(seen->event == "down");
  CHECK(seen->error->code == ErrorCode::kActorDied);
}

TEST_CASE("R57: a forked child cannot use its parent's client, and does not harm it", "[client]") {
  Connected c;
  const auto future = c.submit();
  const pid_t child = ::fork();
  if (child == 0) {
    const ClientValue inputs[] = {tensor(c.values, {2, 4}), std::int64_t{1}};
    auto refused = c.program->submit(inputs);
    const bool right = !refused && refused.error().code == ErrorCode::kEnvironment;
    c.client.reset();
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  const Submit sent = c.cluster.await<Submit>();
  c.cluster.send(c.cluster.client(), ok(sent.request, small(1)));
  CHECK(future->get());
}
