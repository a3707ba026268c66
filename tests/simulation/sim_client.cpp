#include "tests/simulation/sim_client.h"

#include <iterator>
#include <utility>

#include "messages/codec.h"
#include "tests/simulation/fake_runtime.h"
#include "tests/simulation/simulator.h"
#include "tests/support/graph_fixture.h"

namespace callboard::simulation {

using namespace std::chrono_literals;
using actors::Session;

SimClient::SimClient(Simulator& simulator, ActorId self)
    : sim_(simulator), world_(simulator.world()), self_(std::move(self)), session_(Session::create()),
      alarm_(world_, [this] {
        if (alive_) act(session_->step(Session::Tick{}, world_.now()));
      }) {}

void SimClient::start() {
  Hello hello;
  hello.role = Role::kClient;
  hello.who = self_;
  Ends ends;
  ends.message = [this](Message message) {
    if (alive_) act(session_->step(Session::FromCoordinator{std::move(message)}, world_.now()));
  };
  ends.lost = [this](Error why) {
    if (!alive_) return;
    world_.note(self_.to_string() + " lost the coordinator: " + why.message);
    act(session_->step(Session::Lost{std::move(why)}, world_.now()));
    if (!open_.empty())
      world_.violation("CS-1: " + self_.to_string() + " lost the coordinator and keeps requests open");
    die();
  };
  ends.stopped = [] { return false; };
  channel_ = sim_.connect_coordinator(hello, std::move(ends));
  if (!channel_) return die();
  left_ = 5 + static_cast<int>(world_.random.below(25));
  for (std::size_t i = 0; i <= world_.random.below(3); ++i) programs_.push_back(make_program());
  for (std::size_t i = 0; i < programs_.size(); ++i) load(i);
  beat();
  submit();
}

void SimClient::beat() {
  if (!alive_) return;
  channel_->send(0, Beat{});
  world_.in(5s, [this] { beat(); });
}

/// A chain with side branches, cut over the devices at random; now and then with a counter that it changes.
SimClient::Program SimClient::make_program() {
  const auto& devices = sim_.device_names();
  Program program;
  test::GraphFixture g("p" + std::to_string(world_.random.below(3)));
  std::vector<ValueId> values = {g.input("x"), g.input("y"), g.constant("w")};
  program.counting = world_.chance(0.3);
  ValueId last = values[0];
  const std::size_t nodes = 1 + world_.random.below(6);
  for (std::size_t i = 0; i < nodes; ++i) {
    const char* op = world_.chance(0.3) ? "sim::fragile" : "sim::mix";
    last = g.node(op, {last, values[world_.random.below(values.size())]}, "m" + std::to_string(i));
    values.push_back(last);
  }
  g.output(last);
  if (world_.chance(0.3)) g.output(values[world_.random.below(values.size())]);
  Placement placement;
  placement.automatic = false;
  for (std::size_t i = 0; i < nodes; ++i) {
    placement.rules.push_back({devices[world_.random.below(devices.size())], {"m" + std::to_string(i)}, {}});
  }
  if (program.counting) {
    const ValueId before = g.constant("counter");
    const ValueId after = g.node("sim::count", {before}, "counter");
    g.output(after);
    g.state("counter", before, after);
    placement.rules.push_back({devices[world_.random.below(devices.size())], {"counter"}, {}});
  }
  program.graph = g.program();
  program.placement = placement;
  program.hash = program_hash(program.graph, program.placement);
  return program;
}

void SimClient::load(std::size_t index) {
  if (!alive_) return;
  ++programs_[index].tries;
  ++loading_;
  const RequestSeq request = session_->next_request();
  load_of_[request] = index;
  LoadProgram order;
  order.program = programs_[index].graph;
  order.placement = programs_[index].placement;
  order.deadline_ms = 20'000;
  act(session_->ask(std::move(order), request, world_.now() + 20s));
}

void SimClient::submit() {
  if (!alive_ || left_ == 0) return;
  world_.in(world_.between(0ms, 800ms), [this] { submit(); });
  const std::size_t index = world_.random.below(programs_.size());
  if (!programs_[index].loaded) {
    if (sim_.calm() && programs_[index].tries > 5) --left_;
    return;
  }
  for (std::size_t burst = 0; burst <= world_.random.below(4) && left_ > 0; ++burst, --left_) {
    Submit order;
    order.program = programs_[index].hash;
    Open open;
    open.program = index;
    for (int i = 0; i < 2; ++i) {
      const Content content = world_.random.bits();
      open.contents.push_back(content);
      open.inputs.push_back(world_.chance(0.5) ? sim_.memory().input(self_, content) : Memory::small(content));
    }
    order.inputs = open.inputs;
    open.deadline = world_.now() + (world_.chance(0.2) ? world_.between(1ms, 300ms) : world_.between(2s, 20s));
    const RequestSeq request = session_->next_request();
    order.request = request;
    const TimePoint deadline = open.deadline;
    open_[request] = std::move(open);
    ++sim_.tally().submitted;
    act(session_->submit(std::move(order), deadline, world_.now()));
    if (world_.chance(0.15)) {
      world_.in(world_.between(0ms, 50ms), [this, request] {
        if (!alive_) return;
        if (const auto found = open_.find(request); found != open_.end()) found->second.cancelled = true;
        act(session_->cancel(request));
      });
    }
  }
}

void SimClient::act(Session::Actions actions) {
  for (auto& action : actions) {
    if (auto* send = std::get_if<Session::SendOut>(&action)) {
      channel_->send(0, send->message);
    } else if (auto* done = std::get_if<Session::Completed>(&action)) {
      completed(done->request, std::move(done->outcome));
    } else if (auto* answer = std::get_if<Session::Answered>(&action)) {
      const auto* answered = std::get_if<ProgramLoaded>(&answer->message);
      if (answered == nullptr) continue;
      if (!answer->late) {
        loaded(*answered);
      } else if (!answered->error) {
        channel_->send(0, UnloadProgram{0, answered->program});
      }
    } else if (auto* free = std::get_if<Session::InputsFree>(&action)) {
      inputs_free(free->request);
    } else if (auto* values = std::get_if<Session::Discard>(&action)) {
      for (const WireValue& value : values->values) discard(value);
    }
  }
  if (alive_) alarm_.set(session_->next_tick());
}

void SimClient::loaded(const ProgramLoaded& answer) {
  --loading_;
  const std::size_t index = load_of_.at(answer.request);
  if (!answer.error) {
    programs_[index].loaded = true;
    if (answer.program != programs_[index].hash) world_.violation("ProgramLoaded names another program");
    return;
  }
  world_.note(self_.to_string() + " cannot load: " + answer.error->message);
  if (programs_[index].tries < 20) world_.in(world_.between(100ms, 2s), [this, index] { load(index); });
}

void SimClient::completed(RequestSeq request, Outcome outcome) {
  const auto found = open_.find(request);
  if (found == open_.end() || found->second.completed) {
    return world_.violation("CO-1: request " + std::to_string(request) + " of " + self_.to_string() + " ends twice");
  }
  Open& open = found->second;
  open.completed = true;
  Program& program = programs_[open.program];
  world_.note(self_.to_string() + " request " + std::to_string(request) + " ends: " +
              (outcome.error ? outcome.error->message : "ok"));
  const bool lost = outcome.error && outcome.error->code == ErrorCode::kStateLost;
  if (lost) {
    program.notices.insert(request);
    ++sim_.tally().state_losses;
  }
  switch (outcome.status) {
    case OutcomeStatus::kOk:
      ++sim_.tally().ok;
      check_value(open, program, outcome);
      break;
    case OutcomeStatus::kFailed: ++sim_.tally().failed; break;
    case OutcomeStatus::kCancelled:
      ++sim_.tally().cancelled;
      if (!open.cancelled)
        world_.violation("request " + std::to_string(request) + " is cancelled, and nobody asked for it");
      break;
    case OutcomeStatus::kExpired:
      ++sim_.tally().expired;
      if (world_.now() < open.deadline) world_.violation("request " + std::to_string(request) + " expires too early");
      break;
  }
  if ((outcome.status == OutcomeStatus::kOk) == outcome.error.has_value())
    world_.violation("an outcome without its error");
  settle(request);
}

Content SimClient::oracle(const Program& program, const std::vector<Content>& inputs) const {
  std::map<ValueId, Content> values;
  for (const Constant& constant : program.graph.constants) values[constant.value] = constant_content(constant);
  for (std::size_t i = 0; i < inputs.size(); ++i) values[program.graph.inputs[i].value] = inputs[i];
  Content all = 0;
  for (const Node& node : program.graph.nodes) values[node.outputs[0].values[0]] = evaluate(node, values);
  for (std::size_t i = 0; i < program.graph.outputs.size() - (program.counting ? 1 : 0); ++i) {
    all = mix(all, values.at(std::get<ArgValue>(program.graph.outputs[i].source).value));
  }
  return all;
}

void SimClient::check_value(const Open& open, Program& program, const Outcome& outcome) {
  if (outcome.outputs.size() != program.graph.outputs.size())
    return world_.violation("an outcome with too few outputs");
  std::vector<Content> contents;
  for (const WireValue& value : outcome.outputs) contents.push_back(sim_.memory().read(self_, value));
  for (const WireValue& value : outcome.outputs) discard(value);
  if (program.counting) {
    const Content version = contents.back();
    contents.pop_back();
    if (version != outcome.state_version) world_.violation("the state is not of the version that the outcome names");
    check_state(program, outcome.request, version);
  }
  Content all = 0;
  for (Content content : contents) all = mix(all, content);
  if (all != oracle(program, open.contents)) world_.violation("a wrong value");
}

/// R39: in order of submission the state only goes forward, unless a request between two others said that it was lost.
void SimClient::check_state(Program& program, RequestSeq request, std::uint64_t version) {
  const auto at = program.versions.emplace(request, version).first;
  const auto check = [&](auto before, auto after) {
    const auto notice = program.notices.upper_bound(before->first);
    const bool said = notice != program.notices.end() && *notice < after->first;
    if (before->second < after->second || said) return;
    world_.violation("R39: state went back from " + std::to_string(before->second) + " (request " +
                     std::to_string(before->first) + ") to " + std::to_string(after->second) + " (request " +
                     std::to_string(after->first) + ") of " + self_.to_string() + " and nobody said so");
  };
  if (at != program.versions.begin()) check(std::prev(at), at);
  if (std::next(at) != program.versions.end()) check(at, std::next(at));
}

void SimClient::inputs_free(RequestSeq request) {
  const auto found = open_.find(request);
  if (found == open_.end() || found->second.freed) return world_.violation("CS-2: inputs are handed back twice");
  found->second.freed = true;
  for (const WireValue& input : found->second.inputs) sim_.memory().free_input(self_, input);
  settle(request);
}

void SimClient::settle(RequestSeq request) {
  const auto found = open_.find(request);
  if (found->second.completed && found->second.freed) open_.erase(found);
}

void SimClient::discard(const WireValue& value) {
  const auto* handle = std::get_if<TensorHandle>(&value);
  const auto* block = handle == nullptr ? nullptr : std::get_if<ArenaBlock>(&handle->data);
  if (block != nullptr && block->lease != 0) sim_.release(block->owner, block->lease);
}

void SimClient::check_hung() {
  for (const auto& [request, open] : open_) {
    if (open.completed || world_.now() <= open.deadline + Session::kGiveUpAfter + 10ms) continue;
    world_.violation("CS-1: request " + std::to_string(request) + " of " + self_.to_string() + " hangs");
  }
}

void SimClient::die() {
  if (!alive_) return;
  alive_ = false;
  died_ = true;
  world_.note(self_.to_string() + " dies");
  alarm_.set(kNever);
  if (channel_) channel_->die(0);
  sim_.client_ended(self_);
}

void SimClient::close() {
  if (!alive_) return;
  left_ = 0;
  for (const Program& program : programs_) {
    if (program.loaded) channel_->send(0, UnloadProgram{0, program.hash});
  }
  world_.in(5s, [this] {
    if (!alive_) return;
    alive_ = false;
    alarm_.set(kNever);
    channel_->bye(0);
    sim_.client_ended(self_);
  });
}

std::string SimClient::leftovers() const {
  std::string text;
  for (const auto& [request, open] : open_) {
    text += " request " + std::to_string(request) + (open.completed ? " keeps its inputs;" : " has no outcome;");
  }
  if (session_->pending() != open_.size())
    text += " the session remembers " + std::to_string(session_->pending()) + ";";
  return text;
}

}  // namespace callboard::simulation
