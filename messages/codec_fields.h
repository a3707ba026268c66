// Internal to the codec: which fields travel, in which order. The one table for writing and for reading; a field that
// is missing here does not compile (codec_values.h counts them). Changing a line raises kProtocolVersion, or
// kGraphSchemaVersion for what is inside a program.
#pragma once

#include <cstdint>
#include <tuple>

#include "messages/graph.h"
#include "messages/protocol.h"

namespace callboard::codec {

/// A std::string that holds raw bytes and travels as msgpack `bin`; every other one is text.
template <auto Member>
struct Binary {};

struct NoFields {};
template <class T>
inline constexpr NoFields kFields{};

/// One above the last enumerator; they are dense from 0.
template <class E>
inline constexpr std::uint64_t kEnumEnd = 0;
template <>
inline constexpr std::uint64_t kEnumEnd<Role> = 4;
template <>
inline constexpr std::uint64_t kEnumEnd<OutcomeStatus> = 4;
template <>
inline constexpr std::uint64_t kEnumEnd<TransportPath> = 4;
template <>
inline constexpr std::uint64_t kEnumEnd<ValueKind> = 5;
template <>
inline constexpr std::uint64_t kEnumEnd<FragmentInput::Source> = 2;

// Also for the tables of domain_messages.cpp, which are of a protocol of their own.
#define CALLBOARD_FIELDS(Type, ...)                  \
  template <>                                        \
  inline constexpr auto kFields<Type> = std::tuple { \
    __VA_ARGS__                                      \
  }

// -- identities, tensors -------------------------------------------------------------------------------------------
CALLBOARD_FIELDS(ActorId, &ActorId::name, &ActorId::incarnation);
CALLBOARD_FIELDS(TensorMeta, &TensorMeta::dtype, &TensorMeta::sizes, &TensorMeta::strides, &TensorMeta::storage_offset);
CALLBOARD_FIELDS(InlineBytes, Binary<&InlineBytes::bytes>{});
CALLBOARD_FIELDS(ArenaBlock, &ArenaBlock::owner, &ArenaBlock::segment, &ArenaBlock::offset, &ArenaBlock::bytes,
                 &ArenaBlock::lease);
CALLBOARD_FIELDS(CudaIpcBlock, &CudaIpcBlock::owner, &CudaIpcBlock::slab, &CudaIpcBlock::offset, &CudaIpcBlock::bytes,
                 &CudaIpcBlock::lease, &CudaIpcBlock::mapping, Binary<&CudaIpcBlock::handles>{});
CALLBOARD_FIELDS(TensorHandle, &TensorHandle::meta, &TensorHandle::data, &TensorHandle::requires_grad);

// -- programs ------------------------------------------------------------------------------------------------------
CALLBOARD_FIELDS(ArgNone);
CALLBOARD_FIELDS(ArgValue, &ArgValue::value);
CALLBOARD_FIELDS(ArgValueList, &ArgValueList::values);
CALLBOARD_FIELDS(ArgOptionalValueList, &ArgOptionalValueList::values);
CALLBOARD_FIELDS(ArgSymbol, &ArgSymbol::expr);
CALLBOARD_FIELDS(ArgIntList, &ArgIntList::items);
CALLBOARD_FIELDS(ArgFloatList, &ArgFloatList::items);
CALLBOARD_FIELDS(ArgBoolList, &ArgBoolList::items);
CALLBOARD_FIELDS(ArgStringList, &ArgStringList::items);
CALLBOARD_FIELDS(ArgDType, &ArgDType::dtype);
CALLBOARD_FIELDS(ArgLayout, &ArgLayout::name);
CALLBOARD_FIELDS(ArgMemoryFormat, &ArgMemoryFormat::name);
CALLBOARD_FIELDS(ArgDeviceSlot, &ArgDeviceSlot::slot);
CALLBOARD_FIELDS(ArgLiteralDevice, &ArgLiteralDevice::name);
CALLBOARD_FIELDS(ArgScalar, &ArgScalar::value);
CALLBOARD_FIELDS(SymbolSpec, &SymbolSpec::name, &SymbolSpec::min, &SymbolSpec::max);
CALLBOARD_FIELDS(ValueSpec, &ValueSpec::name, &ValueSpec::kind, &ValueSpec::dtype, &ValueSpec::sizes);
CALLBOARD_FIELDS(NodeOutput, &NodeOutput::is_list, &NodeOutput::values);
CALLBOARD_FIELDS(Node, &Node::op, &Node::args, &Node::kwargs, &Node::outputs, &Node::name, &Node::module_path,
                 &Node::source, &Node::cost);
CALLBOARD_FIELDS(ProgramInput, &ProgramInput::name, &ProgramInput::value);
CALLBOARD_FIELDS(Constant, &Constant::name, &Constant::value, &Constant::storage, &Constant::storage_bytes,
                 &Constant::meta, &Constant::requires_grad);
CALLBOARD_FIELDS(State, &State::name, &State::before, &State::after, &State::initial);
CALLBOARD_FIELDS(ProgramOutput, &ProgramOutput::name, &ProgramOutput::source);
CALLBOARD_FIELDS(ProgramGraph, &ProgramGraph::schema_version, &ProgramGraph::name, &ProgramGraph::symbols,
                 &ProgramGraph::values, &ProgramGraph::inputs, &ProgramGraph::constants, &ProgramGraph::states,
                 &ProgramGraph::nodes, &ProgramGraph::outputs, &ProgramGraph::annotations);
CALLBOARD_FIELDS(Placement::Rule, &Placement::Rule::device, &Placement::Rule::module_prefixes,
                 &Placement::Rule::node_ranges);
CALLBOARD_FIELDS(Placement, &Placement::automatic, &Placement::devices, &Placement::rules);
CALLBOARD_FIELDS(FragmentInput, &FragmentInput::value, &FragmentInput::source, &FragmentInput::index);
CALLBOARD_FIELDS(FragmentOutput::Edge, &FragmentOutput::Edge::fragment, &FragmentOutput::Edge::device);
CALLBOARD_FIELDS(FragmentOutput, &FragmentOutput::value, &FragmentOutput::to_client, &FragmentOutput::edges);
CALLBOARD_FIELDS(Fragment, &Fragment::schema_version, &Fragment::program, &Fragment::index, &Fragment::device,
                 &Fragment::symbols, &Fragment::values, &Fragment::inputs, &Fragment::constants, &Fragment::states,
                 &Fragment::node_ids, &Fragment::nodes, &Fragment::outputs, &Fragment::frees);

// -- messages ------------------------------------------------------------------------------------------------------
CALLBOARD_FIELDS(Envelope, &Envelope::epoch, &Envelope::sender, &Envelope::seq, &Envelope::ack);
CALLBOARD_FIELDS(Hello, &Hello::role, &Hello::who, &Hello::cluster, &Hello::build, &Hello::pid, &Hello::endpoint,
                 &Hello::description);
CALLBOARD_FIELDS(Welcome, &Welcome::epoch, &Welcome::coordinator);
CALLBOARD_FIELDS(Refused, &Refused::error);
CALLBOARD_FIELDS(Beat, &Beat::count, &Beat::finished, &Beat::queued, &Beat::running, &Beat::memory_bytes);
CALLBOARD_FIELDS(Ack);
CALLBOARD_FIELDS(Bye, &Bye::reason);
CALLBOARD_FIELDS(LoadProgram, &LoadProgram::request, &LoadProgram::program, &LoadProgram::placement,
                 &LoadProgram::deadline_ms);
CALLBOARD_FIELDS(PlannedFragment, &PlannedFragment::index, &PlannedFragment::device, &PlannedFragment::node_ranges,
                 &PlannedFragment::modules, &PlannedFragment::cost, &PlannedFragment::constant_bytes,
                 &PlannedFragment::edge_bytes, &PlannedFragment::peak_bytes, &PlannedFragment::pure,
                 &PlannedFragment::random);
CALLBOARD_FIELDS(ProgramLoaded, &ProgramLoaded::request, &ProgramLoaded::error, &ProgramLoaded::program,
                 &ProgramLoaded::plan);
CALLBOARD_FIELDS(UnloadProgram, &UnloadProgram::request, &UnloadProgram::program);
CALLBOARD_FIELDS(Submit, &Submit::request, &Submit::program, &Submit::inputs, &Submit::symbols, &Submit::deadline_ms);
CALLBOARD_FIELDS(Outcome, &Outcome::request, &Outcome::status, &Outcome::outputs, &Outcome::error,
                 &Outcome::state_version, &Outcome::quiesced);
CALLBOARD_FIELDS(Quiesced, &Quiesced::request);
CALLBOARD_FIELDS(CancelRequest, &CancelRequest::request);
CALLBOARD_FIELDS(Operation, &Operation::request, &Operation::name, &Operation::arguments);
CALLBOARD_FIELDS(OperationResult, &OperationResult::request, &OperationResult::error, &OperationResult::result);
CALLBOARD_FIELDS(ActorEvent, &ActorEvent::who, &ActorEvent::event, &ActorEvent::error);
CALLBOARD_FIELDS(PeerAddress, &PeerAddress::who, &PeerAddress::endpoint);
CALLBOARD_FIELDS(LoadFragment, &LoadFragment::fragment, &LoadFragment::peers);
CALLBOARD_FIELDS(FragmentLoaded, &FragmentLoaded::program, &FragmentLoaded::fragment, &FragmentLoaded::error,
                 &FragmentLoaded::pure, &FragmentLoaded::random, &FragmentLoaded::constant_bytes,
                 &FragmentLoaded::peak_bytes);
CALLBOARD_FIELDS(UnloadFragments, &UnloadFragments::program);
CALLBOARD_FIELDS(PeerMoved, &PeerMoved::peer);
CALLBOARD_FIELDS(RunFragment, &RunFragment::run, &RunFragment::attempt, &RunFragment::program, &RunFragment::fragment,
                 &RunFragment::client, &RunFragment::inputs, &RunFragment::symbols, &RunFragment::deadline_ms,
                 &RunFragment::client_reads_device);
CALLBOARD_FIELDS(FragmentFinished, &FragmentFinished::run, &FragmentFinished::attempt, &FragmentFinished::fragment,
                 &FragmentFinished::error, &FragmentFinished::outputs, &FragmentFinished::state_version,
                 &FragmentFinished::run_ns);
CALLBOARD_FIELDS(CancelRun, &CancelRun::run, &CancelRun::reason);
CALLBOARD_FIELDS(DeviceQuery, &DeviceQuery::query, &DeviceQuery::name, &DeviceQuery::arguments);
CALLBOARD_FIELDS(DeviceReply, &DeviceReply::query, &DeviceReply::error, &DeviceReply::result);
CALLBOARD_FIELDS(EdgeValues, &EdgeValues::run, &EdgeValues::attempt, &EdgeValues::epoch, &EdgeValues::program,
                 &EdgeValues::from, &EdgeValues::to, &EdgeValues::values);
CALLBOARD_FIELDS(TestTransport, &TestTransport::test, &TestTransport::block);
CALLBOARD_FIELDS(TransportTested, &TransportTested::test, &TransportTested::path, Binary<&TransportTested::read>{},
                 &TransportTested::problem);
CALLBOARD_FIELDS(TransportChosen, &TransportChosen::reader, &TransportChosen::path, &TransportChosen::reason);
CALLBOARD_FIELDS(ReleaseLeases, &ReleaseLeases::owner, &ReleaseLeases::leases);
CALLBOARD_FIELDS(ActorStarted, &ActorStarted::who, &ActorStarted::pid);
CALLBOARD_FIELDS(ActorExited, &ActorExited::who, &ActorExited::pid, &ActorExited::signalled, &ActorExited::code,
                 &ActorExited::core_dumped, &ActorExited::stopped_by_us, &ActorExited::log_tail,
                 &ActorExited::restart_in_ms);
CALLBOARD_FIELDS(ShutDown, &ShutDown::reason, &ShutDown::force);
CALLBOARD_FIELDS(StopActor, &StopActor::who, &StopActor::kill, &StopActor::restart);
CALLBOARD_FIELDS(MemoryHello, &MemoryHello::role, &MemoryHello::who, &MemoryHello::pid);
CALLBOARD_FIELDS(MemoryWelcome);
CALLBOARD_FIELDS(SegmentAdded, &SegmentAdded::segment, &SegmentAdded::bytes);
CALLBOARD_FIELDS(SegmentDropped, &SegmentDropped::segment);
CALLBOARD_FIELDS(OpenSegment, &OpenSegment::query, &OpenSegment::owner, &OpenSegment::segment);
CALLBOARD_FIELDS(SegmentOpened, &SegmentOpened::query, &SegmentOpened::error, &SegmentOpened::bytes);
CALLBOARD_FIELDS(HolderGone, &HolderGone::holder);
CALLBOARD_FIELDS(OwnerGone, &OwnerGone::owner);
CALLBOARD_FIELDS(SegmentsHeld, &SegmentsHeld::owner, &SegmentsHeld::segments);
CALLBOARD_FIELDS(ConstantSpan, &ConstantSpan::hash, &ConstantSpan::offset, &ConstantSpan::bytes);
CALLBOARD_FIELDS(FindConstants, &FindConstants::query, &FindConstants::hashes);
CALLBOARD_FIELDS(ConstantsFound, &ConstantsFound::query, &ConstantsFound::error, &ConstantsFound::missing);
CALLBOARD_FIELDS(FileIdentity, &FileIdentity::device, &FileIdentity::inode, &FileIdentity::bytes,
                 &FileIdentity::modified_ns, &FileIdentity::changed_ns);
CALLBOARD_FIELDS(ConstantFile, &ConstantFile::path, &ConstantFile::identity);
CALLBOARD_FIELDS(AddConstants, &AddConstants::query, &AddConstants::bytes, &AddConstants::spans, &AddConstants::file);
CALLBOARD_FIELDS(ConstantsAdded, &ConstantsAdded::query, &ConstantsAdded::error);
CALLBOARD_FIELDS(OpenConstant, &OpenConstant::query, &OpenConstant::hash);
CALLBOARD_FIELDS(ConstantOpened, &ConstantOpened::query, &ConstantOpened::error, &ConstantOpened::segment,
                 &ConstantOpened::segment_bytes, &ConstantOpened::span, &ConstantOpened::file);
CALLBOARD_FIELDS(ReleaseConstants, &ReleaseConstants::hashes);

}  // namespace callboard::codec
