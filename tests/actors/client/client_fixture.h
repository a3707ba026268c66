// What the client's tests share: an example program, and a client that has loaded it from a fake cluster.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "actors/client/client.h"
#include "actors/client/fragment_builder.h"
#include "messages/codec.h"
#include "tests/actors/client/fake_cluster.h"
#include "tests/support/test.h"

namespace callboard::actors {

/// y = f(x [s0, 4], n), with the outputs y, s0 * 4, 3, None and a text.
inline ProgramGraph example_graph() {
  FragmentBuilder builder("example");
  const Expr rows = builder.symbol("s0", 1, 1 << 20).value();
  const ValueId x = builder.add_tensor_input("x", DType::kFloat32, {{rows, Expr::constant(4)}}).value();
  builder.add_input({"n", ValueKind::kInt, DType::kUndefined, {}}).value();
  const ValueId y = builder.call("aten::neg", {ArgValue{x}}, {"y", ValueKind::kTensor, DType::kFloat32, {}}).value();
  REQUIRE(builder.add_output("y", y));
  REQUIRE(builder.add_output(
      {"elements", ArgSymbol{Expr{{{ExprOp::kSymbol, 0}, {ExprOp::kConst, 4}, {ExprOp::kMul, 0}}}}}));
  REQUIRE(builder.add_output({"three", std::int64_t{3}}));
  REQUIRE(builder.add_output({"none", ArgNone{}}));
  REQUIRE(builder.add_output({"text", std::string("t")}));
  return builder.finish().value();
}

inline TensorRef tensor(std::vector<float>& values, std::vector<std::int64_t> sizes) {
  return {TensorMeta::contiguous(DType::kFloat32, std::move(sizes)), reinterpret_cast<std::byte*>(values.data()),
          values.size() * sizeof(float), nullptr};
}

inline Outcome ok(RequestSeq request, WireValue output) {
  Outcome outcome;
  outcome.request = request;
  outcome.outputs = {std::move(output)};
  return outcome;
}

inline WireValue small(float value) {
  TensorHandle handle;
  handle.meta = TensorMeta::contiguous(DType::kFloat32, {1});
  handle.data = InlineBytes{std::string(reinterpret_cast<const char*>(&value), sizeof value)};
  return handle;
}

inline bool answer_load(FakeCluster& cluster, const ActorId& from, const Message& message) {
  const auto* load = std::get_if<LoadProgram>(&message);
  if (load == nullptr) return false;
  PlannedFragment fragment;
  fragment.device = "cpu0";
  cluster.send(from, ProgramLoaded{load->request, {}, program_hash(load->program, load->placement), {fragment}});
  return true;
}

inline Client::Options options() {
  Client::Options made;
  made.connect_timeout = kPatience;
  return made;
}

/// A client with the example loaded; the coordinator keeps everything else for the test.
struct Connected {
  FakeCluster cluster;
  std::unique_ptr<Client> client;
  std::shared_ptr<Program> program;
  std::vector<float> values = std::vector<float>(8, 1.5f);

  explicit Connected(FakeCluster::Options fake = {}, std::uint64_t memory_limit = 0) : cluster(std::move(fake)) {
    cluster.on_message(answer_load);
    Client::Options wanted = options();
    wanted.memory_limit = memory_limit;
    auto connected = Client::connect(std::move(wanted));
    REQUIRE(connected);
    client = std::move(*connected);
    auto loaded = client->load(example_graph(), {}, {});
    REQUIRE(loaded);
    program = *loaded;
  }

  std::shared_ptr<Future> submit(std::optional<Duration> deadline = {}) {
    const ClientValue inputs[] = {tensor(values, {2, 4}), std::int64_t{1}};
    auto future = program->submit(inputs, {.deadline = deadline});
    REQUIRE(future);
    return *future;
  }
  ErrorCode refusal(std::vector<ClientValue> inputs, const std::string& in_message) {
    auto future = program->submit(inputs);
    if (future) return ErrorCode::kOk;
    INFO(future.error().message);
    CHECK(future.error().message.find(in_message) != std::string::npos);
    return future.error().code;
  }
};

inline ErrorCode code_of(const Result<std::shared_ptr<const RequestResult>>& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

inline float first_element(const TensorRef& result) {
  float value = 0;
  std::memcpy(&value, result.data, sizeof value);
  return value;
}

/// A process that does nothing, as a coordinator that can be killed.
struct Victim {
  pid_t pid = ::fork();
  Victim() {
    if (pid != 0) return;
    for (;;) ::pause();
  }
  void kill() {
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    pid = -1;
  }
  ~Victim() { kill(); }
};

}  // namespace callboard::actors
