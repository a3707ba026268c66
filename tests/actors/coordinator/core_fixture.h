// A coordinator's core with hand-driven peers. Header only.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/coordinator/coordinator_core.h"
#include "messages/codec.h"
#include "tests/support/graph_fixture.h"
#include "tests/support/test.h"

namespace callboard::test {

using actors::CoordinatorCore;
using actors::CoordinatorOptions;

inline CoordinatorOptions core_options(std::size_t devices = 2) {
  CoordinatorOptions options;
  options.self = ActorId{"coordinator", 1};
  options.cluster = "test";
  for (std::size_t i = 0; i < devices; ++i) options.devices.push_back({"cpu" + std::to_string(i), 0});
  return options;
}

class CoreFixture {
 public:
  explicit CoreFixture(CoordinatorOptions options = core_options())
      : core(CoordinatorCore::create(std::move(options))) {}

  // -- events
  void step(CoordinatorCore::Event event) {
    for (auto& action : core->step(std::move(event), now)) {
      if (auto* send = std::get_if<CoordinatorCore::Send>(&action)) {
        if (!std::holds_alternative<Beat>(send->message)) sent.push_back(std::move(*send));
      } else if (auto* forget = std::get_if<CoordinatorCore::Forget>(&action)) {
        forgotten.push_back(forget->peer);
      } else if (auto* line = std::get_if<CoordinatorCore::LogLine>(&action)) {
        logged.push_back(line->event);
      }
    }
  }
  void message(const ActorId& from, Message m) { step(CoordinatorCore::MessageFrom{from, std::move(m)}); }
  void tick() { step(CoordinatorCore::Tick{}); }
  /// Time passes as it does in a living cluster: the devices that are there beat.
  void wait(Duration duration, const std::vector<ActorId>& beating) {
    for (const TimePoint end = now + duration; now < end;) {
      now = std::min(end, now + std::chrono::milliseconds(250));
      for (const ActorId& who : beating) message(who, Beat{});
      tick();
    }
  }

  Status join(Role role, const ActorId& who, const std::string& description = {}) {
    Hello hello;
    hello.description = description;
    hello.role = role;
    hello.who = who;
    hello.cluster = "test";
    hello.pid = 100 + static_cast<std::int64_t>(who.incarnation);
    hello.endpoint = role == Role::kDevice ? "ipc://" + who.to_string() : "";
    CALLBOARD_TRY(core->admit(hello));
    step(CoordinatorCore::PeerJoined{hello});
    return {};
  }
  void lose(const ActorId& who) { step(CoordinatorCore::PeerLost{who, Error(ErrorCode::kPeerLost, "the link broke")}); }
  void exited(const ActorId& who, int signal = 9, std::int64_t restart_in_ms = 200, const std::string& said = {}) {
    ActorExited report;
    report.who = who;
    report.signalled = signal > 0;  // 0: an exit with that status
    report.code = signal;
    report.log_tail = "last words of " + who.to_string() + said;
    report.restart_in_ms = restart_in_ms;
    message(node, report);
  }
  /// Node, devices #1 and one client.
  void bring_up(std::size_t devices = 2) {
    (void)join(Role::kNode, node);
    for (std::size_t i = 0; i < devices; ++i) (void)join(Role::kDevice, ActorId{"cpu" + std::to_string(i), 1});
    (void)join(Role::kClient, client);
    sent.clear();
  }

  // -- what went out
  template <class M>
  std::vector<M> take(const ActorId& to) {
    std::vector<M> found;
    std::deque<CoordinatorCore::Send> rest;
    for (auto& send : sent) {
      if (send.to == to && std::holds_alternative<M>(send.message)) {
        found.push_back(std::move(std::get<M>(send.message)));
      } else {
        rest.push_back(std::move(send));
      }
    }
    sent = std::move(rest);
    return found;
  }

  /// Answers every LoadFragment that is out.
  void answer_loads() {
    std::deque<CoordinatorCore::Send> orders = std::exchange(sent, {});
    for (auto& send : orders) {
      const auto* load = std::get_if<LoadFragment>(&send.message);
      if (load == nullptr) {
        sent.push_back(std::move(send));
        continue;
      }
      FragmentLoaded answer;
      answer.program = load->fragment.program;
      answer.fragment = load->fragment.index;
      answer.pure = true;
      message(send.to, answer);
    }
  }
  ContentHash load(const ProgramGraph& program, const Placement& placement, const ActorId& who) {
    LoadProgram order;
    order.request = ++last_request;
    order.program = program;
    order.placement = placement;
    message(who, order);
    answer_loads();
    return program_hash(program, placement);
  }
  ContentHash load(const ProgramGraph& program, const Placement& placement = {}) {
    return load(program, placement, client);
  }

  RequestSeq submit(const ContentHash& program, const ActorId& who, std::int64_t deadline_ms = 10'000) {
    Submit order;
    order.request = ++last_request;
    order.program = program;
    order.inputs = {tensor()};
    order.deadline_ms = deadline_ms;
    message(who, order);
    return order.request;
  }
  RequestSeq submit(const ContentHash& program) { return submit(program, client); }

  static WireValue tensor() {
    return TensorHandle{TensorMeta::contiguous(DType::kFloat32, {4}), InlineBytes{std::string(16, 'x')}};
  }
  static WireValue leased(const ActorId& owner, LeaseId lease) {
    return TensorHandle{TensorMeta::contiguous(DType::kFloat32, {4}), ArenaBlock{owner, 1, 0, 4096, lease}};
  }
  void finish(const ActorId& device, const RunFragment& order, std::vector<WireValue> outputs = {},
              std::optional<Error> error = {}) {
    FragmentFinished report;
    report.run = order.run;
    report.attempt = order.attempt;
    report.fragment = order.fragment;
    report.outputs = std::move(outputs);
    report.error = std::move(error);
    message(device, report);
  }

  TimePoint now = TimePoint{} + std::chrono::hours(1);
  std::unique_ptr<CoordinatorCore> core;
  std::deque<CoordinatorCore::Send> sent;
  std::vector<ActorId> forgotten;
  std::vector<std::string> logged;
  RequestSeq last_request = 0;
  const ActorId node{"node", 1};
  const ActorId client{"client-a", 1};
  const ActorId cpu0{"cpu0", 1};
  const ActorId cpu1{"cpu1", 1};
};

/// cpu0: layer.0, cpu1: layer.1; one edge.
inline ProgramGraph two_stage_program() { return chain_program(2, "two_stage"); }
inline Placement two_stage_placement() { return split_placement({{"cpu0", {"layer.0"}}, {"cpu1", {"layer.1"}}}); }
/// One node on cpu0.
inline Placement on(const std::string& device) {
  Placement placement;
  placement.devices = {device};
  return placement;
}
/// counter += x on cpu0.
inline ProgramGraph counting_program() {
  GraphFixture g("counting");
  const ValueId x = g.input("x");
  const ValueId before = g.constant("counter");
  const ValueId after = g.node("aten::add.Tensor", {before, x}, "counter");
  g.output(after);
  g.state("counter", before, after);
  return g.program();
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline nlohmann::json status_of(const CoreFixture& f) { return nlohmann::json::parse(f.core->status_json(f.now)); }

/// The one Outcome that is there for this request.
inline Outcome one_outcome(CoreFixture& f, RequestSeq request) {
  const auto outcomes = f.take<Outcome>(f.client);
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes[0].request == request);
  return outcomes[0];
}

}  // namespace callboard::test
