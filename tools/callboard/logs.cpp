#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "actors/core/output_file.h"
#include "actors/core/run_dir.h"
#include "config/cluster_config.h"
#include "config/scalars.h"
#include "tools/callboard/commands.h"
#include "tools/callboard/exit_codes.h"
#include "tools/callboard/log_lines.h"
#include "tools/callboard/signals.h"

namespace callboard::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kReadBytesMax = 64u << 20;  // of one log, from its end
constexpr int kLookEveryMs = 200;
constexpr int kLinesMax = 1'000'000;

struct LogFlags {
  std::vector<std::string> names;
  std::string cluster;
  int lines = 50;
  bool follow = false;
};

/// Where the logs of a cluster are, whether or not it still runs.
struct LogFolder {
  std::string cluster;
  std::string run_dir;
  std::string path;
  bool running = false;
};

LogFolder log_folder(const std::string& run_dir, std::string name, bool running) {
  LogFolder found{std::move(name), run_dir, run_dir + "/logs", running};
  const auto config = config::load_cluster(run_dir + "/cluster.yaml");
  if (config && !config->log.dir.empty()) found.path = config->log.dir;
  return found;
}

/// A cluster that failed leaves its logs until the next one starts.
std::vector<LogFolder> ended_clusters() {
  std::vector<LogFolder> found;
  for (const actors::DeadRunDir& dead : actors::list_dead_run_dirs()) {
    LogFolder folder = log_folder(dead.path, dead.name, false);
    std::error_code error;
    if (fs::is_directory(folder.path, error)) found.push_back(std::move(folder));
  }
  return found;
}

Result<LogFolder> find_logs(const std::string& cluster) {
  auto record = actors::find_cluster(cluster);
  if (record) return log_folder(record->run_dir, record->name, true);
  Error error = std::move(record).error();
  const bool several = cluster.empty() && !actors::list_clusters().empty();
  if (error.code != ErrorCode::kClusterNotFound || several) return fail(std::move(error));
  std::vector<LogFolder> ended = ended_clusters();
  std::erase_if(ended, [&](const LogFolder& folder) {
    return !cluster.empty() && folder.cluster != cluster && !actors::is_same_file(folder.run_dir, cluster);
  });
  if (ended.size() == 1) return std::move(ended.front());
  if (ended.empty()) {
    std::vector<std::string> known;
    for (const LogFolder& folder : ended_clusters()) known.push_back(folder.cluster);
    for (const actors::ClusterRecord& running : actors::list_clusters()) known.push_back(running.name);
    const std::string_view near =
        config::nearest_name(cluster, std::vector<std::string_view>(known.begin(), known.end()));
    if (!near.empty()) error.hint = "did you mean '" + std::string(near) + "'?";
    return fail(std::move(error));
  }
  std::string names;
  for (const LogFolder& folder : ended) names += (names.empty() ? "" : ", ") + folder.cluster;
  return fail(ErrorCode::kClusterNotFound, "no cluster is running; several that have ended left their logs: " + names,
              "name one of them: --cluster " + ended.front().cluster);
}

/// One actor's log, of all its starts; `start` picks one of them (0: all).
struct ActorLog {
  std::string name;
  Incarnation start = 0;
  std::string path;
  UniqueFd file;
  std::uint64_t read_to = 0;
  std::string partial;  // of a line whose end is not written yet
  Incarnation at = 0;   // whose lines come

  std::string label() const { return start == 0 ? name : name + "#" + std::to_string(start); }
};

Status open_log(ActorLog& log) {
  log.file.reset(open(log.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat info = {};
  if (!log.file || fstat(log.file.get(), &info) != 0) {
    return fail(errno == ENOENT ? ErrorCode::kFileNotFound : ErrorCode::kFileUnreadable,
                "the log '" + log.path + "' cannot be read: " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kFileUnreadable, "the log '" + log.path + "' is no regular file");
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  log.read_to = size - std::min<std::uint64_t>(size, kReadBytesMax);
  return {};
}

/// The whole lines, of the starts that are wanted, that were written since the last call.
std::vector<std::string> new_lines(ActorLog& log) {
  char buffer[64 << 10];
  while (true) {
    const ssize_t got = pread(log.file.get(), buffer, sizeof buffer, static_cast<off_t>(log.read_to));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    log.read_to += static_cast<std::uint64_t>(got);
    log.partial.append(buffer, static_cast<std::size_t>(got));
  }
  std::vector<std::string> lines = take_lines(log.partial);
  if (log.partial.size() > kReadBytesMax) log.partial.clear();
  return of_start(std::move(lines), log.name, log.start, log.at);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();) {
    if (entry->path().extension() == ".log") names.push_back(entry->path().stem().string());
    entry.increment(error);
  }
  // Those that all others depend on first.
  const auto rank = [](const std::string& name) { return name == "node" ? 0 : name == "coordinator" ? 1 : 2; };
  std::sort(names.begin(), names.end(),
            [&](const std::string& a, const std::string& b) { return std::pair(rank(a), a) < std::pair(rank(b), b); });
  return names;
}

Result<ActorLog> choose_log(const LogFolder& folder, const std::vector<std::string>& known, const std::string& wanted) {
  ActorLog log;
  const std::size_t mark = wanted.find('#');
  log.name = wanted.substr(0, mark);
  if (mark != std::string::npos) {
    const std::string number = wanted.substr(mark + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), log.start);
    if (error != std::errc() || end != number.data() + number.size() || log.start == 0) {
      return fail(ErrorCode::kUsage, "'" + wanted + "' is no start of an actor",
                  "write NAME, or NAME#2 for the second start of it");
    }
  }
  if (std::find(known.begin(), known.end(), log.name) == known.end()) {
    const std::vector<std::string_view> names(known.begin(), known.end());
    const std::string_view near = config::nearest_name(log.name, names);
    return fail(
        ErrorCode::kUsage, "cluster '" + folder.cluster + "' has no log of '" + log.name + "'",
        near.empty() ? "it has those of " + config::list_names(names) : "did you mean '" + std::string(near) + "'?");
  }
  log.path = folder.path + "/" + log.name + ".log";
  return log;
}

class Logs {
 public:
  Logs(LogFlags flags, const Console& console) : flags_(std::move(flags)), console_(console) {}

  int run() {
    if (const Status ready = prepare(); !ready) return report(ready.error(), console_);
    show_last();
    return flags_.follow ? follow() : kExitOk;
  }

 private:
  Status prepare() {
    CALLBOARD_ASSIGN(folder_, find_logs(flags_.cluster));
    const std::vector<std::string> known = names_in(folder_.path);
    if (known.empty()) {
      return fail(ErrorCode::kFileNotFound, "cluster '" + folder_.cluster + "' has no logs in '" + folder_.path + "'");
    }
    for (const std::string& name : flags_.names.empty() ? known : flags_.names) {
      CALLBOARD_ASSIGN(ActorLog log, choose_log(folder_, known, name));
      CALLBOARD_TRY(open_log(log));
      logs_.push_back(std::move(log));
    }
    if (flags_.follow) {
      CALLBOARD_ASSIGN(signals_, StopSignals::take());
    }
    if (!folder_.running) note("cluster '" + folder_.cluster + "' has ended; these are its logs");
    return {};
  }

  void show_last() {
    json list = json::array();
    std::string text;
    for (ActorLog& log : logs_) {
      std::vector<std::string> lines = new_lines(log);
      // Until there is a line break it may go on, but who does not wait for it wants to see it.
      if (!flags_.follow && !log.partial.empty() && (log.start == 0 || log.start == log.at)) {
        lines.push_back(printable_line(log.partial));
      }
      const auto count = std::min(lines.size(), static_cast<std::size_t>(flags_.lines));
      lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
      if (flags_.follow && console_.json) {
        for (const std::string& line : lines) print_one(log, line);
        continue;
      }
      list.push_back({{"name", log.label()}, {"file", log.path}, {"lines", lines}});
      if (logs_.size() > 1) {
        text += (text.empty() ? "" : "\n") + console_.out(Style::kBold, "==> " + log.label() + " (" + log.path + ")");
        text += "\n";
      }
      for (const std::string& line : lines) text += line + "\n";
    }
    if (!console_.json) {
      print(text);
    } else if (!flags_.follow) {
      print_line(dump({{"ok", true}, {"cluster", folder_.cluster}, {"running", folder_.running}, {"logs", list}}));
    }
  }

  void print_one(const ActorLog& log, const std::string& line) const {
    if (console_.json) {
      print_line(json{{"name", log.label()}, {"line", line}}.dump(-1, ' ', false, json::error_handler_t::replace));
    } else {
      print_line(logs_.size() > 1 ? console_.out(Style::kDim, log.label() + " | ") + line : line);
    }
  }

  /// Until Ctrl-C, or until the cluster has ended and all of its logs is shown.
  int follow() {
    while (true) {
      // Asked before the last look: what is written until the end is shown.
      const auto record = actors::find_cluster(folder_.run_dir);
      for (ActorLog& log : logs_) {
        for (const std::string& line : new_lines(log)) print_one(log, line);
      }
      if (!record) {
        note("cluster '" + folder_.cluster + "' has ended");
        return kExitOk;
      }
      pollfd fd{signals_->fd(), POLLIN, 0};
      if (poll(&fd, 1, kLookEveryMs) > 0) return kExitInterrupted;
    }
  }

  LogFlags flags_;
  const Console& console_;
  LogFolder folder_;
  std::vector<ActorLog> logs_;
  std::optional<StopSignals> signals_;
};

}  // namespace

void add_logs(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("logs", "Show what the actors of a cluster have logged");
  auto flags = std::make_shared<LogFlags>();
  command->add_option("NAME", flags->names, "Actors: coordinator, node, cpu0 …, or cpu0#2 for its second start only");
  command->add_option("--cluster", flags->cluster, "Name or run directory; not needed while one cluster runs")
      ->type_name("NAME");
  command->add_option("-n,--lines", flags->lines, "The last so many lines of each (50)")
      ->check(CLI::Range(0, kLinesMax))
      ->type_name("N");
  command->add_flag("-f,--follow", flags->follow, "Go on with what is written, until Ctrl-C or the cluster's end");
  add_output_option(*command, invocation);
  command->footer(R"(
A log holds all starts of its actor, the last one at its end. The logs of a cluster that failed are there until the next
`callboard up`, `callboard down` or callboard.launch(). With --follow, -o json gives an object for each line.

Examples:
  callboard logs
  callboard logs cpu0 --lines 200
  callboard logs coordinator cpu1#2 --cluster lab-a
  callboard logs -f

Exit status: 0 shown, 1 no such cluster, 2 no such actor, or a log that cannot be read, 130 interrupted while
following.)");
  command->callback([flags, &invocation] {
    invocation.run = [flags, &invocation] { return Logs(*flags, invocation.console).run(); };
  });
}

}  // namespace callboard::cli
