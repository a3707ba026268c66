#include "actors/device/device_core.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test.h"

namespace callboard::actors {
namespace {

const ActorId kSelf{"cpu1", 1};
const ActorId kPeer{"cpu0", 3};
const ContentHash kProgram = *ContentHash::from_bytes(std::string(32, 'p'));
const TimePoint kStart = TimePoint(std::chrono::hours(1));

TensorHandle arena_tensor(const ActorId& owner, LeaseId lease) {
  ArenaBlock block;
  block.owner = owner;
  block.segment = 1;
  block.bytes = 4096;
  block.lease = lease;
  return TensorHandle{TensorMeta::contiguous(DType::kFloat32, {4}), block};
}

/// Fragment `index` on cpu1: value 0 from the program, value 1 over an edge of fragment 0; gives value 2 to the client
/// and value 3 to fragment 2 on cpu0 and fragment 3 on itself.
Fragment fragment_with_edge(std::uint32_t index = 1) {
  Fragment fragment;
  fragment.program = kProgram;
  fragment.index = index;
  fragment.device = kSelf.name;
  fragment.inputs = {{0, FragmentInput::Source::kProgramInput, 0}, {1, FragmentInput::Source::kEdge, 0}};
  FragmentOutput to_client;
  to_client.value = 2;
  to_client.to_client = true;
  FragmentOutput to_peers;
  to_peers.value = 3;
  to_peers.edges = {{2, kPeer.name}, {3, kSelf.name}};
  fragment.outputs = {to_client, to_peers};
  return fragment;
}

RunFragment order(RunId run, std::uint32_t fragment = 1) {
  RunFragment message;
  message.run = run;
  message.program = kProgram;
  message.fragment = fragment;
  message.client = ActorId{"client", 1};
  message.inputs = {WireValue{std::int64_t{7}}};
  message.deadline_ms = 1'000;
  return message;
}

EdgeValues edge(RunId run, WireValue value = std::int64_t{9}, Attempt attempt = 1) {
  EdgeValues message;
  message.run = run;
  message.attempt = attempt;
  message.epoch = 1;
  message.program = kProgram;
  message.from = 0;
  message.to = 1;
  message.values = {{1, std::move(value)}};
  return message;
}

template <class T>
std::vector<T> all(const DeviceCore::Actions& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const auto* one = std::get_if<T>(&action)) found.push_back(*one);
  }
  return found;
}

std::vector<FragmentFinished> answers(const DeviceCore::Actions& actions) {
  std::vector<FragmentFinished> found;
  for (const auto& send : all<DeviceCore::SendCoordinator>(actions)) {
    if (const auto* answer = std::get_if<FragmentFinished>(&send.message)) found.push_back(*answer);
  }
  return found;
}

struct Fixture {
  std::unique_ptr<DeviceCore> core;
  TimePoint now = kStart;

  explicit Fixture(std::size_t runs_max = 8) {
    DeviceCoreOptions options;
    options.self = kSelf;
    options.runs_max = runs_max;
    core = DeviceCore::create(options);
    from_coordinator(Welcome{1, ActorId{"coordinator", 1}});
    LoadFragment load;
    load.fragment = fragment_with_edge();
    load.peers = {{kPeer, "ipc:///peer"}};
    from_coordinator(load);
  }
  DeviceCore::Actions from_coordinator(Message message) {
    return core->step(DeviceCore::FromCoordinator{std::move(message)}, now);
  }
  DeviceCore::Actions from_peer(Message message) {
    return core->step(DeviceCore::FromPeer{kPeer, std::move(message)}, now);
  }
  DeviceCore::Actions finish(RunId run, kernels::RunResult result) {
    return core->step(DeviceCore::Finished{run, 1, 1, std::move(result)}, now);
  }
  DeviceCore::Actions tick(Duration later) {
    now += later;
    return core->step(DeviceCore::Tick{}, now);
  }
};

kernels::RunResult good_result() {
  kernels::RunResult result;
  result.to_client = {WireValue{2.5}};
  result.on_edges = {WireValue{arena_tensor(kSelf, 11)}, WireValue{arena_tensor(kSelf, 12)}};
  return result;
}

TEST_CASE("DC-2: a run starts when its edge inputs are there, in the fragment's order of inputs") {
  Fixture device;
  CHECK(all<DeviceCore::Run>(device.from_coordinator(order(5))).empty());
  const auto runs = all<DeviceCore::Run>(device.from_peer(edge(5)));
  REQUIRE(runs.size() == 1);
  REQUIRE(runs[0].order.inputs.size() == 2);
  CHECK(std::get<std::int64_t>(runs[0].order.inputs[0]) == 7);
  CHECK(std::get<std::int64_t>(runs[0].order.inputs[1]) == 9);
  REQUIRE(runs[0].order.edge_holders.size() == 2);
  CHECK(runs[0].order.edge_holders[0] == kPeer);
  CHECK(runs[0].order.edge_holders[1] == kSelf);
  CHECK(runs[0].order.deadline == kStart + std::chrono::seconds(1));
}

TEST_CASE("DC-2: an edge that comes before its run is kept for it, and released when its time is over") {
  Fixture device;
  CHECK(all<DeviceCore::Run>(device.from_peer(edge(5))).empty());
  CHECK(all<DeviceCore::Run>(device.from_coordinator(order(5))).size() == 1);

  CHECK(device.from_peer(edge(6, arena_tensor(kPeer, 77))).empty());
  CHECK(device.core->next_tick() == kStart + std::chrono::seconds(10));
  const auto released = all<DeviceCore::Release>(device.tick(std::chrono::seconds(11)));
  REQUIRE(released.size() == 1);
  CHECK(std::get<ArenaBlock>(std::get<TensorHandle>(released[0].value).data).lease == 77);
}

TEST_CASE("DC-1: a finished run sends its edges and one answer") {
  Fixture device;
  device.from_coordinator(order(5));
  device.from_peer(edge(5));
  const auto actions = device.finish(5, good_result());
  const auto peers = all<DeviceCore::SendPeer>(actions);
  REQUIRE(peers.size() == 1);
  CHECK(peers[0].peer.endpoint == "ipc:///peer");
  const auto& sent = std::get<EdgeValues>(peers[0].message);
  CHECK(sent.to == 2);
  CHECK(sent.from == 1);
  CHECK(sent.epoch == 1);
  REQUIRE(sent.values.size() == 1);
  CHECK(sent.values[0].first == 3);
  const auto answered = answers(actions);
  REQUIRE(answered.size() == 1);
  CHECK_FALSE(answered[0].error);
  CHECK(std::get<double>(answered[0].outputs.at(0)) == 2.5);
  CHECK(answers(device.finish(5, good_result())).empty());
}

TEST_CASE("DC-1: an unknown program, too many runs and a wrong number of inputs are answered at once") {
  Fixture device(1);
  RunFragment unknown = order(1);
  unknown.program = *ContentHash::from_bytes(std::string(32, 'q'));
  unknown.inputs = {WireValue{arena_tensor(kPeer, 5)}};
  const auto refused = device.from_coordinator(unknown);
  REQUIRE(answers(refused).size() == 1);
  CHECK(answers(refused)[0].error->code == ErrorCode::kProgramUnknown);
  CHECK(all<DeviceCore::Release>(refused).size() == 1);

  RunFragment short_order = order(2);
  short_order.inputs.clear();
  CHECK(answers(device.from_coordinator(short_order)).at(0).error->code == ErrorCode::kMalformed);

  CHECK(answers(device.from_coordinator(order(3))).empty());
  CHECK(answers(device.from_coordinator(order(4))).at(0).error->code == ErrorCode::kOverloaded);
}

TEST_CASE("DC-1: a repeated order is answered once") {
  Fixture device;
  device.from_coordinator(order(5));
  CHECK(device.from_coordinator(order(5)).empty());
  CHECK(all<DeviceCore::Run>(device.from_peer(edge(5))).size() == 1);
}

TEST_CASE("DC-3: cancelling a waiting run answers it and releases what had come") {
  Fixture device;
  RunFragment with_tensor = order(5);
  with_tensor.inputs = {WireValue{arena_tensor(ActorId{"client", 1}, 0)}};
  device.from_coordinator(with_tensor);
  const auto actions = device.from_coordinator(CancelRun{5, Error(ErrorCode::kCancelled, "by the caller")});
  REQUIRE(answers(actions).size() == 1);
  CHECK(answers(actions)[0].error->code == ErrorCode::kCancelled);
  CHECK(answers(actions)[0].error->actor == "cpu1#1");
  // An edge of it that comes late is released at once.
  const auto late = device.from_peer(edge(5, arena_tensor(kPeer, 31)));
  CHECK(all<DeviceCore::Release>(late).size() == 1);
  CHECK(all<DeviceCore::Run>(late).empty());
}

TEST_CASE("DC-3 DC-4: a run cancelled while it runs is answered when it ends, and its results are released") {
  Fixture device;
  device.from_coordinator(order(5));
  device.from_peer(edge(5));
  const auto cancelled = device.from_coordinator(CancelRun{5, Error(ErrorCode::kCancelled, "by the caller")});
  CHECK(answers(cancelled).empty());
  REQUIRE(all<DeviceCore::Cancel>(cancelled).size() == 1);
  const auto ended = device.finish(5, good_result());
  REQUIRE(answers(ended).size() == 1);
  CHECK(answers(ended)[0].error->code == ErrorCode::kCancelled);
  CHECK(answers(ended)[0].outputs.empty());
  CHECK(all<DeviceCore::ReleaseOwn>(ended).size() == 2);
  CHECK(all<DeviceCore::SendPeer>(ended).empty());
}

TEST_CASE("DC-1: the deadline ends a run that waits for an edge, with a count of what is missing") {
  Fixture device;
  device.from_coordinator(order(5));
  const auto actions = device.tick(std::chrono::milliseconds(1'001));
  REQUIRE(answers(actions).size() == 1);
  CHECK(answers(actions)[0].error->code == ErrorCode::kDeadlineExceeded);
  CHECK(answers(actions)[0].error->message.find("1 of 1 inputs") != std::string::npos);
}

TEST_CASE("DC-3: values of another attempt, another epoch or nobody's are released") {
  Fixture device;
  device.from_coordinator(order(5));
  CHECK(all<DeviceCore::Release>(device.from_peer(edge(5, arena_tensor(kPeer, 1), 2))).size() == 1);
  EdgeValues old_epoch = edge(5, arena_tensor(kPeer, 2));
  old_epoch.epoch = 9;
  CHECK(all<DeviceCore::Release>(device.from_peer(old_epoch)).size() == 1);
  EdgeValues unwanted = edge(5, arena_tensor(kPeer, 3));
  unwanted.values[0].first = 40;
  CHECK(all<DeviceCore::Release>(device.from_peer(unwanted)).size() == 1);
  CHECK(all<DeviceCore::Run>(device.from_peer(edge(5))).size() == 1);
}

TEST_CASE("DC-2: after an attempt has ended the edges of the next one count, those of the first do not") {
  Fixture device;
  device.from_coordinator(order(5));
  device.from_coordinator(CancelRun{5, Error(ErrorCode::kCancelled, "another attempt of it follows")});
  CHECK(all<DeviceCore::Release>(device.from_peer(edge(5, arena_tensor(kPeer, 1), 1))).size() == 1);
  CHECK(all<DeviceCore::Release>(device.from_peer(edge(5, WireValue{std::int64_t{9}}, 2))).empty());  // it is early
  RunFragment again = order(5);
  again.attempt = 2;
  const auto runs = all<DeviceCore::Run>(device.from_coordinator(again));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].order.attempt == 2);
}

TEST_CASE("unloading a program ends its waiting runs; a new epoch ends all runs") {
  Fixture device;
  device.from_coordinator(order(5));
  const auto unloaded = device.from_coordinator(UnloadFragments{kProgram});
  CHECK(answers(unloaded).at(0).error->code == ErrorCode::kProgramUnknown);
  CHECK(all<DeviceCore::Unload>(unloaded).size() == 1);

  Fixture other;
  other.from_coordinator(order(6));
  CHECK(answers(other.from_coordinator(Welcome{2, ActorId{"coordinator", 2}})).at(0).error->code ==
        ErrorCode::kCoordinatorLost);
}

TEST_CASE("leases that come back are ended in the own arena, those of an earlier start are not") {
  Fixture device;
  CHECK(all<DeviceCore::ReleaseOwn>(device.from_peer(ReleaseLeases{kSelf, {1, 2}})).at(0).leases.size() == 2);
  CHECK(all<DeviceCore::ReleaseOwn>(device.from_peer(ReleaseLeases{ActorId{"cpu1", 0}, {1}})).empty());
}

TEST_CASE("the end of a holder that the coordinator tells ends its leases") {
  Fixture device;
  const auto ended = all<DeviceCore::EndHolder>(device.from_coordinator(HolderGone{ActorId{"client", 1}}));
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].holder == ActorId{"client", 1});
}

// -- the way of results to other devices -----------------------------------------------------------------------------

/// A device that could lend to kPeer's device.
struct Lender {
  std::unique_ptr<DeviceCore> core;
  TimePoint now = kStart;

  Lender() {
    DeviceCoreOptions options;
    options.self = kSelf;
    options.tests_transport_to = {kPeer.name};
    options.transport_test_wait = std::chrono::seconds(5);
    core = DeviceCore::create(options);
    step(DeviceCore::FromCoordinator{Welcome{1, ActorId{"coordinator", 1}}});
  }
  DeviceCore::Actions step(DeviceCore::Event event) { return core->step(std::move(event), now); }
  DeviceCore::Actions name_peer(const ActorId& who = kPeer) {
    return step(DeviceCore::FromCoordinator{PeerMoved{{who, "ipc:///" + who.to_string()}}});
  }
  /// Names the peer and makes the offer; the test's number.
  std::uint64_t offer(const ActorId& who = kPeer) {
    const auto offers = all<DeviceCore::OfferTransport>(name_peer(who));
    REQUIRE(offers.size() == 1);
    CHECK(offers[0].reader == who);
    const auto sent = all<DeviceCore::SendPeer>(step(DeviceCore::TransportOffered{who, offers[0].test, block()}));
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].peer == PeerAddress{who, "ipc:///" + who.to_string()});
    CHECK(std::get<TestTransport>(sent[0].message) == TestTransport{offers[0].test, block()});
    return offers[0].test;
  }
  static CudaIpcBlock block() {
    CudaIpcBlock block;
    block.owner = kSelf;
    block.bytes = 32;
    block.lease = 5;
    return block;
  }
  /// What the shell does with a judgement.
  std::vector<TransportChosen> judge(const DeviceCore::Actions& actions, TransportPath path) {
    std::vector<TransportChosen> told;
    for (const auto& judge : all<DeviceCore::JudgeTransport>(actions)) {
      TransportChosen chosen{judge.reader, path, judge.answer.problem};
      const auto next = step(DeviceCore::TransportJudged{judge.answer.test, chosen});
      for (const auto& send : all<DeviceCore::SendCoordinator>(next)) {
        if (const auto* message = std::get_if<TransportChosen>(&send.message)) told.push_back(*message);
      }
    }
    return told;
  }
};

TEST_CASE("DC-5: the way to a device is tested once when its process is named, and its answer decides") {
  Lender device;
  const std::uint64_t test = device.offer();
  const auto answered =
      device.step(DeviceCore::FromPeer{kPeer, TransportTested{test, TransportPath::kPeer, "nonce", {}}});
  const auto told = device.judge(answered, TransportPath::kPeer);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == TransportChosen{kPeer, TransportPath::kPeer, {}});
  // Neither another naming nor another answer begins anew; another process does.
  CHECK(all<DeviceCore::OfferTransport>(device.name_peer()).empty());
  CHECK(device.step(DeviceCore::FromPeer{kPeer, TransportTested{test, TransportPath::kIpc, "nonce", {}}}).empty());
  device.offer(ActorId{kPeer.name, kPeer.incarnation + 1});
}

TEST_CASE("DC-5: a device that is none of those, and the loading of a program that names one") {
  Lender device;
  CHECK(all<DeviceCore::OfferTransport>(device.name_peer(ActorId{"cpu7", 1})).empty());
  LoadFragment load;
  load.fragment = fragment_with_edge();
  load.peers = {{kPeer, "ipc:///peer"}};
  CHECK(all<DeviceCore::OfferTransport>(device.step(DeviceCore::FromCoordinator{load})).size() == 1);
}

TEST_CASE(
    "DC-5: without an answer in time, or with the link's end, it is host copies, and naming it again tries again") {
  Lender device;
  const std::uint64_t test = device.offer();
  const bool link_ended = GENERATE(false, true);
  CHECK(device.core->next_tick() == kStart + std::chrono::seconds(5));
  if (!link_ended) device.now += std::chrono::seconds(5);
  const auto ended = link_ended ? device.step(DeviceCore::PeerGone{kPeer}) : device.step(DeviceCore::Tick{});
  const auto told = device.judge(ended, TransportPath::kHostCopy);
  REQUIRE(told.size() == 1);
  CHECK(told[0].path == TransportPath::kHostCopy);
  CHECK(told[0].reason.find(link_ended ? "link" : "no answer in time") != std::string::npos);
  CHECK(device.judge(device.step(DeviceCore::PeerGone{kPeer}), TransportPath::kHostCopy).empty());
  const auto late = device.step(DeviceCore::FromPeer{kPeer, TransportTested{test, TransportPath::kIpc, "nonce", {}}});
  CHECK(all<DeviceCore::JudgeTransport>(late).empty());
  const std::uint64_t second = device.offer();
  CHECK(second != test);
  const auto answered =
      device.step(DeviceCore::FromPeer{kPeer, TransportTested{second, TransportPath::kIpc, "nonce", {}}});
  CHECK(device.judge(answered, TransportPath::kIpc).at(0).path == TransportPath::kIpc);
}

TEST_CASE("DC-5: an offer that cannot be made is told with its reason; one that comes too late is ended") {
  Lender device;
  const std::uint64_t test = all<DeviceCore::OfferTransport>(device.name_peer()).at(0).test;
  const auto refused = device.step(DeviceCore::TransportOffered{
      kPeer, test, fail(ErrorCode::kUnsupported, "this driver hands nothing to other processes")});
  CHECK(all<DeviceCore::SendPeer>(refused).empty());
  const auto told = device.judge(refused, TransportPath::kHostCopy);
  REQUIRE(told.size() == 1);
  CHECK(told[0].reason.find("hands nothing") != std::string::npos);

  const auto late = device.step(DeviceCore::TransportOffered{kPeer, test, Lender::block()});
  CHECK(all<DeviceCore::SendPeer>(late).empty());
  CHECK(all<DeviceCore::JudgeTransport>(late).size() == 1);
  CHECK(all<DeviceCore::ReleaseOwn>(late).at(0).leases == std::vector<LeaseId>{Lender::block().lease});
  CHECK(device.judge(late, TransportPath::kHostCopy).empty());  // the offer's end is nothing to tell of
}

TEST_CASE("DC-5: another device's test is answered over its link, a block that is not its own is not opened") {
  Lender device;
  CudaIpcBlock block = Lender::block();
  block.owner = kPeer;
  const auto asked = device.step(DeviceCore::FromPeer{kPeer, TestTransport{3, block}});
  const auto orders = all<DeviceCore::AnswerTransport>(asked);
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].exporter == kPeer);
  CHECK(orders[0].order.block == block);
  const TransportTested found{3, TransportPath::kIpc, "nonce", {}};
  const auto answered = all<DeviceCore::AnswerPeer>(device.step(DeviceCore::TransportAnswered{kPeer, found}));
  REQUIRE(answered.size() == 1);
  CHECK(answered[0].peer == kPeer);
  CHECK(std::get<TransportTested>(answered[0].message) == found);

  block.owner = ActorId{"cpu9", 1};
  const auto foreign = device.step(DeviceCore::FromPeer{kPeer, TestTransport{4, block}});
  CHECK(all<DeviceCore::AnswerTransport>(foreign).empty());
  const auto refused = all<DeviceCore::AnswerPeer>(foreign);
  REQUIRE(refused.size() == 1);
  CHECK(std::get<TransportTested>(refused[0].message).problem.find("cpu9#1") != std::string::npos);
}

TEST_CASE("a message that is none of a device's business is logged and does nothing") {
  Fixture device;
  const auto actions = device.from_coordinator(Submit{});
  REQUIRE(actions.size() == 1);
  CHECK(std::holds_alternative<DeviceCore::LogLine>(actions[0]));
}

}  // namespace
}  // namespace callboard::actors
