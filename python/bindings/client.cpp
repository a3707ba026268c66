// Client, NativeProgram, NativeFuture. The client's loop thread only touches ClientShared, never Python.
#include <pybind11/stl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <deque>
#include <mutex>

#include "actors/client/batching.h"
#include "actors/client/lazy_future.h"
#include "actors/client/profile.h"
#include "actors/client/replicas.h"
#include "messages/base/fd.h"
#include "messages/codec.h"
#include "messages/stage_time.h"
#include "python/bindings/bindings.h"

namespace callboard::python {
namespace {

constexpr std::size_t kEventsMax = 1'024;
constexpr Duration kSlice = std::chrono::milliseconds(50);

/// Seconds as Python gives them; what a duration cannot hold counts as for ever.
Duration to_duration(double seconds, const char* what) {
  if (std::isnan(seconds)) throw py::value_error(std::string(what) + " is not a number");
  constexpr double kSecondsMax = 1e9;
  if (seconds > kSecondsMax) seconds = kSecondsMax;
  if (seconds < 0) seconds = 0;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::optional<Duration> to_deadline(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  return to_duration(*seconds, "the deadline");
}

/// A dimension for all inputs, or {name of an input: dimension}; the package has checked it.
actors::BatchDim to_batch_dim(py::handle value) {
  actors::BatchDim dim;
  if (py::isinstance<py::dict>(value)) {
    dim.inputs = py::cast<std::map<std::string, std::size_t>>(value);
  } else {
    dim.dim = py::cast<std::size_t>(value);
  }
  return dim;
}

/// What the loop thread leaves for Python to fetch.
class Completions {
 public:
  Completions() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  /// -1 after close().
  int fd() {
    std::lock_guard lock(mutex_);
    return fd_.get();
  }
  /// Gives the descriptor back; from then on nobody is woken by it. Futures may still hold this object.
  void close() {
    std::lock_guard lock(mutex_);
    fd_.reset();
  }
  std::uint64_t next_id() { return ids_.fetch_add(1) + 1; }

  void completed(std::uint64_t future) {
    std::lock_guard lock(mutex_);
    completed_.push_back(future);
    signal();
  }
  void event(const ActorEvent& event) {
    std::lock_guard lock(mutex_);
    if (events_.size() == kEventsMax) events_.pop_front();
    events_.push_back(event);
    signal();
  }
  std::vector<std::uint64_t> take_completed() {
    std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> taken;
    taken.swap(completed_);
    reset_if_empty();
    return taken;
  }
  std::deque<ActorEvent> take_events() {
    std::lock_guard lock(mutex_);
    std::deque<ActorEvent> taken;
    taken.swap(events_);
    reset_if_empty();
    return taken;
  }

 private:
  // Under the mutex, both: the descriptor may be given back, and its number to somebody else, at any time.
  void signal() {
    const std::uint64_t one = 1;
    if (!fd_) return;
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  }
  void reset_if_empty() {
    if (!fd_ || !completed_.empty() || !events_.empty()) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(fd_.get(), &count, sizeof count);
  }

  std::atomic<std::uint64_t> ids_{0};
  std::mutex mutex_;
  UniqueFd fd_;                           // guarded by mutex_
  std::vector<std::uint64_t> completed_;  // guarded by mutex_; at most one for each future that notify() was called on
  std::deque<ActorEvent> events_;         // guarded by mutex_
};

class PyFuture {
 public:
  PyFuture(std::shared_ptr<actors::Future> future, std::shared_ptr<actors::Program> program,
           std::shared_ptr<Completions> completions)
      : future_(std::move(future)),
        program_(std::move(program)),
        completions_(std::move(completions)),
        id_(completions_->next_id()),
        lazy_(dynamic_cast<actors::LazyFuture*>(future_.get()) != nullptr) {}
  ~PyFuture() {
    // The end of a batched program joins its thread, which may be about to submit.
    if (program_.use_count() == 1) without_gil([&] { program_.reset(); });
  }

  std::uint64_t id() const { return id_; }
  bool is_ready() const {
    drop_deferred();
    return future_->is_ready();
  }

  bool wait(std::optional<double> seconds) const {
    drop_deferred();
    const TimePoint until = seconds ? after(Clock::now(), to_duration(*seconds, "the wait")) : kNever;
    while (!future_->is_ready()) {
      const TimePoint now = Clock::now();
      if (now >= until) return false;
      const Duration slice = std::min<Duration>(kSlice, until - now);
      without_gil([&] { return future_->wait_for(slice); });
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    return true;
  }

  py::list result() const {
    wait(std::nullopt);
    // A lazy one puts its result together now, which may be a large copy.
    const auto result = value_or_raise(lazy_ ? without_gil([&] { return future_->get(); }) : future_->get());
    const auto& outputs = program_->graph().outputs;
    py::list list;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto* text = std::get_if<std::string>(&outputs[i].source);
      list.append(text != nullptr ? py::object(py::str(*text)) : from_client_value(result->outputs[i]));
    }
    return list;
  }

  std::uint64_t state_version() const {
    if (!future_->is_ready()) return 0;
    const auto result = future_->get();
    return result ? (*result)->state_version : 0;
  }

  void cancel() const {
    without_gil([&] { future_->cancel(); });
  }

  void notify() {
    if (notified_.exchange(true)) return;
    without_gil([&] { future_->on_ready([completions = completions_, id = id_] { completions->completed(id); }); });
  }

 private:
  const std::shared_ptr<actors::Future> future_;
  std::shared_ptr<actors::Program> program_;
  const std::shared_ptr<Completions> completions_;
  const std::uint64_t id_;
  const bool lazy_;
  std::atomic<bool> notified_{false};
};

std::vector<actors::ClientValue> to_client_values(const py::sequence& inputs, const ProgramGraph& graph) {
  std::vector<actors::ClientValue> values;
  values.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = i < graph.inputs.size() ? graph.inputs[i].name : "number " + std::to_string(i);
    values.push_back(to_client_value(py::object(inputs[i]), name));
  }
  return values;
}

class PyProgram {
 public:
  /// What a program was loaded from: the file itself, since something else may come to lie at its path.
  struct Source {
    std::shared_ptr<const actors::WeightsFile> file;
    Placement placement;
  };

  PyProgram(std::shared_ptr<actors::Program> program, std::shared_ptr<Completions> completions,
            actors::AllocateTensor allocate, std::optional<Source> source = std::nullopt)
      : program_(std::move(program)),
        completions_(std::move(completions)),
        allocate_(std::move(allocate)),
        source_(std::move(source)) {}
  ~PyProgram() {
    without_gil([&] { program_.reset(); });
  }

  const actors::Program& program() const { return *program_; }

  std::unique_ptr<PyFuture> submit(py::sequence inputs, std::optional<double> deadline, bool wait) const {
    std::vector<actors::ClientValue> values = to_client_values(inputs, program_->graph());
    const actors::SubmitOptions options{
        .deadline = to_deadline(deadline), .wait = wait, .interrupted = interrupted_by_signal};
    auto future = without_gil([&] {
      auto submitted = program_->submit(values, options);
      values.clear();
      return submitted;
    });
    rethrow_signal();
    drop_deferred();
    return std::make_unique<PyFuture>(value_or_raise(std::move(future)), program_, completions_);
  }

  py::list stages(std::optional<double> timeout) const {
    const std::optional<Duration> until = to_deadline(timeout);
    auto reports = without_gil([&] { return program_->stages(until); });
    rethrow_signal();
    py::list list;
    for (const auto& report : value_or_raise(std::move(reports))) {
      py::list edges;
      for (const auto& edge : report.edges) {
        py::dict one;
        one["to"] = edge.to;
        one["bytes"] = edge.bytes;
        one["exact"] = edge.exact;
        edges.append(one);
      }
      py::dict dict;
      dict["edges"] = edges;
      dict["runs"] = report.runs;
      dict["mean_run_ns"] = report.runs > 0 ? py::object(py::int_(report.mean_run_ns)) : py::object(py::none());
      list.append(dict);
    }
    return list;
  }

  std::unique_ptr<PyProgram> batched(std::int64_t max_batch, double max_delay, py::object dim,
                                     std::size_t max_queued) const {
    actors::BatchingOptions options;
    options.max_batch = max_batch;
    options.max_delay = to_duration(max_delay, "max_delay");
    options.dim = to_batch_dim(dim);
    options.max_queued = max_queued;
    auto made = without_gil([&] { return actors::make_batched(allocate_, program_, std::move(options)); });
    const std::shared_ptr<actors::BatchedProgram> batched = value_or_raise(std::move(made));
    auto program = std::make_unique<PyProgram>(batched, completions_, allocate_, source_);
    program->batched_ = batched;
    return program;
  }
  void close() const {
    if (const auto batched = batched_.lock()) without_gil([&] { batched->close(); });
  }

  void save(const std::string& path) const {
    if (!source_) raise(Error(ErrorCode::kUnsupported, "this program was not made from a module or a file"));
    check_or_raise(without_gil([&] { return save_again(path); }));
  }

 private:
  Status save_again(const std::string& path) const {
    // The constants are read, and compared with their hashes, again: they are not kept in memory.
    auto loaded = actors::load_program_file(source_->file);
    Status status = loaded ? actors::verify_constants(*loaded) : Status(fail(std::move(loaded).error()));
    if (status) {
      status = actors::save_program(path, program_->graph(), source_->placement, loaded->constants);
      if (status || status.error().code != ErrorCode::kConstantMissing) return status;
    }
    Error error(
        ErrorCode::kCorrupted,
        "the program cannot be saved: its file '" + source_->file->path + "' was written to since it was loaded",
        "load it again, or compile the module again; save() itself replaces files whole");
    error.causes.push_back(std::move(status).error());
    return fail(std::move(error));
  }

  std::shared_ptr<actors::Program> program_;
  std::weak_ptr<actors::BatchedProgram> batched_;  // program_, if it is one
  std::shared_ptr<Completions> completions_;
  actors::AllocateTensor allocate_;
  std::optional<Source> source_;
};

class PyClient {
  /// `work` touches no Python, gets the client and gives a Result.
  template <class Work>
  auto call(Work work) {
    auto result = without_gil([&]() -> decltype(work(*client_)) {
      std::shared_ptr<actors::Client> client;
      {
        std::lock_guard lock(mutex_);
        client = client_;
      }
      if (!client) return fail(ErrorCode::kCancelled, "the client is closed", "connect again");
      return work(*client);
    });
    rethrow_signal();
    drop_deferred();
    return value_or_raise(std::move(result));
  }

 public:
  static std::unique_ptr<PyClient> connect(const std::string& cluster, double timeout, std::uint64_t memory_limit,
                                           bool gpu_results, const std::string& plugin_folder) {
    actors::Client::Options options;
    options.cluster = cluster;
    options.connect_timeout = to_duration(timeout, "the timeout");
    options.memory_limit = memory_limit;
    options.gpu_results = gpu_results;
    options.plugin_folder = plugin_folder;
    options.interrupted = interrupted_by_signal;
    auto client = without_gil([&] { return actors::Client::connect(std::move(options)); });
    rethrow_signal();
    return std::unique_ptr<PyClient>(new PyClient(value_or_raise(std::move(client))));
  }
  ~PyClient() { close(); }

  py::dict cluster() const { return cluster_dict(record_); }
  bool closed() const {
    std::lock_guard lock(mutex_);
    return client_ == nullptr;
  }
  int completion_fd() const { return completions_->fd(); }

  std::unique_ptr<PyProgram> load(py::object program, py::object placement, std::optional<double> timeout) {
    Placement where = to_placement(placement);
    const std::optional<Duration> until = to_deadline(timeout);
    if (py::isinstance<py::bytes>(program)) {
      const std::string bytes = py::cast<std::string>(program);
      return loaded(call([&](actors::Client& client) -> Result<std::shared_ptr<actors::Program>> {
        CALLBOARD_ASSIGN(ProgramGraph graph, decode_program(bytes));
        return client.load(std::move(graph), {}, std::move(where), until);
      }));
    }
    // The builder's bytes stay where they are as long as its Python object, which our caller holds.
    auto& builder = py::cast<PyFragmentBuilder&>(program);
    std::vector<actors::ConstantBytes> constants;
    ProgramGraph graph = value_or_raise(builder.use([&](actors::FragmentBuilder& cpp) {
      constants = cpp.constants();
      return cpp.finish();
    }));
    return loaded(call(
        [&](actors::Client& client) { return client.load(std::move(graph), constants, std::move(where), until); }));
  }

  std::unique_ptr<PyProgram> load_file(const std::string& path, py::object placement, std::optional<double> timeout) {
    std::optional<Placement> where;
    if (!placement.is_none()) where = to_placement(placement);
    const std::optional<Duration> until = to_deadline(timeout);
    PyProgram::Source source;
    auto program = call([&](actors::Client& client) -> Result<std::shared_ptr<actors::Program>> {
      CALLBOARD_ASSIGN(actors::SavedProgram saved, actors::load_program_file(path));
      source.file = std::move(saved.file);
      source.placement = where ? std::move(*where) : std::move(saved.placement);
      return client.load(std::move(saved.graph), saved.constants, source.placement, until);
    });
    return std::make_unique<PyProgram>(std::move(program), completions_, allocate_, std::move(source));
  }

  std::unique_ptr<PyProgram> load_replicas(PyFragmentBuilder& builder, py::sequence placements, bool scatter,
                                           py::object dim, std::optional<double> timeout) {
    std::vector<Placement> where;
    for (const auto& placement : placements)
      where.push_back(to_placement(py::reinterpret_borrow<py::object>(placement)));
    actors::ReplicaOptions options;
    options.scatter = scatter;
    options.dim = to_batch_dim(dim);
    const std::optional<Duration> until = to_deadline(timeout);
    std::vector<actors::ConstantBytes> constants;
    const ProgramGraph graph = value_or_raise(builder.use([&](actors::FragmentBuilder& cpp) {
      constants = cpp.constants();
      return cpp.finish();
    }));
    return loaded(call([&](actors::Client& client) {
      return actors::load_replicas(client, graph, constants, where, options, until);
    }));
  }

  std::string profile(PyFragmentBuilder& builder, py::sequence inputs, py::object placement, int runs,
                      std::optional<double> timeout) {
    const Placement where = to_placement(placement);
    actors::ProfileOptions options;
    options.runs = runs;
    options.deadline = to_deadline(timeout);
    options.interrupted = interrupted_by_signal;
    std::vector<actors::ConstantBytes> constants;
    const ProgramGraph graph = value_or_raise(builder.use([&](actors::FragmentBuilder& cpp) {
      constants = cpp.constants();
      return cpp.finish();
    }));
    const std::vector<actors::ClientValue> values = to_client_values(inputs, graph);
    const actors::NodeCosts costs = call([&](actors::Client& client) {
      return actors::profile_nodes(client, graph, constants, where, values, options);
    });
    builder.use([&](actors::FragmentBuilder& cpp) { cpp.set_costs(costs); });
    return costs.note;
  }

  std::string operation(const std::string& name, const std::string& arguments, std::optional<double> timeout) {
    const std::optional<Duration> until = to_deadline(timeout);
    return call([&](actors::Client& client) { return client.operation(name, arguments, until); });
  }

  py::object allocate(const std::string& dtype, py::object sizes) {
    TensorMeta meta = TensorMeta::contiguous(to_dtype(dtype), to_int_list(sizes, "sizes"));
    return from_client_value(call([&](actors::Client& client) { return client.allocate(std::move(meta)); }));
  }

  std::vector<std::uint64_t> drain_completed() {
    drop_deferred();
    return completions_->take_completed();
  }
  py::list drain_events() {
    py::list list;
    for (const auto& event : completions_->take_events()) {
      py::dict dict;
      dict["actor"] = event.who.to_string();
      dict["name"] = event.who.name;
      dict["event"] = event.event;
      dict["error"] = event.error ? py::object(error_dict(*event.error)) : py::object(py::none());
      list.append(dict);
    }
    return list;
  }

  void close() {
    without_gil([&] {
      std::shared_ptr<actors::Client> client;
      {
        std::lock_guard lock(mutex_);
        client = std::move(client_);
        client_ = nullptr;
      }
      client.reset();
    });
    drop_deferred();
  }
  void close_completion_fd() { completions_->close(); }

 private:
  explicit PyClient(std::unique_ptr<actors::Client> client)
      : client_(std::move(client)),
        record_(client_->cluster()),
        completions_(std::make_shared<Completions>()),
        allocate_(client_->allocator()) {
    client_->on_actor_event([completions = completions_](const ActorEvent& event) { completions->event(event); });
  }

  std::unique_ptr<PyProgram> loaded(std::shared_ptr<actors::Program> program) {
    return std::make_unique<PyProgram>(std::move(program), completions_, allocate_);
  }

  mutable std::mutex mutex_;
  std::shared_ptr<actors::Client> client_;  // guarded by mutex_
  const actors::ClusterRecord record_;
  const std::shared_ptr<Completions> completions_;
  const actors::AllocateTensor allocate_;
};

void define_program(py::module_& module) {
  py::class_<PyProgram>(module, "NativeProgram")
      .def_property_readonly("id", [](const PyProgram& self) { return self.program().id().hex(); })
      .def_property_readonly("name", [](const PyProgram& self) { return self.program().graph().name; })
      .def_property_readonly("plan", [](const PyProgram& self) { return plan_list(self.program()); })
      .def_property_readonly("costs",
                             [](const PyProgram& self) {
                               const auto& annotations = self.program().graph().annotations;
                               const auto found = annotations.find(std::string(kCostsAnnotation));
                               return found == annotations.end() ? std::string() : found->second;
                             })
      .def_property_readonly("node_costs",
                             [](const PyProgram& self) {
                               std::vector<double> costs;
                               for (const auto& node : self.program().graph().nodes) costs.push_back(node.cost);
                               return costs;
                             })
      .def("stages", &PyProgram::stages, py::arg("timeout") = py::none())
      .def_property_readonly("inputs", [](const PyProgram& self) { return input_list(self.program().graph()); })
      .def_property_readonly("output_names",
                             [](const PyProgram& self) {
                               std::vector<std::string> names;
                               for (const auto& output : self.program().graph().outputs) names.push_back(output.name);
                               return names;
                             })
      .def_property_readonly("symbols",
                             [](const PyProgram& self) {
                               std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> symbols;
                               for (const auto& symbol : self.program().graph().symbols) {
                                 symbols.emplace_back(symbol.name, symbol.min, symbol.max);
                               }
                               return symbols;
                             })
      .def_property_readonly("node_count", [](const PyProgram& self) { return self.program().graph().nodes.size(); })
      .def_property_readonly("annotations", [](const PyProgram& self) { return self.program().graph().annotations; })
      .def("submit", &PyProgram::submit, py::arg("inputs"), py::arg("deadline") = py::none(), py::arg("wait") = true)
      .def("batched", &PyProgram::batched, py::arg("max_batch"), py::arg("max_delay"), py::arg("dim"),
           py::arg("max_queued"))
      .def("close", &PyProgram::close)
      .def("save", &PyProgram::save, py::arg("path"));
}

}  // namespace

void define_client(py::module_& module) {
  py::class_<PyFuture>(module, "NativeFuture")
      .def_property_readonly("id", &PyFuture::id)
      .def("is_ready", &PyFuture::is_ready)
      .def("wait", &PyFuture::wait, py::arg("seconds") = py::none())
      .def("result", &PyFuture::result)
      .def_property_readonly("state_version", &PyFuture::state_version)
      .def("cancel", &PyFuture::cancel)
      .def("notify", &PyFuture::notify);
  define_program(module);
  py::class_<PyClient>(module, "Client")
      .def_static("connect", &PyClient::connect, py::arg("cluster") = "", py::arg("timeout") = 10.0,
                  py::arg("memory_limit") = 0, py::arg("gpu_results") = false, py::arg("plugin_folder") = "")
      .def_property_readonly("cluster", &PyClient::cluster)
      .def_property_readonly("closed", &PyClient::closed)
      .def("load", &PyClient::load, py::arg("program"), py::arg("placement") = py::none(),
           py::arg("timeout") = py::none())
      .def("load_file", &PyClient::load_file, py::arg("path"), py::arg("placement") = py::none(),
           py::arg("timeout") = py::none())
      .def("load_replicas", &PyClient::load_replicas, py::arg("program"), py::arg("placements"),
           py::arg("scatter") = true, py::arg("dim") = 0, py::arg("timeout") = py::none())
      .def("profile", &PyClient::profile, py::arg("program"), py::arg("inputs"), py::arg("placement") = py::none(),
           py::arg("runs") = 5, py::arg("timeout") = py::none())
      .def("operation", &PyClient::operation, py::arg("name"), py::arg("arguments_json") = "{}",
           py::arg("timeout") = py::none())
      .def("allocate", &PyClient::allocate, py::arg("dtype"), py::arg("sizes"))
      .def("completion_fd", &PyClient::completion_fd)
      .def("close_completion_fd", &PyClient::close_completion_fd)
      .def("drain_completed", &PyClient::drain_completed)
      .def("drain_events", &PyClient::drain_events)
      .def("close", &PyClient::close);
}

}  // namespace callboard::python
