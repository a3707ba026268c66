// The closed set of messages. Orders are imperative, facts past tense. Plain data; codec.h turns them into frames.
// Adding a field or a message raises kProtocolVersion (frame.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "messages/base/ids.h"
#include "messages/graph.h"
#include "messages/tensor_handle.h"

namespace callboard {

enum class Role : std::uint8_t { kCoordinator = 0, kNode = 1, kDevice = 2, kClient = 3 };
std::string_view role_name(Role role);

/// In front of every message. `seq` numbers the messages of one direction of one link from 1; 0 is "not numbered"
/// (handshake, beats, acknowledgements: losing one does no harm). `ack` is cumulative: all up to it have arrived.
struct Envelope {
  Epoch epoch = 0;  ///< of the coordinator that the sender knows; 0 before Welcome
  ActorId sender;
  std::uint64_t seq = 0;
  std::uint64_t ack = 0;
  bool operator==(const Envelope&) const = default;
};

// -- handshake and liveness (any peer ↔ coordinator; device → device)
// ----------------------------------------------------

struct Hello {
  Role role = Role::kClient;
  ActorId who;
  std::string cluster;
  std::string build;  ///< version of the program, for the error text
  std::int64_t pid = 0;
  std::string endpoint;     ///< device: where other devices reach it; else empty
  std::string description;  ///< JSON object: device kind, threads, memory limit, versions; for status
  bool operator==(const Hello&) const = default;
};
struct Welcome {
  Epoch epoch = 0;
  ActorId coordinator;
  bool operator==(const Welcome&) const = default;
};
struct Refused {
  Error error;
  bool operator==(const Refused&) const = default;
};
/// Alive, and how far: `finished` counts runs (device) or nothing (others).
struct Beat {
  std::uint64_t count = 0;
  std::uint64_t finished = 0;
  std::uint32_t queued = 0;
  std::uint32_t running = 0;
  std::uint64_t memory_bytes = 0;
  bool operator==(const Beat&) const = default;
};
struct Ack {
  bool operator==(const Ack&) const = default;
};
struct Bye {
  std::string reason;
  bool operator==(const Bye&) const = default;
};

// -- client ↔ coordinator
// ---------------------------------------------------------------------------------------------------

struct LoadProgram {
  RequestSeq request = 0;
  ProgramGraph program;
  Placement placement;
  std::int64_t deadline_ms = 0;  ///< left at sending; durations travel, never points in time
  bool operator==(const LoadProgram&) const = default;
};
/// What one device does of a program; made by the planner, completed by the device's answer to LoadFragment.
struct PlannedFragment {
  std::uint32_t index = 0;
  std::string device;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> node_ranges;  ///< [first, last] node indices of the program
  std::vector<std::string> modules;  ///< distinct module paths, cut at two levels, for a table
  double cost = 0;
  std::uint64_t constant_bytes = 0;
  std::uint64_t edge_bytes = 0;  ///< leaves over edges per run where sizes are known, else 0
  std::uint64_t peak_bytes = 0;  ///< forecast without constants; 0 where sizes are not known
  bool pure = false;
  bool random = false;
  bool operator==(const PlannedFragment&) const = default;
};
struct ProgramLoaded {
  RequestSeq request = 0;
  std::optional<Error> error;
  ContentHash program;
  std::vector<PlannedFragment> plan;
  bool operator==(const ProgramLoaded&) const = default;
};
struct UnloadProgram {
  RequestSeq request = 0;
  ContentHash program;
  bool operator==(const UnloadProgram&) const = default;
};
struct Submit {
  RequestSeq request = 0;
  ContentHash program;
  std::vector<WireValue> inputs;      ///< one per ProgramInput
  std::vector<std::int64_t> symbols;  ///< bound by the client (bind_symbols), checked again by nobody else
  std::int64_t deadline_ms = 0;
  bool operator==(const Submit&) const = default;
};
enum class OutcomeStatus : std::uint8_t { kOk = 0, kFailed = 1, kCancelled = 2, kExpired = 3 };
/// The one end of a request. While `quiesced` is false some device may still read the inputs; Quiesced follows.
struct Outcome {
  RequestSeq request = 0;
  OutcomeStatus status = OutcomeStatus::kOk;
  std::vector<WireValue> outputs;  ///< one per ProgramOutput that is an ArgValue, in order; empty unless kOk
  std::optional<Error> error;
  std::uint64_t state_version = 0;  ///< of the program's state after this request; 0 if it has none
  bool quiesced = true;
  bool operator==(const Outcome&) const = default;
};
struct Quiesced {
  RequestSeq request = 0;
  bool operator==(const Quiesced&) const = default;
};
struct CancelRequest {
  RequestSeq request = 0;
  bool operator==(const CancelRequest&) const = default;
};
/// One entry of the coordinator's table of operations (status, trace, shutdown, …); the command line, the Python client
/// and later the REST port use the same ones. `arguments` and `result` are JSON objects.
struct Operation {
  RequestSeq request = 0;
  std::string name;
  std::string arguments;
  bool operator==(const Operation&) const = default;
};
struct OperationResult {
  RequestSeq request = 0;
  std::optional<Error> error;
  std::string result;
  bool operator==(const OperationResult&) const = default;
};
/// To every client when an actor changes: "ready", "down", "restarting", "failed"; to a program's users: "state_lost".
struct ActorEvent {
  ActorId who;
  std::string event;
  std::optional<Error> error;
  bool operator==(const ActorEvent&) const = default;
};

// -- coordinator ↔ device
// -----------------------------------------------------------------------------------------------------

struct PeerAddress {
  ActorId who;
  std::string endpoint;
  bool operator==(const PeerAddress&) const = default;
};
struct LoadFragment {
  Fragment fragment;
  std::vector<PeerAddress> peers;  ///< the devices that its edges lead to
  bool operator==(const LoadFragment&) const = default;
};
struct FragmentLoaded {
  ContentHash program;
  std::uint32_t fragment = 0;
  std::optional<Error> error;  ///< all gaps at once, as causes
  bool pure = false;
  bool random = false;
  std::uint64_t constant_bytes = 0;
  std::uint64_t peak_bytes = 0;
  bool operator==(const FragmentLoaded&) const = default;
};
struct UnloadFragments {
  ContentHash program;
  bool operator==(const UnloadFragments&) const = default;
};
/// Another device is there (after its start, or with a new process): edges to `who.name` go to this endpoint from now
/// on.
struct PeerMoved {
  PeerAddress peer;
  bool operator==(const PeerMoved&) const = default;
};
struct RunFragment {
  RunId run = 0;
  Attempt attempt = 1;
  ContentHash program;
  std::uint32_t fragment = 0;
  ActorId client;                 ///< holder of the leases on what goes to the client
  std::vector<WireValue> inputs;  ///< for the FragmentInputs with source kProgramInput, in order
  std::vector<std::int64_t> symbols;
  std::int64_t deadline_ms = 0;
  bool client_reads_device = false;  ///< the client can open memory of the device that runs this
  bool operator==(const RunFragment&) const = default;
};
/// Sent exactly once for each RunFragment that arrived, also after CancelRun: from then on the device reads none of the
/// run's inputs.
struct FragmentFinished {
  RunId run = 0;
  Attempt attempt = 1;
  std::uint32_t fragment = 0;
  std::optional<Error> error;
  std::vector<WireValue> outputs;  ///< for the FragmentOutputs with to_client, in order; empty if error
  std::uint64_t state_version = 0;
  std::int64_t run_ns = 0;  ///< inside the device actor, first kernel to last Blob
  bool operator==(const FragmentFinished&) const = default;
};
struct CancelRun {
  RunId run = 0;
  Error reason;
  bool operator==(const CancelRun&) const = default;
};
/// Free questions to a device: "trace", "memory", …; JSON objects both ways.
struct DeviceQuery {
  std::uint64_t query = 0;
  std::string name;
  std::string arguments;
  bool operator==(const DeviceQuery&) const = default;
};
struct DeviceReply {
  std::uint64_t query = 0;
  std::optional<Error> error;
  std::string result;
  bool operator==(const DeviceReply&) const = default;
};

// -- device → device
// ------------------------------------------------------------------------------------------------------------

/// What an edge carries, straight from producer to consumer. One message for each pair of fragments and run.
struct EdgeValues {
  RunId run = 0;
  Attempt attempt = 1;
  Epoch epoch = 0;
  ContentHash program;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::vector<std::pair<ValueId, WireValue>> values;
  bool operator==(const EdgeValues&) const = default;
};
/// Exporter → reader, once for each pair of processes: read these bytes, which nobody can guess, as you would a result.
struct TestTransport {
  std::uint64_t test = 0;  ///< the exporter's number of it
  CudaIpcBlock block;
  bool operator==(const TestTransport&) const = default;
};
/// Reader → exporter: what it found there, and by which path; or in `problem` why it could not look.
struct TransportTested {
  std::uint64_t test = 0;
  TransportPath path = TransportPath::kHostCopy;
  std::string read;
  std::string problem;
  bool operator==(const TransportTested&) const = default;
};
/// Exporter → coordinator: its results get to `reader` this way from now on. `reason`: why by no better one.
struct TransportChosen {
  ActorId reader;
  TransportPath path = TransportPath::kHostCopy;
  std::string reason;
  bool operator==(const TransportChosen&) const = default;
};
/// The sender no longer reads these blocks of `owner` (device → device, and reader → node actor → owner).
struct ReleaseLeases {
  ActorId owner;
  std::vector<LeaseId> leases;
  bool operator==(const ReleaseLeases&) const = default;
};

// -- node actor ↔ coordinator
// -----------------------------------------------------------------------------------------------------

struct ActorStarted {
  ActorId who;
  std::int64_t pid = 0;
  bool operator==(const ActorStarted&) const = default;
};
/// The end of a process, as the operating system told it. Sent once for each start.
struct ActorExited {
  ActorId who;
  std::int64_t pid = 0;
  bool signalled = false;
  std::int32_t code = 0;  ///< exit status, or the signal's number
  bool core_dumped = false;
  bool stopped_by_us = false;       ///< the node actor ended it on purpose
  std::string log_tail;             ///< last lines it wrote
  std::int64_t restart_in_ms = -1;  ///< -1: it will not be started again
  bool operator==(const ActorExited&) const = default;
};
/// Coordinator → node actor: end the cluster.
struct ShutDown {
  std::string reason;
  bool force = false;
  bool operator==(const ShutDown&) const = default;
};
/// Coordinator → node actor: end this actor (and start it again where `restart`).
struct StopActor {
  ActorId who;
  bool kill = false;
  bool restart = true;
  bool operator==(const StopActor&) const = default;
};

// -- memory lane: any process ↔ its host's node actor, over a Unix seqpacket socket; fds ride along
// -------------------------------

struct MemoryHello {
  Role role = Role::kClient;
  ActorId who;
  std::int64_t pid = 0;
  bool operator==(const MemoryHello&) const = default;
};
struct MemoryWelcome {
  bool operator==(const MemoryWelcome&) const = default;
};
/// + 1 fd (read-only re-open). From now on others may open the segment.
struct SegmentAdded {
  SegmentId segment = 0;
  std::uint64_t bytes = 0;
  bool operator==(const SegmentAdded&) const = default;
};
struct SegmentDropped {
  SegmentId segment = 0;
  bool operator==(const SegmentDropped&) const = default;
};
struct OpenSegment {
  std::uint64_t query = 0;
  ActorId owner;
  SegmentId segment = 0;
  bool operator==(const OpenSegment&) const = default;
};
/// + 1 fd unless error (kTensorLost).
struct SegmentOpened {
  std::uint64_t query = 0;
  std::optional<Error> error;
  std::uint64_t bytes = 0;
  bool operator==(const SegmentOpened&) const = default;
};
/// To owners: this holder's process ended; its leases are over.
struct HolderGone {
  ActorId holder;
  bool operator==(const HolderGone&) const = default;
};
/// To readers: this owner's process ended; answered by SegmentsHeld within a second.
struct OwnerGone {
  ActorId owner;
  bool operator==(const OwnerGone&) const = default;
};
struct SegmentsHeld {
  ActorId owner;
  std::vector<SegmentId> segments;
  bool operator==(const SegmentsHeld&) const = default;
};
struct ConstantSpan {
  ContentHash hash;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const ConstantSpan&) const = default;
};
/// Which of these does the node actor not have? Marks the present ones as used by the asker.
struct FindConstants {
  std::uint64_t query = 0;
  std::vector<ContentHash> hashes;
  bool operator==(const FindConstants&) const = default;
};
struct ConstantsFound {
  std::uint64_t query = 0;
  std::optional<Error> error;
  std::vector<ContentHash> missing;
  bool operator==(const ConstantsFound&) const = default;
};
/// A regular file in one state. Who writes to it, truncates it, replaces or touches it makes another identity of it, so
/// as long as this one is found its bytes are those that were checked under it.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since the epoch; as is changed_ns
  std::int64_t changed_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};
/// Constants that lie in a file of the host: the hash of each was found to be right while the file had this identity.
struct ConstantFile {
  std::string path;  ///< for people; the descriptor says which file it is
  FileIdentity identity;
  bool operator==(const ConstantFile&) const = default;
};
/// + 1 fd, read-only: a sealed segment, or with `file` that file, of `bytes` bytes, that holds these constants. The
/// node actor keeps it while any process uses one of them.
struct AddConstants {
  std::uint64_t query = 0;
  std::uint64_t bytes = 0;
  std::vector<ConstantSpan> spans;
  std::optional<ConstantFile> file;
  bool operator==(const AddConstants&) const = default;
};
struct ConstantsAdded {
  std::uint64_t query = 0;
  std::optional<Error> error;
  bool operator==(const ConstantsAdded&) const = default;
};
/// One constant; + 1 fd of the segment or file that holds it unless error (kConstantMissing). `segment` numbers what
/// holds it, so that a reader maps each one once.
struct OpenConstant {
  std::uint64_t query = 0;
  ContentHash hash;
  bool operator==(const OpenConstant&) const = default;
};
struct ConstantOpened {
  std::uint64_t query = 0;
  std::optional<Error> error;
  SegmentId segment = 0;
  std::uint64_t segment_bytes = 0;
  ConstantSpan span;
  std::optional<ConstantFile> file;
  bool operator==(const ConstantOpened&) const = default;
};
struct ReleaseConstants {
  std::vector<ContentHash> hashes;
  bool operator==(const ReleaseConstants&) const = default;
};

// New alternatives go at the end: the index is the type number in the frame header (plus one).
using MessageVariant =
    std::variant<Hello, Welcome, Refused, Beat, Ack, Bye, LoadProgram, ProgramLoaded, UnloadProgram, Submit, Outcome,
                 Quiesced, CancelRequest, Operation, OperationResult, ActorEvent, LoadFragment, FragmentLoaded,
                 UnloadFragments, PeerMoved, RunFragment, FragmentFinished, CancelRun, DeviceQuery, DeviceReply,
                 EdgeValues, ReleaseLeases, ActorStarted, ActorExited, ShutDown, StopActor, MemoryHello, MemoryWelcome,
                 SegmentAdded, SegmentDropped, OpenSegment, SegmentOpened, HolderGone, OwnerGone, SegmentsHeld,
                 FindConstants, ConstantsFound, AddConstants, ConstantsAdded, OpenConstant, ConstantOpened,
                 ReleaseConstants, TestTransport, TransportTested, TransportChosen>;

/// One message of the set. A variant (get_if, holds_alternative and visit work on it) whose copies, moves and
/// comparison are compiled once, in protocol.cpp: instantiating them for so many alternatives costs each source about 8
/// s.
class Message : public MessageVariant {
 public:
  Message();
  /// From any of its alternatives, as the variant; instantiated in protocol.cpp.
  template <class T>
  requires(!std::is_same_v<T, Message>) Message(T value);  // NOLINT(google-explicit-constructor)
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();
  friend bool operator==(const Message& a, const Message& b);
};

/// "run_fragment", …; for logs and errors.
std::string_view message_name(const Message& message);
/// The same by index into the variant; "unknown_message" beyond its end.
std::string_view message_name(std::size_t index);

}  // namespace callboard

template <>
struct std::variant_size<callboard::Message> : std::variant_size<callboard::MessageVariant> {};
