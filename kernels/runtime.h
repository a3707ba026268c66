// What a device actor asks of its kernels, without a line of LibTorch: load a fragment, run it, hand its results out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/memory/arena.h"
#include "kernels/memory/mapped_file.h"
#include "kernels/memory/segment_map.h"
#include "kernels/operator_library.h"
#include "messages/base/clock.h"
#include "messages/graph.h"
#include "messages/protocol.h"

namespace callboard::kernels {

/// A constant's storage, mapped privately (copy on write) and kept alive by the pointer.
struct ConstantStorage {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::shared_ptr<void> keep;
  /// The file that it lies in; nullptr where nobody can change the bytes. Each run that read them ends with a check().
  std::shared_ptr<MappedFile> file = nullptr;
};
/// Finds a constant by content; may block with a deadline. kConstantMissing, kFileChanged.
using ConstantOpener = std::function<Result<ConstantStorage>(const ContentHash& hash, std::uint64_t bytes)>;

/// How the compute stream's thread waits while there is nothing to run. By default for its queue; a device actor lets
/// it wait in its loop's place, so that the message which brings work wakes the thread that does it, and no other.
struct IdleWaiting {
  std::function<bool(const std::function<bool()>& has_work)> idle = {};  ///< see StreamThread::Options
  std::function<void()> wake = {};
};

struct GilBoard;  // gil_ledger.h

/// One entry of the cluster file's python.kernels.
struct PythonKernelEntry {
  std::string target;   ///< "module:function"
  std::string schema;   ///< "ns::name(Tensor x) -> Tensor"; empty: the function's own, by @callboard.kernel
  bool random = false;  ///< draws random numbers; with `schema` only, else the function says it
  std::string warm_up;  ///< a function of the same module that takes a torch.device, called before the
                        ///< device is ready; a decorated function may have one of its own
};

/// A child process, seen by who talks to it. Its end kills and reaps the process. One thread at a time.
class HelperProcess {
 public:
  virtual ~HelperProcess() = default;
  virtual std::int64_t pid() const = 0;
  virtual int pidfd() const = 0;  ///< readable when it has ended
  virtual void kill() noexcept = 0;
  /// "signal 11 (Segmentation fault)"; empty if it has not ended by `deadline`.
  virtual std::string how_it_ended(TimePoint deadline) = 0;
};

/// Where an address lies, for a helper process that maps the same.
struct MemoryPlace {
  SegmentId segment = 0;
  std::uint64_t offset = 0;
};

/// A GIL domain in child processes: what it needs of the device actor. All functions: any thread.
struct DomainProcesses {
  std::uint32_t count = 1;                             ///< that serve calls
  std::uint32_t spare = 0;                             ///< warm ones that wait to replace one of those
  Duration watchdog = std::chrono::seconds(30);        ///< a call may take, whatever its deadline
  Duration start_timeout = std::chrono::seconds(120);  ///< until a child is ready
  std::uint64_t memory_limit = 0;                      ///< of a child's ordinary memory, without shared blocks; 0: none
  /// Starts one with these descriptors (ours, its number); waits until the main thread has done so.
  std::function<Result<std::unique_ptr<HelperProcess>>(const std::vector<std::pair<int, int>>& fds)> spawn = {};
  /// The descriptor of a segment that another process lent: the memory lane's.
  SegmentOpener open_segment = {};
  std::function<std::optional<MemoryPlace>(const void*)> find_constant = {};
  std::function<Result<OpenedSegment>(SegmentId)> open_constant = {};
};

/// A device's GIL domain: where its interpreter is, and what it may run.
struct PythonOptions {
  std::string executable;         ///< absolute path of a Python, as a rule a virtual environment's; empty: the one that
                                  ///< Callboard was built with
  std::vector<std::string> path;  ///< absolute paths, in front of sys.path
  std::vector<PythonKernelEntry> kernels;
  std::optional<DomainProcesses> processes = {};  ///< nothing: inline, in this process
  /// Does the calling thread serve the actor's loop just now? There the GIL is refused. Any thread.
  std::function<bool()> on_loop = {};
  /// Where the interpreter's ledger is kept; nullptr: in memory of its own.
  GilBoard* board = nullptr;
  /// Where Python's faulthandler writes when the process crashes, and at SIGUSR1; -1: stderr, only while it starts.
  int crash_fd = -1;
  /// Hears what the domain does while it starts ("importing the module 'my_kernels'"), before it does it, so that who
  /// waits in vain can say for what. Any thread; must not throw.
  std::function<void(std::string_view step)> step = {};
  /// Takes the domain's events, for the process's log. Set by the runtime.
  std::function<void(std::string_view event, std::string_view text)> log = {};
};

struct RuntimeOptions {
  ActorId self;
  std::string kind = "cpu";        ///< device backend; "cuda" opens its plug-in
  std::uint32_t index = 0;         ///< cuda: which GPU, unless `uuid` names it
  std::string uuid = {};           ///< cuda: "GPU-…"
  int threads = 1;                 ///< intra-op threads of each compute stream
  std::uint64_t memory_limit = 0;  ///< for refusing what cannot fit; 0: the arena's limit
  /// Clients that can open the device's memory (RunOrder::client_reads_device) get results where they lie, small ones
  /// too; all others get a copy in the arena. Without effect where the device's memory is the arena. For other devices
  /// see judge_transport().
  bool results_on_device = false;
  bool capture = true;        ///< static fragments are captured and replayed where the device can
  bool check_outputs = true;  ///< step 5 of Kernel::run
  bool nan_check = false;     ///< NaN/Inf hook
  bool trace = false;         ///< trace hook armed from the start (set_trace changes it)
  bool timing = false;        ///< timing hook: totals per operator, in describe()
  /// Users' shared libraries of operators; loaded first.
  std::vector<OperatorLibrary> operators = {};
  /// Python kernels; opens the Python plug-in. Without it no line of Python is loaded.
  std::optional<PythonOptions> python = {};
  IdleWaiting waiting = {};
  /// The device can run nothing more, or a kernel has damaged what lasts (a constant, a state): called once, on a
  /// stream's thread, before the answer to the run that found it.
  /// The process has to end; runs fail until it does.
  std::function<void(const Error&)> device_failed = {};
  /// Gives back a lease on device memory that another process lent; any thread, must only post.
  std::function<void(const ActorId& owner, LeaseId lease)> release_lent = {};
};

struct LoadedInfo {
  bool pure = true;  ///< no state, no effects, no randomness: may run again by itself
  bool random = false;
  std::uint64_t constant_bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< forecast of activations at once, 0 where sizes are symbolic without bounds
};

struct RunOrder {
  RunId run = 0;
  Attempt attempt = 1;
  ContentHash program;
  std::uint32_t fragment = 0;
  std::vector<WireValue> inputs;  ///< one per FragmentInput, whatever its source
  std::vector<std::int64_t> symbols;
  TimePoint deadline = kNever;        ///< checked between kernels
  ActorId client;                     ///< lease holder for outputs that go to the client
  bool client_reads_device = false;   ///< it can open the memory of this device
  std::vector<ActorId> edge_holders;  ///< lease holder for each edge, in order of outputs and their edges
};

struct RunResult {
  std::optional<Error> error;        ///< then everything below is empty
  std::vector<WireValue> to_client;  ///< for the outputs with to_client, in order
  std::vector<WireValue> on_edges;   ///< for each output's each edge, in order
  std::uint64_t state_version = 0;
  std::int64_t run_ns = 0;  ///< first kernel's start to last Blob
};

struct TraceBatch {
  std::string events;  ///< JSON array of Chrome trace events
  bool more = false;   ///< spans are left that did not fit
};

/// What profiling found of a program's nodes, by their index in the program.
struct ProfileTimes {
  std::vector<std::int64_t> median_ns;  ///< from the first node that was asked for; 0: it did not run
  std::size_t nodes = 0;                ///< how many there are; the last ones that did not run are missing
  std::size_t runs = 0;                 ///< that were timed
};

/// Owns the KernelStream threads of one device. Its methods are called from the device actor's loop thread; callbacks
/// come on a stream's thread and must only post. Inputs are read (and their leases released through the SegmentMap)
/// only until `done` is called.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;  ///< closes the queues, waits for the running kernel, joins

  /// Prepares the fragment on the compute stream (so that it is ordered with runs); `done` gets all gaps at once.
  virtual Status load(Fragment fragment, std::function<void(Result<LoadedInfo>)> done) = 0;
  virtual void unload(const ContentHash& program) = 0;

  /// Queues the fragment whole on the compute stream. kOverloaded when the queue is full, kProgramUnknown. Then `done`
  /// is called exactly once, unless run() itself failed.
  virtual Status run(RunOrder order, std::function<void(RunResult)> done) = 0;
  /// Stops a run between two kernels (or before it starts): its result is the error `reason`.
  virtual void cancel(RunId run, const Error& reason) = 0;

  struct Load {
    std::uint32_t queued = 0;
    std::uint32_t running = 0;
    std::uint64_t finished = 0;
  };
  virtual Load load_now() const = 0;

  /// Any thread. Leases on the device's own memory, whose numbers are distinct from the arena's: an end told by a
  /// reader (false: there is none of that number), the end of a holder's process, the end of an owner's.
  virtual bool release(LeaseId lease) noexcept = 0;
  virtual void holder_gone(const ActorId& holder) noexcept = 0;
  virtual void owner_gone(const ActorId& owner) noexcept = 0;
  // How results get to other devices. A reader gets copies in host memory until a test has shown that it can read this
  // device's memory where it lies. Where the device's memory is host memory all three refuse with kUnsupported.
  /// Prepares a test on the communicate stream; `done` gets the block for the reader.
  virtual Status offer_transport(const ActorId& reader, std::uint64_t test,
                                 std::function<void(Result<CudaIpcBlock>)> done) = 0;
  /// The other half, for an offer of another device.
  virtual Status answer_transport(TestTransport order, std::function<void(TransportTested)> done) = 0;
  /// From now on results go to `reader` as this says. Ends the offer of that number. Any thread.
  virtual Result<TransportChosen> judge_transport(const ActorId& reader, const TransportTested& answer) = 0;

  /// Gives free memory of the device's own back. Called when it has been idle for a while.
  virtual void trim() = 0;

  virtual void set_trace(bool on) = 0;
  /// The oldest spans that were not taken yet, about `bytes_max` of them as text. At most 100,000 are kept between
  /// calls; the oldest are dropped and counted.
  virtual TraceBatch take_trace(std::size_t bytes_max) = 0;
  /// Times each node of the runs of `program` from now on, one program at a time; unload() ends it, too. See
  /// ProfileHook.
  virtual Status begin_profile(const ContentHash& program) = 0;
  virtual void end_profile(const ContentHash& program) = 0;
  virtual Result<ProfileTimes> take_profile(const ContentHash& program, std::size_t first, std::size_t count) const = 0;
  /// JSON object: backend, threads, torch version, per-operator timing where the timing hook is on, state versions.
  virtual std::string describe() const = 0;
};

/// Links LibTorch. Call in this order: install_arena_allocator() first thing in main, then this, from the main thread.
/// With `python` it returns when the modules are imported and warmed up.
Result<std::unique_ptr<DeviceRuntime>> create_device_runtime(RuntimeOptions options, Arena* arena, SegmentMap* segments,
                                                             ConstantOpener constants);

/// The devices of a kind that this process could own, as a JSON array of objects: for cuda index, uuid, name,
/// compute_capability and memory_bytes. Opens the kind's plug-in. kEnvironment, kUnsupported: why there are none.
Result<std::string> probe_devices(const std::string& kind);

/// Makes `arena` the place where ATen's CPU allocator puts blocks above limits::kInlineBytesMax (smaller ones stay in
/// the ordinary heap, 64-byte aligned). Registers the fork handlers. Once, first thing in main; never undone.
void install_arena_allocator(Arena* arena);

}  // namespace callboard::kernels
