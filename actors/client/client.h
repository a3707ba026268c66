// The C++ client: programs, requests, futures. Torch-free. The Python package wraps this one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/tensor_ref.h"
#include "actors/core/run_dir.h"
#include "messages/base/clock.h"
#include "messages/base/fd.h"
#include "messages/graph.h"
#include "messages/protocol.h"

namespace callboard::actors {

/// A file that holds constants, open for reading. The same file whatever comes to lie at its path.
struct WeightsFile {
  UniqueFd fd;
  std::string path;  ///< for messages
};

/// Where the bytes of a constant are while the program is loaded; `bytes` long. Kept only during load().
struct ConstantBytes {
  ContentHash hash;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  /// The same bytes in a file, if they are one's: then load() checks them against the hash, and devices map them there
  /// rather than a copy where they can.
  std::shared_ptr<const WeightsFile> file = nullptr;
  std::uint64_t offset = 0;
};

struct RequestResult {
  /// One per ProgramOutput, in order (known ones filled in; a text is None here, read it from graph().outputs).
  std::vector<ClientValue> outputs;
  std::uint64_t state_version = 0;
};

/// The outcome of a request, once. Copies share it. Thread-safe. Dropping all copies does not cancel.
class Future {
 public:
  virtual ~Future() = default;
  virtual bool is_ready() const = 0;
  /// True if ready within `wait`.
  virtual bool wait_for(Duration wait) const = 0;
  /// Waits (the request's own deadline bounds it), then gives the result; may be called again and gives the same.
  virtual Result<std::shared_ptr<const RequestResult>> get() = 0;
  /// Asks the cluster to stop it. The future then ends with kCancelled, or with its result if that came first.
  virtual void cancel() = 0;
  /// `done` runs once, in the client's loop's turn (or at once if ready); it must not block, nor destroy the client.
  /// submit() in it does not wait for room.
  virtual void on_ready(std::function<void()> done) = 0;
};

/// What the cluster knows of a fragment beyond its plan.
struct StageReport {
  struct Edge {
    std::uint32_t to = 0;     ///< the fragment that reads what this one sends, in each run
    std::uint64_t bytes = 0;  ///< forecast: at least so many
    bool exact = true;        ///< always just so many
  };
  std::vector<Edge> edges;
  std::uint64_t runs = 0;        ///< that the fragment finished, for all clients, since it was loaded
  std::int64_t mean_run_ns = 0;  ///< of these, measured by its device, from the first kernel to the last result
};

/// Of one call of Program::submit().
struct SubmitOptions {
  /// From now on, for the wait in submit() and the request together. Without one the wait ends after
  /// limits::kRequestDeadline, and the request at the cluster file's limits.deadline, from when it is sent.
  std::optional<Duration> deadline = {};
  /// Where there is no room, wait for it; false: kOverloaded or kOutOfMemory at once (for event loops).
  bool wait = true;
  /// Asked about every 50 ms while submit() waits, on the caller's thread; true ends it with kCancelled. For signals.
  std::function<bool()> interrupted = {};
};

class Program {
 public:
  virtual ~Program() = default;  ///< unloads it from the cluster once its last request has ended
  virtual const ContentHash& id() const = 0;
  virtual const ProgramGraph& graph() const = 0;
  /// A fragment's cost is in nanoseconds if graph().annotations[kCostsAnnotation] says that it was measured.
  virtual const std::vector<PlannedFragment>& plan() const = 0;
  /// Asks the cluster; one for each fragment of plan(), in order. By default two minutes.
  virtual Result<std::vector<StageReport>> stages(std::optional<Duration> deadline = {}) const = 0;
  /// Checks inputs against the program (kBadInput names the input) before anything is sent. Tensors up to
  /// limits::kInlineBytesMax are copied into the message, larger ones once into the client's arena unless they lie
  /// there.
  ///
  /// Back-pressure. While limits.requests_per_client requests are in flight, or requests in flight hold the memory that
  /// large inputs need, the call waits, in line with the client's other threads, first in, first out. It parks, or
  /// waits in the loop's place, and callbacks of other requests may run on this thread meanwhile: hold no lock that
  /// they take. At the deadline it is kDeadlineExceeded (without one kOverloaded or kOutOfMemory) and says what was
  /// full; the inputs stay the caller's. What waiting cannot help is refused at once: inputs beyond the client's whole
  /// memory_limit, memory that no request in flight will give back, and a call from a callback (on_ready,
  /// on_actor_event), since it would keep the answers waiting that it waits for. close() ends it with kCancelled, the
  /// loss of the coordinator with a future that says so.
  virtual Result<std::shared_ptr<Future>> submit(std::span<const ClientValue> inputs,
                                                 const SubmitOptions& options = {}) = 0;
};

/// One connection to a cluster. Thread-safe: one loop thread inside, user threads only wait on futures.
class Client {
 public:
  virtual ~Client() = default;  ///< cancels what is pending, closes, joins
  struct Options {
    std::string cluster;  ///< name, run directory, or empty for the only one that runs
    Duration connect_timeout = std::chrono::seconds(10);
    std::uint64_t memory_limit = 0;  ///< of the arena for inputs; 0: what the machine has left
    /// Results may come as memory of a GPU (TensorRef::device), where the cluster file leaves them there and this
    /// process sees that GPU. Then a plug-in is opened, in `plugin_folder` (empty: beside this program); without it, or
    /// without a GPU, results come on the host, and `callboard status -o json` says why.
    bool gpu_results = false;
    std::string plugin_folder = {};
    /// Asked about every 50 ms, on the caller's thread, by what blocks (connect, load, operation); true ends the call
    /// with kCancelled. For signals.
    std::function<bool()> interrupted = {};
  };
  static Result<std::unique_ptr<Client>> connect(Options options);

  virtual const ClusterRecord& cluster() const = 0;
  /// Brings constants that the host does not have yet to its node actor, plans and loads on the devices. All gaps at
  /// once in the error. Constants that lie in a file on 64 bytes, given as `file` or as memory that maps one, stay
  /// there: the node actor gets the file, and devices map it. kCorrupted for a file's constant that is not what its
  /// hash says.
  virtual Result<std::shared_ptr<Program>> load(ProgramGraph graph, std::span<const ConstantBytes> constants,
                                                Placement placement, std::optional<Duration> deadline = {}) = 0;
  /// An entry of the coordinator's table of operations; JSON objects both ways.
  virtual Result<std::string> operation(const std::string& name, const std::string& arguments_json,
                                        std::optional<Duration> deadline = {}) = 0;
  /// Memory that a device can read without a copy: `bytes` in the client's arena, freed with the last `keep`.
  virtual Result<TensorRef> allocate(TensorMeta meta) = 0;
  /// allocate() for whoever may outlive the client; after its end every call answers kCancelled. Any thread.
  virtual std::function<Result<TensorRef>(TensorMeta meta)> allocator() = 0;
  /// Called on the loop thread for actor events ("down", …); must not block.
  virtual void on_actor_event(std::function<void(const ActorEvent&)> callback) = 0;
};

/// Programs as files: one safetensors file whose metadata hold the program and whose tensors are its constants, each on
/// 64 bytes (the format knows no holes: entries named "__callboard_padding_0__", … fill them).
Status save_program(const std::string& path, const ProgramGraph& graph, const Placement& placement,
                    std::span<const ConstantBytes> constants);
struct SavedProgram {
  ProgramGraph graph;
  Placement placement;
  std::vector<ConstantBytes> constants;     ///< point into `keep`; their bytes have not been read
  std::shared_ptr<void> keep;               ///< the mapped file
  std::shared_ptr<const WeightsFile> file;  ///< the same, open; for load_program_file() again
};
/// Reads the program, and of the constants only where they are: load() reads those that the host lacks, and compares
/// them with their hashes.
Result<SavedProgram> load_program_file(const std::string& path);
/// The file that was loaded, whatever lies at its path now.
Result<SavedProgram> load_program_file(std::shared_ptr<const WeightsFile> file);
/// Reads the constants and compares them with their hashes; kCorrupted names the first that differs.
Status verify_constants(const SavedProgram& saved);

}  // namespace callboard::actors
