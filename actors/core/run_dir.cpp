#include "actors/core/run_dir.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "actors/core/transport.h"
#include "messages/base/clock.h"

namespace callboard::actors {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kNameMax = 40;
constexpr std::size_t kSocketNameMax = 32;  // "coordinator.sock", "<device>.<incarnation>.sock"
constexpr const char* kLockName = "lock";
constexpr const char* kRecordName = "cluster.json";
constexpr const char* kLogsName = "logs";
// How long the lock of a dead owner may be held by those that sweep what it left; they hold it for milliseconds.
constexpr Duration kSweepWait = std::chrono::seconds(1);
constexpr int kSweepLookMs = 2;

Status check_name(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  if (!name.empty() && name.size() <= kNameMax && name.front() != '-' &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return {};
  }
  return fail(ErrorCode::kConfigOutOfRange, "'" + name + "' is no name of a cluster",
              "1 to 40 of a-z, 0-9 and '-', not beginning with '-'");
}

/// Ours, a directory and closed to others: whoever can write there could put sockets of his own in our place.
Status check_private(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    return fail(ErrorCode::kEnvironment, "'" + path + "' cannot be examined: " + ::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return fail(ErrorCode::kPermission, "'" + path + "' is not a directory", "remove it");
  if (info.st_uid != ::geteuid()) {
    return fail(ErrorCode::kPermission,
                "'" + path + "' belongs to user " + std::to_string(info.st_uid) + ", not to us (user " +
                    std::to_string(::geteuid()) + ")",
                "set CALLBOARD_RUN_DIR to a directory of your own");
  }
  if ((info.st_mode & 077) != 0) {
    return fail(ErrorCode::kPermission, "'" + path + "' is open to other users", "chmod 700 '" + path + "'");
  }
  return {};
}

Status make_private(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int number = errno;
    return fail(
        number == EACCES || number == EPERM || number == EROFS ? ErrorCode::kPermission : ErrorCode::kEnvironment,
        "'" + path + "' cannot be made: " + ::strerror(number), "set CALLBOARD_RUN_DIR to a directory of your own");
  }
  return check_private(path);
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// Where run_root() is, without making it.
std::string root_path() {
  if (const std::string path = environment("CALLBOARD_RUN_DIR"); !path.empty()) {
    std::error_code error;  // the working directory may be gone; then the path is tried as it is
    const fs::path absolute = fs::absolute(path, error);
    std::string normal = (error ? fs::path(path) : absolute).lexically_normal().string();
    while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
    return normal;
  }
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  struct stat info = {};
  if (!runtime.empty() && runtime.front() == '/' && ::stat(runtime.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return runtime + "/callboard";
  }
  return "/tmp/callboard-" + std::to_string(::geteuid());
}

// Open-file-description locks: they end with the last descriptor, are not lost when some other descriptor of the file
// is closed, and can be asked about without being taken (flock cannot: asking would get in the way of who claims).
bool take_lock(int fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool is_locked(const std::string& dir) {
  const UniqueFd fd(::open((dir + "/" + kLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fd && ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string lock_owner(int fd) {
  char text[32] = {};
  const auto got = ::pread(fd, text, sizeof text - 1, 0);
  const std::string pid(text, text + std::max<ssize_t>(got, 0));
  return pid.empty() ? "unknown" : pid.substr(0, pid.find('\n'));
}

/// False if the process that wrote its number there has ended, or has not written it yet: then whoever holds the lock
/// is about to remove the directory, or to write. A process of another pid namespace counts as ended.
bool owner_lives(int fd) {
  const std::string pid = lock_owner(fd);
  const long number = std::strtol(pid.c_str(), nullptr, 10);
  return number > 0 && (::kill(static_cast<pid_t>(number), 0) == 0 || errno == EPERM);
}

/// True if `fd` is still what the path names: the owner before us may have removed it between our open and our lock.
bool same_file(int fd, const std::string& path) {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

std::vector<fs::path> entries(const std::string& dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(dir, error); !error && entry != fs::directory_iterator();) {
    found.push_back(entry->path());
    entry.increment(error);
  }
  return found;
}

/// Removes what is in the directory, but not the lock and not `keep`.
Status sweep(const std::string& dir, const std::string& keep = {}) {
  for (const fs::path& path : entries(dir)) {
    if (path.filename() == kLockName || path.filename() == keep) continue;
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
      return fail(ErrorCode::kPermission,
                  "'" + path.string() + "' of an earlier cluster cannot be removed: " + error.message());
    }
  }
  return {};
}

Result<UniqueFd> lock_directory(const std::string& dir, const std::string& name) {
  const std::string path = dir + "/" + kLockName;
  const TimePoint until = after(Clock::now(), kSweepWait);
  // Those that sweep or end there may take directory and file away again and again, but not for long.
  do {
    if (Status made = make_private(dir); !made) {
      struct stat info = {};
      if (::lstat(dir.c_str(), &info) != 0 && errno == ENOENT) continue;  // gone between making and looking
      return fail(std::move(made).error());
    }
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd && errno == ENOENT) continue;  // the owner before us has just removed the directory
    if (!fd) return fail(ErrorCode::kPermission, "'" + path + "' cannot be opened: " + ::strerror(errno));
    if (!take_lock(fd.get())) {
      if (!owner_lives(fd.get()) && Clock::now() < until) {
        ::poll(nullptr, 0, kSweepLookMs);  // nothing tells of the end of a lock
        continue;
      }
      return fail(ErrorCode::kAddressInUse,
                  "a cluster '" + name + "' is running (pid " + lock_owner(fd.get()) + ", " + dir + ")",
                  "end it with 'callboard down " + name + "', or give this one another name");
    }
    if (!same_file(fd.get(), path)) continue;
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
      return fail(ErrorCode::kEnvironment, "'" + path + "' cannot be written: " + ::strerror(errno));
    }
    return fd;
  } while (Clock::now() < until);
  return fail(ErrorCode::kAddressInUse, "'" + dir + "' is removed as fast as it is made", "try again");
}

/// "pid:[4026531836]"; empty where /proc does not say.
std::string pid_namespace() {
  std::error_code error;
  return fs::read_symlink("/proc/self/ns/pid", error).string();
}

Json to_json(const ClusterRecord& record) {
  return Json{{"name", record.name},
              {"run_dir", record.run_dir},
              {"node_pid", record.node_pid},
              {"coordinator_pid", record.coordinator_pid},
              {"pid_namespace", pid_namespace()},
              {"epoch", record.epoch},
              {"coordinator_endpoint", record.coordinator_endpoint},
              {"memory_socket", record.memory_socket},
              {"version", record.version},
              {"requests_per_client", record.requests_per_client},
              {"results_on_gpu", record.results_on_gpu}};
}

std::optional<ClusterRecord> read_record(const std::string& dir) {
  std::ifstream file(dir + "/" + kRecordName);
  if (!file) return std::nullopt;
  try {
    const Json json = Json::parse(file);
    ClusterRecord record;
    record.name = json.at("name").get<std::string>();
    record.run_dir = json.at("run_dir").get<std::string>();
    record.node_pid = json.at("node_pid").get<std::int64_t>();
    record.coordinator_pid = json.at("coordinator_pid").get<std::int64_t>();
    record.epoch = json.at("epoch").get<Epoch>();
    record.coordinator_endpoint = json.at("coordinator_endpoint").get<std::string>();
    record.memory_socket = json.at("memory_socket").get<std::string>();
    record.version = json.at("version").get<std::string>();
    record.requests_per_client = json.value("requests_per_client", record.requests_per_client);
    record.results_on_gpu = json.value("results_on_gpu", false);
    const std::string ours = pid_namespace();
    record.foreign_pids = json.value("pid_namespace", ours) != ours;
    if (record.foreign_pids) record.node_pid = record.coordinator_pid = 0;
    return record;
  } catch (const Json::exception&) {
    return std::nullopt;  // of another version, or none of ours: not a cluster that we can talk to
  }
}

/// Only what clusters make is in it. The root is the user's choice, and may hold directories of his own.
bool holds_ours_only(const std::string& dir) {
  const std::vector<fs::path> found = entries(dir);
  return std::all_of(found.begin(), found.end(), [](const fs::path& path) {
    const std::string name = path.filename().string();
    std::error_code error;
    const fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::directory) return name == kLogsName;
    if (type == fs::file_type::socket) return true;
    return type == fs::file_type::regular && (name == kLockName || name == "cluster.yaml" || name == kRecordName ||
                                              name == std::string(kRecordName) + ".new");
  });
}

/// The lock of a directory that a cluster has left; none if it is locked, or not one of ours.
UniqueFd lock_of_dead(const std::string& dir) {
  if (!check_name(fs::path(dir).filename().string()) || !check_private(dir) || !holds_ours_only(dir)) return {};
  const std::string path = dir + "/" + kLockName;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  if (!take_lock(fd.get()) || !same_file(fd.get(), path)) return {};
  return fd;
}

/// Under its lock. What was removed, as a line; empty where nothing was.
std::string remove_dead(const std::string& dir, bool keep_logs) {
  std::string removed;
  bool logs = false;
  for (const fs::path& path : entries(dir)) {
    const std::string name = path.filename().string();
    logs = logs || name == kLogsName;
    if (name != kLockName && !(keep_logs && name == kLogsName)) removed += (removed.empty() ? "" : ", ") + name;
  }
  if (logs && keep_logs) {
    if (removed.empty() || !sweep(dir, kLogsName)) return {};
    return dir + ": " + removed + " of a cluster that has ended; its logs are still there";
  }
  if (!sweep(dir)) return {};
  ::unlink((dir + "/" + kLockName).c_str());
  ::rmdir(dir.c_str());
  return dir + " of a cluster that has ended" + (removed.empty() ? "" : ": " + removed);
}

std::optional<ClusterRecord> live_record(const std::string& dir) {
  if (!check_private(dir) || !is_locked(dir)) return std::nullopt;
  return read_record(dir);
}

tl::unexpected<Error> not_found(const std::string& what, const std::vector<ClusterRecord>& running) {
  std::string names;
  for (const ClusterRecord& record : running) names += (names.empty() ? "" : ", ") + record.name;
  if (running.empty()) return fail(ErrorCode::kClusterNotFound, what, "start one with 'callboard up'");
  return fail(ErrorCode::kClusterNotFound, what + "; running: " + names, "name one of them");
}

}  // namespace

Result<std::string> run_root() {
  const std::string path = root_path();
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);  // where it fails make_private() says so
  CALLBOARD_TRY(make_private(path));
  return path;
}

Result<RunDir> claim_run_dir(const std::string& cluster_name) {
  CALLBOARD_TRY(check_name(cluster_name));
  const std::string path = root_path() + "/" + cluster_name;
  const std::string longest = path + "/" + std::string(kSocketNameMax, 'x');
  if (!ipc_endpoint(longest)) {
    return fail(ErrorCode::kConfigOutOfRange,
                "the run directory '" + path + "' is too long (" + std::to_string(path.size()) +
                    " bytes): " + "paths of sockets end at 107 bytes, and " + std::to_string(kSocketNameMax + 1) +
                    " are for their names",
                "set CALLBOARD_RUN_DIR to a shorter directory, or give the cluster a shorter name");
  }
  CALLBOARD_TRY(run_root());
  CALLBOARD_ASSIGN(UniqueFd lock, lock_directory(path, cluster_name));
  CALLBOARD_TRY(sweep(path));
  return RunDir{path, std::move(lock)};
}

void remove_run_dir(const RunDir& dir, bool keep_logs) noexcept {
  try {
    if (!sweep(dir.path, keep_logs ? kLogsName : "") || keep_logs) return;
    ::unlink((dir.path + "/" + kLockName).c_str());
    ::rmdir(dir.path.c_str());
  } catch (const std::exception&) {
    // Out of memory while tidying up: the next claim sweeps.
  }
}

std::vector<DeadRunDir> list_dead_run_dirs() {
  std::vector<DeadRunDir> found;
  for (const fs::path& path : entries(root_path())) {
    const std::string dir = path.string();
    std::error_code error;
    if (!check_name(path.filename().string()) || !check_private(dir) || !holds_ours_only(dir)) continue;
    if (fs::exists(path / kLockName, error) && !is_locked(dir)) found.push_back({path.filename().string(), dir});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

std::vector<std::string> sweep_dead_run_dirs(bool keep_logs) {
  std::vector<std::string> removed;
  for (const fs::path& path : entries(root_path())) {
    const UniqueFd lock = lock_of_dead(path.string());
    if (!lock) continue;
    // Looked at again under the lock: it may have been claimed and ended in between.
    if (!holds_ours_only(path.string())) continue;
    if (std::string line = remove_dead(path.string(), keep_logs); !line.empty()) removed.push_back(std::move(line));
  }
  std::sort(removed.begin(), removed.end());
  return removed;
}

Status write_record(const ClusterRecord& record) {
  const std::string path = record.run_dir + "/" + kRecordName;
  const std::string temporary = path + ".new";
  const std::string text = to_json(record).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    return fail(ErrorCode::kEnvironment, "'" + path + "' cannot be written: " + ::strerror(errno));
  }
  return {};
}

std::vector<ClusterRecord> list_clusters() {
  std::vector<ClusterRecord> running;
  for (const fs::path& path : entries(root_path())) {
    if (auto record = live_record(path.string())) running.push_back(std::move(*record));
  }
  std::sort(running.begin(), running.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return running;
}

Result<ClusterRecord> find_cluster(const std::string& name_or_path) {
  if (name_or_path.empty()) {
    std::vector<ClusterRecord> running = list_clusters();
    if (running.size() == 1) return std::move(running.front());
    return not_found(running.empty() ? "no cluster is running" : "several clusters are running", running);
  }
  if (name_or_path.find('\0') != std::string::npos) {
    return fail(ErrorCode::kBadInput, "the name of a cluster has a NUL byte in it", "no cluster can be named so");
  }
  const bool is_path = name_or_path.find('/') != std::string::npos;
  if (!is_path) CALLBOARD_TRY(check_name(name_or_path));
  const std::string dir = is_path ? name_or_path : root_path() + "/" + name_or_path;
  if (auto record = live_record(dir)) return std::move(*record);
  std::error_code none;
  if (check_private(dir) && is_locked(dir) && fs::exists(dir + "/" + kRecordName, none)) {
    const UniqueFd lock(::open((dir + "/" + kLockName).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    const std::string pid = lock ? lock_owner(lock.get()) : "unknown";
    return fail(ErrorCode::kEnvironment,
                "the cluster in '" + dir + "' runs (process " + pid + "), but its " + kRecordName +
                    " cannot be read: it is damaged, or of another version of Callboard",
                "`kill " + pid + "` stops it");
  }
  return not_found(is_path ? "no cluster is running in '" + dir + "'" : "no cluster '" + name_or_path + "' is running",
                   list_clusters());
}

}  // namespace callboard::actors
