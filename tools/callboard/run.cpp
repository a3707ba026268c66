#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/client/client.h"
#include "actors/core/output_file.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/placement_text.h"
#include "tools/callboard/signals.h"
#include "tools/callboard/tensor_files.h"

namespace callboard::cli {
namespace {

using actors::ClientValue;
using actors::TensorRef;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr std::size_t kElementsShown = 8;
constexpr milliseconds kSignalsEvery{100};
// As the cluster file has them for limits.deadline.
constexpr milliseconds kDeadlineMin{1};
constexpr milliseconds kDeadlineMax{24 * 3'600'000};

struct RunFlags {
  std::string program;
  std::string cluster;
  std::vector<std::string> inputs;
  std::string output;
  std::string deadline = "30s";
  std::vector<std::string> placement;
};

template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "NAME=FILE" of a tensor: a .npy file, or a safetensors file that holds NAME or one tensor only.
Result<TensorRef> read_tensor(const std::string& name, const std::string& path) {
  if (is_npy(path)) return read_npy(path);
  CALLBOARD_ASSIGN(NamedTensors tensors, read_safetensors(path));
  for (auto& [key, tensor] : tensors) {
    if (key == name || tensors.size() == 1) return std::move(tensor);
  }
  return fail(ErrorCode::kBadInput,
              "'" + path + "' holds " + std::to_string(tensors.size()) + " tensors, none of them named '" + name + "'");
}

/// `files` gets the path where `text` is one.
Result<ClientValue> read_value(const std::string& name, ValueKind kind, const std::string& text,
                               std::vector<std::string>& files) {
  if (kind == ValueKind::kTensor) {
    files.push_back(text);
    CALLBOARD_ASSIGN(TensorRef tensor, read_tensor(name, text));
    return ClientValue(std::move(tensor));
  }
  if (kind == ValueKind::kInt) {
    if (const auto value = parse_number<std::int64_t>(text)) return ClientValue(*value);
  } else if (kind == ValueKind::kFloat) {
    if (const auto value = parse_number<double>(text)) return ClientValue(*value);
  } else if (kind == ValueKind::kBool) {
    if (text == "true" || text == "false") return ClientValue(text == "true");
  } else {
    return ClientValue(std::monostate());
  }
  return fail(ErrorCode::kBadInput,
              "input '" + name + "' is a " + std::string(value_kind_name(kind)) + ", which '" + text + "' is not",
              kind == ValueKind::kBool ? "write " + name + "=true or " + name + "=false" : "");
}

std::string names_of(const std::map<std::string, ValueKind>& kinds) {
  std::string names;
  for (const auto& [name, kind] : kinds) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// What the --input options say, by name; a safetensors file without a name gives all its tensors.
Result<std::map<std::string, ClientValue>> read_inputs(const ProgramGraph& graph,
                                                       const std::vector<std::string>& options,
                                                       std::vector<std::string>& files) {
  std::map<std::string, ValueKind> kinds;
  for (const ProgramInput& input : graph.inputs) kinds[input.name] = graph.values[input.value].kind;
  std::map<std::string, ClientValue> out;
  const auto add = [&](const std::string& name, ClientValue value) -> Status {
    if (out.emplace(name, std::move(value)).second) return {};
    return fail(ErrorCode::kUsage, "input '" + name + "' is given twice");
  };
  for (const std::string& option : options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos) {
      if (!option.ends_with(".safetensors")) {
        return fail(ErrorCode::kUsage, "--input " + option + " does not say which input it is",
                    "write --input " + (kinds.empty() ? "NAME" : kinds.begin()->first) + "=" + option +
                        (kinds.size() > 1 ? "; the inputs are " + names_of(kinds) : ""));
      }
      files.push_back(option);
      CALLBOARD_ASSIGN(NamedTensors tensors, read_safetensors(option));
      for (auto& [name, tensor] : tensors) {
        if (kinds.contains(name)) CALLBOARD_TRY(add(name, std::move(tensor)));
      }
      continue;
    }
    const std::string name = option.substr(0, equals);
    if (!kinds.contains(name)) {
      return fail(ErrorCode::kUsage, "the program has no input '" + name + "'",
                  kinds.empty() ? "it has none" : "its inputs are " + names_of(kinds));
    }
    CALLBOARD_ASSIGN(ClientValue value, read_value(name, kinds[name], option.substr(equals + 1), files));
    CALLBOARD_TRY(add(name, std::move(value)));
  }
  return out;
}

/// In the program's order. All that are missing at once. `files` gets what was read.
Result<std::vector<ClientValue>> ordered_inputs(const ProgramGraph& graph, const std::vector<std::string>& options,
                                                std::vector<std::string>& files) {
  CALLBOARD_ASSIGN(auto given, read_inputs(graph, options, files));
  std::vector<ClientValue> out;
  std::string missing;
  for (const ProgramInput& input : graph.inputs) {
    const auto found = given.find(input.name);
    const ValueSpec& spec = graph.values[input.value];
    if (found == given.end() && spec.kind != ValueKind::kNone)
      missing += (missing.empty() ? "" : ", ") + input.name + " (" + std::string(value_kind_name(spec.kind)) + ")";
    out.push_back(found == given.end() ? ClientValue() : std::move(found->second));
  }
  if (missing.empty()) return out;
  return fail(ErrorCode::kUsage, "inputs are missing: " + missing, "give each one: --input NAME=FILE.npy");
}

NamedTensors named_outputs(const ProgramGraph& graph, const std::vector<ClientValue>& outputs) {
  NamedTensors out;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string name = i < graph.outputs.size() ? graph.outputs[i].name : std::string();
    if (name.empty()) name = "output" + std::to_string(i);
    if (const auto* tensor = std::get_if<TensorRef>(&outputs[i])) out.emplace_back(name, *tensor);
    if (const auto* integer = std::get_if<std::int64_t>(&outputs[i])) out.emplace_back(name, scalar_tensor(*integer));
    if (const auto* real = std::get_if<double>(&outputs[i])) out.emplace_back(name, scalar_tensor(*real));
    if (const auto* flag = std::get_if<bool>(&outputs[i])) out.emplace_back(name, scalar_tensor(*flag));
  }
  return out;
}

/// Texts and None are in no file.
std::size_t tensors_of(const ProgramGraph& graph) {
  return static_cast<std::size_t>(
      std::count_if(graph.outputs.begin(), graph.outputs.end(), [](const ProgramOutput& output) {
        return !std::holds_alternative<std::string>(output.source) && !std::holds_alternative<ArgNone>(output.source);
      }));
}

/// Before anything runs: the result must not be lost, nor anything else, because of where it should go.
Status check_output(const std::string& path, const ProgramGraph& graph, const std::vector<std::string>& files) {
  if (path.empty()) return {};
  if (path == "-") {
    return fail(ErrorCode::kUsage, "--output - : values are not written to standard output",
                "name a file; -o json prints the outputs' first elements, for scripts");
  }
  if (path == "json" || path == "text") {
    return fail(ErrorCode::kUsage, "--output " + path + " would write the values to a file named '" + path + "'",
                "-o " + path + " chooses the format of what is printed; --output ./" + path + " writes that file");
  }
  if (const std::size_t count = tensors_of(graph); path.ends_with(".npy") && count != 1) {
    return fail(ErrorCode::kUsage, "a .npy file holds one tensor, the program gives " + std::to_string(count),
                "write a .safetensors file");
  }
  CALLBOARD_TRY(actors::check_output_file(path));
  for (const std::string& file : files) {
    if (!actors::is_same_file(path, file)) continue;
    return fail(ErrorCode::kUsage, "--output " + path + " would replace '" + file + "', which the run reads",
                "write the outputs to another file");
  }
  return {};
}

Status write_outputs(const std::string& path, const NamedTensors& outputs) {
  if (!path.ends_with(".npy")) return write_safetensors(path, outputs);
  if (outputs.size() == 1) return write_npy(path, outputs.front().second);
  return fail(ErrorCode::kUsage, "a .npy file holds one tensor, the program gives " + std::to_string(outputs.size()),
              "write a .safetensors file");
}

void print_outputs(const NamedTensors& outputs, milliseconds time, const std::string& path, const Console& console) {
  if (console.json) {
    json list = json::array();
    for (const auto& [name, tensor] : outputs) {
      list.push_back({{"name", name},
                      {"dtype", dtype_name(tensor.meta.dtype)},
                      {"sizes", tensor.meta.sizes},
                      {"first", first_elements(tensor, kElementsShown)}});
    }
    json out{{"ok", true}, {"time_ms", time.count()}, {"outputs", list}};
    if (!path.empty()) out["file"] = path;
    return print_line(dump(out));
  }
  Table table({"OUTPUT", "TENSOR", "VALUES"});
  for (const auto& [name, tensor] : outputs) {
    table.add({name, TensorMeta::contiguous(tensor.meta.dtype, tensor.meta.sizes).to_string(),
               first_elements(tensor, kElementsShown)});
  }
  print(table.text(console, 0));
  note("took " + time_text(time) + (path.empty() ? "; --output FILE keeps the values" : "; written to " + path));
}

class Run {
 public:
  Run(RunFlags flags, const Console& console) : flags_(std::move(flags)), console_(console) {}

  int run() {
    if (const Status ready = prepare(); !ready) {
      const int code = report(ready.error(), console_);
      // What a file may be wrong with has many codes; all of them are the caller's.
      return ready.error().code == ErrorCode::kResourceExhausted ? code : kExitUsage;
    }
    const Status done = perform();
    if (done) return kExitOk;
    const int code = report(done.error(), console_);
    if (interrupted_) return kExitInterrupted;
    return wrong_argument_ ? kExitUsage : code;
  }

 private:
  bool interrupted() {
    interrupted_ = interrupted_ || signals_->read_count() > 0;
    return interrupted_;
  }

  /// Arguments and files; nothing is asked of the cluster.
  Status prepare() {
    CALLBOARD_ASSIGN(wait_, parse_duration("--deadline", flags_.deadline));
    if (wait_ < kDeadlineMin || wait_ > kDeadlineMax) {
      return fail(ErrorCode::kUsage, "--deadline is " + flags_.deadline + "; allowed: 1ms to 24h");
    }
    if (is_npy(flags_.program)) {
      return fail(
          ErrorCode::kUsage, "'" + flags_.program + "' is an array, not a program",
          "PROGRAM is a .safetensors file that program.save() made; arrays are given with --input NAME=FILE.npy");
    }
    CALLBOARD_ASSIGN(saved_, actors::load_program_file(flags_.program));
    if (!flags_.placement.empty()) {
      CALLBOARD_ASSIGN(saved_.placement, parse_placement(flags_.placement));
    }
    std::vector<std::string> files{flags_.program};
    CALLBOARD_ASSIGN(inputs_, ordered_inputs(saved_.graph, flags_.inputs, files));
    return check_output(flags_.output, saved_.graph, files);
  }

  Status perform() {
    CALLBOARD_ASSIGN(signals_, StopSignals::take());
    actors::Client::Options options;
    options.cluster = flags_.cluster;
    options.interrupted = [this] { return interrupted(); };
    CALLBOARD_ASSIGN(const auto client, actors::Client::connect(options));
    auto loaded = client->load(std::move(saved_.graph), saved_.constants, std::move(saved_.placement), wait_);
    if (!loaded) {
      wrong_argument_ = !flags_.placement.empty() && loaded.error().code == ErrorCode::kBadPlacement;
      return fail(std::move(loaded).error());
    }
    const auto program = std::move(*loaded);
    const TimePoint begun = Clock::now();
    auto submitted = program->submit(inputs_, {.deadline = wait_, .interrupted = options.interrupted});
    if (!submitted) {
      // The client compares inputs with the program before it sends anything.
      wrong_argument_ = submitted.error().code == ErrorCode::kBadInput;
      return fail(std::move(submitted).error());
    }
    const auto future = std::move(*submitted);
    while (!future->wait_for(kSignalsEvery)) {
      if (!interrupted_ && interrupted()) future->cancel();
    }
    CALLBOARD_ASSIGN(const auto result, future->get());
    const auto time = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
    const NamedTensors outputs = named_outputs(program->graph(), result->outputs);
    if (!flags_.output.empty()) CALLBOARD_TRY(write_outputs(flags_.output, outputs));
    print_outputs(outputs, time, flags_.output, console_);
    return {};
  }

  RunFlags flags_;
  const Console& console_;
  milliseconds wait_{0};
  actors::SavedProgram saved_;
  std::vector<ClientValue> inputs_;
  std::optional<StopSignals> signals_;
  bool interrupted_ = false;
  bool wrong_argument_ = false;
};

}  // namespace

void add_run(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("run", "Run a saved program once on a cluster");
  auto flags = std::make_shared<RunFlags>();
  command->add_option("PROGRAM", flags->program, "Program file (.safetensors), made by program.save() in Python")
      ->required();
  command->add_option("--cluster", flags->cluster, "Name or run directory; not needed while one cluster runs")
      ->type_name("NAME");
  command
      ->add_option("--input", flags->inputs,
                   "NAME=FILE (.npy or .safetensors), NAME=NUMBER, or one .safetensors with all")
      ->type_name("INPUT")
      ->allow_extra_args(false);
  command->add_option("--output", flags->output, "File for the outputs: .safetensors, or .npy for a single one")
      ->type_name("FILE");
  command->add_option("--deadline", flags->deadline, "Longest time for loading and for running (30s)")
      ->type_name("TIME");
  command
      ->add_option("--placement", flags->placement,
                   "auto, a list of devices, or DEVICE=MODULE[,MODULE] (repeat); else the program's own")
      ->type_name("PLACE")
      ->allow_extra_args(false);
  add_output_option(*command, invocation);
  command->footer(R"(
Examples:
  callboard run model.safetensors --input x=x.npy
  callboard run model.safetensors --input inputs.safetensors --output y.safetensors
  callboard run model.safetensors --input x=x.npy --placement cpu0,cpu1
  callboard run model.safetensors --input x=x.npy --placement cpu0=encoder --placement cpu1=decoder

Exit status: 0 ok, 1 the run failed, 2 wrong arguments or files, 130 interrupted (the request is cancelled).)");
  command->callback([flags, &invocation] {
    invocation.run = [flags, &invocation] { return Run(*flags, invocation.console).run(); };
  });
}

}  // namespace callboard::cli
