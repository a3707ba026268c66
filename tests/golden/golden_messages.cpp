#include "tests/golden/golden_messages.h"

#include <limits>

#include "messages/codec.h"

namespace callboard::golden {
namespace {

ContentHash hash_of(std::string_view text) { return ContentHash::of(text.data(), text.size()); }

const ActorId kClient{"client-7f3a", 1};
const ActorId kDevice0{"cpu0", 3};
const ActorId kDevice1{"cpu1", 1};
const ActorId kCoordinator{"coordinator", 2};

TensorHandle inline_tensor() {
  return {TensorMeta::contiguous(DType::kFloat32, {2, 2}), InlineBytes{std::string("\x00\x00\x80\x3f\x00\x00\x00\x40"
                                                                                   "\x00\x00\x40\x40\x00\x00\x80\x40",
                                                                                   16)}};
}
TensorHandle arena_tensor() {
  TensorHandle handle;
  handle.meta = {DType::kBFloat16, {3, 4}, {1, 3}, 5};
  handle.data = ArenaBlock{kDevice0, 12, 4096, 8192, 77};
  return handle;
}
TensorHandle cuda_tensor() {
  TensorHandle handle;
  handle.meta = TensorMeta::contiguous(DType::kFloat16, {1024});
  handle.data = CudaIpcBlock{
      kDevice1,
      4,
      2u << 20,
      2048,
      78,
      76,
      CudaIpcBlock::join_handles(std::string(16, '\xab'), std::string(64, '\x01'), std::string(64, '\x02'))};
  return handle;
}

std::vector<WireValue> every_value() {
  return {std::monostate{},
          inline_tensor(),
          arena_tensor(),
          cuda_tensor(),
          std::int64_t{-1},
          std::numeric_limits<std::int64_t>::max(),
          1.0,
          -0.0,
          std::numeric_limits<double>::infinity(),
          true};
}

Expr twice_plus_one() {
  return Expr{{{ExprOp::kConst, 2}, {ExprOp::kSymbol, 0}, {ExprOp::kMul, 0}, {ExprOp::kConst, 1}, {ExprOp::kAdd, 0}}};
}

std::vector<Argument> every_argument() {
  return {ArgNone{},
          ArgValue{0},
          ArgValueList{{0, 1}},
          ArgOptionalValueList{{0, kNoValue, 1}},
          true,
          std::int64_t{1},
          ArgSymbol{twice_plus_one()},
          1.0,
          std::complex<double>{1.5, -2.0},
          std::string("mean"),
          ArgDType{DType::kFloat8E4M3FN},
          ArgLayout{"strided"},
          ArgMemoryFormat{"channels_last"},
          ArgDeviceSlot{0},
          ArgLiteralDevice{"cuda:1"},
          ArgIntList{{Expr::constant(-1), Expr::symbol(0), Expr::value(3)}},
          ArgFloatList{{0.5, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}},
          ArgBoolList{{true, false}},
          ArgStringList{{"reflect", "zeros"}},
          ArgScalar{true},
          ArgScalar{std::int64_t{1}},
          ArgScalar{1.0},
          ArgScalar{std::complex<double>{0.0, 1.0}}};
}

Node node(std::string op, std::vector<Argument> args, std::vector<NodeOutput> outputs) {
  Node made;
  made.op = std::move(op);
  made.args = std::move(args);
  made.outputs = std::move(outputs);
  return made;
}

std::vector<GoldenPacket> handshake_and_client() {
  LoadProgram load;
  load.request = 1;
  load.program = golden_program();
  load.placement.automatic = false;
  load.placement.devices = {"cpu0", "cpu1"};
  load.placement.rules = {{"cpu0", {"encoder.layer.0", "embeddings"}, {}}, {"cpu1", {}, {{1, 2}, {4, 4}}}};
  load.deadline_ms = 60'000;
  PlannedFragment planned{0, "cpu0", {{0, 2}}, {"encoder.layer"}, 1.5e9, 4096, 512, 8192, true, false};
  std::vector<GoldenPacket> packets;
  const auto add = [&](std::string name, Message message, const ActorId& sender, std::uint64_t seq) {
    packets.push_back({std::move(name), {2, sender, seq, 40}, std::move(message)});
  };
  add("hello", Hello{Role::kDevice, kDevice0, "demo", "0.1.0", 4711, "ipc:///tmp/cb/cpu0", R"({"kind":"cpu"})"},
      kDevice0, 0);
  add("welcome", Welcome{2, kCoordinator}, kCoordinator, 0);
  add("refused", Refused{golden_error()}, kCoordinator, 0);
  add("beat", Beat{17, 5, 2, 1, 1u << 30}, kDevice0, 0);
  add("ack", Ack{}, kDevice0, 0);
  add("bye", Bye{"the cluster stops"}, kDevice0, 9);
  add("load_program", load, kClient, 1);
  add("program_loaded", ProgramLoaded{1, std::nullopt, hash_of("program"), {planned}}, kCoordinator, 1);
  add("unload_program", UnloadProgram{2, hash_of("program")}, kClient, 2);
  add("submit", Submit{3, hash_of("program"), every_value(), {8, 128}, 5'000}, kClient, 3);
  add("outcome", Outcome{3, OutcomeStatus::kOk, every_value(), std::nullopt, 4, false}, kCoordinator, 3);
  add("outcome_failed", Outcome{4, OutcomeStatus::kFailed, {}, golden_error(), 0, true}, kCoordinator, 4);
  add("quiesced", Quiesced{3}, kCoordinator, 5);
  add("cancel_request", CancelRequest{3}, kClient, 4);
  add("operation", Operation{5, "status", "{}"}, kClient, 5);
  add("operation_result", OperationResult{5, std::nullopt, R"({"actors":[]})"}, kCoordinator, 6);
  add("actor_event", ActorEvent{kDevice0, "down", golden_error()}, kCoordinator, 7);
  return packets;
}

std::vector<GoldenPacket> devices() {
  LoadFragment load{golden_fragment(), {{kDevice1, "ipc:///tmp/cb/cpu1"}}};
  std::vector<GoldenPacket> packets;
  const auto add = [&](std::string name, Message message, const ActorId& sender, std::uint64_t seq) {
    packets.push_back({std::move(name), {2, sender, seq, 7}, std::move(message)});
  };
  add("load_fragment", load, kCoordinator, 1);
  add("fragment_loaded", FragmentLoaded{hash_of("program"), 1, std::nullopt, true, false, 4096, 8192}, kDevice0, 1);
  add("unload_fragments", UnloadFragments{hash_of("program")}, kCoordinator, 2);
  add("peer_moved", PeerMoved{{kDevice1, "ipc:///tmp/cb/cpu1.2"}}, kCoordinator, 3);
  add("run_fragment", RunFragment{900, 2, hash_of("program"), 1, kClient, every_value(), {8, 128}, 4'990, true},
      kCoordinator, 4);
  add("fragment_finished", FragmentFinished{900, 2, 1, std::nullopt, every_value(), 4, 1'234'567}, kDevice0, 2);
  add("cancel_run", CancelRun{900, Error(ErrorCode::kCancelled, "the client gave up")}, kCoordinator, 5);
  add("device_query", DeviceQuery{1, "memory", "{}"}, kCoordinator, 6);
  add("device_reply", DeviceReply{1, std::nullopt, R"({"bytes":0})"}, kDevice0, 3);
  add("edge_values", EdgeValues{900, 2, 2, hash_of("program"), 0, 1, {{5, arena_tensor()}, {6, std::int64_t{3}}}},
      kDevice1, 1);
  add("test_transport", TestTransport{3, std::get<CudaIpcBlock>(cuda_tensor().data)}, kDevice1, 3);
  add("transport_tested", TransportTested{3, TransportPath::kPeer, std::string(32, '\x7f'), ""}, kDevice0, 4);
  add("transport_chosen", TransportChosen{kDevice0, TransportPath::kHostCopy, "cpu0#3 takes host copies: it is alone"},
      kDevice1, 4);
  add("release_leases", ReleaseLeases{kDevice0, {77, 78, 1u << 20}}, kDevice1, 2);
  return packets;
}

std::vector<GoldenPacket> node_and_memory() {
  const ActorId sender{"node", 1};
  const Error lost(ErrorCode::kTensorLost, "segment 12 of cpu0#3 is gone");
  const ConstantSpan span{hash_of("weight"), 4096, 1024};
  std::vector<GoldenPacket> packets;
  const auto add = [&](std::string name, Message message) {
    packets.push_back({std::move(name), {0, sender, packets.size(), 0}, std::move(message)});
  };
  add("actor_started", ActorStarted{kDevice0, 4711});
  add("actor_exited", ActorExited{kDevice0, 4711, true, 9, false, false, "last line\nof the log", 250});
  add("shut_down", ShutDown{"down was called", true});
  add("stop_actor", StopActor{kDevice0, true, false});
  add("memory_hello", MemoryHello{Role::kClient, kClient, 815});
  add("memory_welcome", MemoryWelcome{});
  add("segment_added", SegmentAdded{12, 64u << 20});
  add("segment_dropped", SegmentDropped{12});
  add("open_segment", OpenSegment{1, kDevice0, 12});
  add("segment_opened", SegmentOpened{1, lost, 0});
  add("holder_gone", HolderGone{kClient});
  add("owner_gone", OwnerGone{kDevice0});
  add("segments_held", SegmentsHeld{kDevice0, {12, 13}});
  add("find_constants", FindConstants{2, {hash_of("weight"), hash_of("bias")}});
  add("constants_found", ConstantsFound{2, std::nullopt, {hash_of("bias")}});
  const ConstantFile file{"/models/weights.safetensors", {2'049, 4'711, 1u << 20, 1'700'000'000'000'000'001, -1}};
  add("add_constants", AddConstants{3, 1u << 20, {span}, file});
  add("constants_added", ConstantsAdded{3, std::nullopt});
  add("open_constant", OpenConstant{4, hash_of("weight")});
  add("constant_opened", ConstantOpened{4, std::nullopt, 2, 1u << 20, span, std::nullopt});
  add("release_constants", ReleaseConstants{{hash_of("weight")}});
  return packets;
}

}  // namespace

Error golden_error() {
  Error error(ErrorCode::kUnknownOperator, "the device cannot run 2 operators",
              "install the package that defines them");
  error.actor = "cpu0#3";
  error.op = "aten::ad.Tensor";
  error.node = 3;
  error.detail = "line one\nline two · naïve";
  Error cause(ErrorCode::kUnknownOperator, "there is no aten::ad.Tensor", "did you mean aten::add.Tensor?");
  cause.causes = {Error(static_cast<ErrorCode>(998), "a code of a later version")};
  error.causes = {cause, Error(ErrorCode::kBadArgument, "argument 'alpha' is missing")};
  return error;
}

/// Not one that check_program accepts: it holds every kind of argument, a literal device too.
ProgramGraph golden_program() {
  ProgramGraph program;
  program.name = "golden";
  program.symbols = {{"s0", 2, 512}, {"s1", 0, INT64_MAX}};
  program.values = {{"x", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::symbol(0), Expr::constant(4)}},
                    {"weight", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{Expr::constant(4)}},
                    {"sum", ValueKind::kTensor, DType::kUndefined, std::nullopt},
                    {"n", ValueKind::kInt, DType::kUndefined, std::nullopt},
                    {"scale", ValueKind::kFloat, DType::kUndefined, std::nullopt},
                    {"flag", ValueKind::kBool, DType::kUndefined, std::nullopt},
                    {"nothing", ValueKind::kNone, DType::kUndefined, std::nullopt}};
  program.inputs = {{"x", 0}};
  program.constants = {{"encoder.weight", 1, hash_of("weight"), 64, {DType::kFloat32, {4}, {2}, 1}}};
  program.states = {{"counter", 1, 2, 0}};
  Node add = node("aten::add.Tensor", {ArgValue{0}, ArgValue{1}}, {{false, {2}}});
  add.kwargs = {{"alpha", ArgScalar{std::int64_t{2}}}};
  add.name = "add_1";
  add.module_path = "encoder.layer.0";
  add.source = "model.py:12 in forward: x + self.weight";
  add.cost = 128.5;
  program.nodes = {add, node("callboard_sym::size", {ArgValue{0}, std::int64_t{0}}, {{false, {3}}}),
                   node("demo::everything", every_argument(), {{true, {4, kNoValue, 5}}, {false, {kNoValue}}})};
  program.outputs = {{"sum", ArgValue{2}},
                     {"none", ArgNone{}},
                     {"flag", false},
                     {"n", std::int64_t{7}},
                     {"pi", 3.25},
                     {"text", std::string("t")},
                     {"size", ArgSymbol{twice_plus_one()}}};
  program.annotations = {{"exporter", "0.1.0"}, {"inputs", "[*]"}};
  return program;
}

Fragment golden_fragment() {
  const ProgramGraph program = golden_program();
  Fragment fragment;
  fragment.program = hash_of("program");
  fragment.index = 1;
  fragment.device = "cpu0";
  fragment.symbols = program.symbols;
  for (const ValueId id : {0u, 1u, 2u, 3u}) fragment.values[id] = program.values[id];
  fragment.inputs = {{0, FragmentInput::Source::kEdge, 0}};
  fragment.constants = program.constants;
  fragment.states = program.states;
  fragment.node_ids = {4, 9};
  fragment.nodes = {program.nodes[0], program.nodes[1]};
  fragment.outputs = {{2, true, {{2, "cpu1"}}}, {3, false, {{3, "cpu1"}}}};
  fragment.frees = {{1}, {0}};
  return fragment;
}

std::vector<GoldenPacket> golden_packets() {
  std::vector<GoldenPacket> packets = handshake_and_client();
  for (auto make : {devices, node_and_memory}) {
    for (GoldenPacket& packet : make()) packets.push_back(std::move(packet));
  }
  return packets;
}

}  // namespace callboard::golden
