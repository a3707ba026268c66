// A whole node actor in a process of its own, over children that do nothing (fake_cluster.cpp).
#include "actors/node/node_actor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "actors/core/process.h"
#include "actors/core/run_dir.h"
#include "tests/actors/core/station.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using std::chrono::seconds;
using test::LineStation;
using test::Seen;
using test::TempDir;

TimePoint soon() { return after(Clock::now(), seconds(30)); }

/// Waits for the end of a process that need not be our child.
bool ends(std::int64_t pid) {
  const UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0u)));
  if (!fd) return true;  // gone already
  pollfd entry{fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 30'000) == 1;
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Setup {
  int devices = 2;
  int grace_ms = 5'000;
  int restarts_max = 5;
  std::vector<std::string> environment{};
  std::string name = "lab";
};

class Cluster {
 public:
  explicit Cluster(const std::string& root, Setup setup = {}) : name_(setup.name), root_(root) {
    SpawnOptions options;
    options.program = FAKE_CLUSTER;
    options.arguments = {"node", setup.name, std::to_string(setup.devices), std::to_string(setup.grace_ms),
                         std::to_string(setup.restarts_max)};
    setup.environment.push_back("CALLBOARD_RUN_DIR=" + root);
    const std::string fifo = root + "/" + setup.name + "-ready";
    ::unlink(fifo.c_str());
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    ready_.reset(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));  // for writing, too: no end while nobody writes
    REQUIRE(ready_);
    setup.environment.push_back("FAKE_READY=" + fifo);
    options.environment = environment_with(setup.environment);
    options.log_file = root + "/" + setup.name + "-node.log";
    std::array<int, 2> status{};
    std::array<int, 2> lifeline{};
    REQUIRE(::pipe2(status.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(lifeline.data(), O_CLOEXEC) == 0);
    status_.reset(status[0]);
    lifeline_.reset(lifeline[1]);
    const UniqueFd status_write(status[1]);
    const UniqueFd lifeline_read(lifeline[0]);
    options.fds = {{status_write.get(), 5}, {lifeline_read.get(), 6}};
    auto spawned = Process::spawn(options);
    REQUIRE(spawned);
    process_.emplace(std::move(*spawned));
  }

  /// The next event; null at the end of the stream.
  Json next() {
    const TimePoint deadline = soon();
    while (true) {
      if (const auto newline = buffer_.find('\n'); newline != std::string::npos) {
        const Json event = Json::parse(buffer_.substr(0, newline));
        buffer_.erase(0, newline + 1);
        if (event["event"] == "actor_started") pids[event["name"]] = event["pid"];
        return event;
      }
      pollfd entry{status_.get(), POLLIN, 0};
      REQUIRE(::poll(&entry, 1, 30'000) == 1);
      REQUIRE(Clock::now() < deadline);
      char bytes[4'096];
      const auto got = ::read(status_.get(), bytes, sizeof bytes);
      if (got <= 0) return nullptr;
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  /// The next event of this kind, for this actor where one is named.
  Json next(const std::string& kind, const std::string& actor = {}) {
    while (true) {
      Json event = next();
      INFO("waiting for " << kind << " " << actor << "; node log: " << contents(root_ + "/" + name_ + "-node.log"));
      REQUIRE_FALSE(event.is_null());
      if (event["event"] == kind && (actor.empty() || event["name"] == actor)) return event;
    }
  }
  /// Until so many devices have come as far as to obey signals.
  void wait_ready(int devices) {
    while (devices > 0) {
      pollfd entry{ready_.get(), POLLIN, 0};
      REQUIRE(::poll(&entry, 1, 30'000) == 1);
      char byte = 0;
      REQUIRE(::read(ready_.get(), &byte, 1) == 1);
      if (byte == '\n') --devices;
    }
  }
  int exit_code() {
    const auto exit = process_->reap_until(soon());
    REQUIRE(exit);
    return exit->signalled ? -exit->code : exit->code;
  }
  std::string run_dir() const { return root_ + "/" + name_; }
  std::string log_of(const std::string& actor) const { return contents(run_dir() + "/logs/" + actor + ".log"); }

  Process& process() { return *process_; }
  void drop_lifeline() { lifeline_.reset(); }

  std::map<std::string, std::int64_t> pids;  ///< of actors that were seen to start

 private:
  std::string name_;
  std::string root_;
  std::optional<Process> process_;
  UniqueFd status_;
  UniqueFd lifeline_;
  UniqueFd ready_;
  std::string buffer_;
};

/// What the coordinator was told, asked again until all of `wanted` is in it.
std::string reports(LineStation& client, const std::vector<std::string>& wanted) {
  std::string text;
  const TimePoint deadline = soon();
  bool complete = false;
  while (!complete && Clock::now() < deadline) {
    REQUIRE(client.send(Operation{1, "reports", ""}));
    const auto answer = client.events().next_of(Seen::Kind::kMessage);
    REQUIRE(answer);
    text = std::get<OperationResult>(*answer->message).result;
    complete = true;
    for (const std::string& line : wanted) complete = complete && text.find(line + "\n") != std::string::npos;
  }
  CHECK(complete);
  return text;
}

actors::Line::Options client_options(const Cluster& cluster) {
  auto options = test::line_options("ipc://" + cluster.run_dir() + "/coordinator.sock", {"client-1", 1});
  options.hello.cluster = "lab";
  return options;
}

TEST_CASE("a node actor starts what the configuration names, tells, and leaves nothing behind when it is ended") {
  TempDir root;
  Cluster cluster(root.path());
  const Json started = cluster.next("started");
  CHECK(started["run_dir"] == cluster.run_dir());
  REQUIRE(cluster.pids.size() == 3);
  struct stat info = {};
  REQUIRE(::stat((cluster.run_dir() + "/cluster.yaml").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  ::setenv("CALLBOARD_RUN_DIR", root.path().c_str(), 1);
  const auto record = find_cluster("lab");
  ::unsetenv("CALLBOARD_RUN_DIR");
  REQUIRE(record);
  CHECK(record->node_pid == cluster.process().pid());
  CHECK(record->coordinator_pid == cluster.pids.at("coordinator"));
  {
    LineStation client(client_options(cluster));
    REQUIRE(client.open());
    const std::string text = reports(client, {"started coordinator#1", "started cpu0#1", "started cpu1#1"});
    CHECK(text.find("exited") == std::string::npos);
  }
  cluster.process().signal(SIGTERM);
  CHECK(cluster.next("actor_exited", "cpu0")["stopped_by_us"] == true);
  CHECK(cluster.next("actor_exited", "coordinator")["cause"] == "exit status 0");
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
  CHECK_FALSE(fs::exists(cluster.run_dir()));
  for (const auto& [name, pid] : cluster.pids) CHECK(ends(pid));
}

TEST_CASE(
    "R57: an actor that is killed is started again, without descriptors of anybody, and the coordinator is told") {
  TempDir root;
  Cluster cluster(root.path());
  cluster.next("started");
  cluster.wait_ready(2);
  const std::int64_t victim = cluster.pids.at("cpu0");
  REQUIRE(::kill(static_cast<pid_t>(victim), SIGKILL) == 0);
  const Json exited = cluster.next("actor_exited", "cpu0");
  CHECK(exited["incarnation"] == 1);
  CHECK(exited["pid"] == victim);
  CHECK(exited["cause"] == "signal 9 (Killed)");
  CHECK(exited["stopped_by_us"] == false);
  CHECK(exited["restart_in_ms"] == 0);
  const Json again = cluster.next("actor_started", "cpu0");
  CHECK(again["incarnation"] == 2);
  CHECK(again["pid"] != victim);
  cluster.wait_ready(1);
  {
    LineStation client(client_options(cluster));
    REQUIRE(client.open());
    reports(client, {"exited cpu0#1 9", "started cpu0#2"});
  }
  cluster.drop_lifeline();
  cluster.next("actor_exited", "cpu0");
  std::istringstream log(cluster.log_of("cpu0"));
  for (std::string line; std::getline(log, line);) CHECK(line == "fds: 0 1 2");
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
}

TEST_CASE("a device that always fails is given up with its last words; the cluster goes on") {
  TempDir root;
  Cluster cluster(root.path(), {.restarts_max = 2, .environment = {"FAKE_cpu1=fail"}});
  for (int i = 1; i <= 3; ++i) {
    const Json exited = cluster.next("actor_exited", "cpu1");
    CHECK(exited["incarnation"] == i);
    CHECK(exited["code"] == 3);
    CHECK(exited["log_tail"].get<std::string>().find("this device has a reason") != std::string::npos);
    CHECK((exited["restart_in_ms"] == -1) == (i == 3));
  }
  LineStation client(client_options(cluster));
  REQUIRE(client.open());
  reports(client, {"exited cpu1#3 3"});
  cluster.process().signal(SIGINT);
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
}

TEST_CASE("a program that is missing is named") {
  TempDir root;
  SECTION("of a device: the cluster stays, for the coordinator to say so") {
    Cluster cluster(root.path(), {.environment = {"FAKE_DEVICE_BINARY=/nonexistent/device"}});
    const Json exited = cluster.next("actor_exited", "cpu0");
    CHECK(exited["cause"] == "could not be started");
    CHECK(exited["restart_in_ms"] == -1);
    CHECK(exited["log_tail"].get<std::string>().find("/nonexistent/device") != std::string::npos);
    cluster.drop_lifeline();
    cluster.next("stopped");
  }
  SECTION("of the coordinator: nothing stays") {
    Cluster cluster(root.path(), {.environment = {"FAKE_COORDINATOR_BINARY=/nonexistent/callboard"}});
    const Json failed = cluster.next("failed");
    CHECK(failed["error"]["message"].get<std::string>().find("/nonexistent/callboard") != std::string::npos);
    CHECK(cluster.exit_code() == kNodeFailedExit);
    for (const auto& [name, pid] : cluster.pids) CHECK(ends(pid));
  }
}

TEST_CASE("the end of the coordinator ends the cluster as a failure, and the logs stay") {
  TempDir root;
  Cluster cluster(root.path());
  cluster.next("started");
  REQUIRE(::kill(static_cast<pid_t>(cluster.pids.at("coordinator")), SIGABRT) == 0);
  const Json failed = cluster.next("failed");
  CHECK(failed["error"]["name"] == "coordinator_lost");
  CHECK(failed["error"]["message"].get<std::string>().find("signal 6") != std::string::npos);
  CHECK(failed["logs"] == cluster.run_dir() + "/logs");
  CHECK(cluster.exit_code() == kNodeFailedExit);
  CHECK(fs::exists(cluster.run_dir() + "/logs/cpu0.log"));
  CHECK_FALSE(fs::exists(cluster.run_dir() + "/cluster.json"));
  CHECK_FALSE(fs::exists(cluster.run_dir() + "/coordinator.sock"));
  for (const auto& [name, pid] : cluster.pids) CHECK(ends(pid));

  Cluster again(root.path());
  again.next("started");
  again.drop_lifeline();
  again.next("stopped");
  CHECK(again.exit_code() == kNodeStoppedExit);
  CHECK_FALSE(fs::exists(again.run_dir()));
}

TEST_CASE("the end of the lifeline ends everything") {
  TempDir root;
  Cluster cluster(root.path());
  cluster.next("started");
  cluster.drop_lifeline();
  cluster.next("stopping");
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
  for (const auto& [name, pid] : cluster.pids) CHECK(ends(pid));
}

TEST_CASE("children end with the node actor when it is killed, and the next start sweeps up") {
  TempDir root;
  Cluster cluster(root.path());
  cluster.next("started");
  cluster.process().signal(SIGKILL);
  CHECK(cluster.exit_code() == -SIGKILL);
  for (const auto& [name, pid] : cluster.pids) CHECK(ends(pid));
  Cluster again(root.path());
  again.next("started");
  again.drop_lifeline();
  again.next("stopped");
}

TEST_CASE("R54: the same cluster a second time is refused with the owner's pid, and the first is unharmed") {
  TempDir root;
  Cluster first(root.path());
  first.next("started");
  {
    Cluster second(root.path());
    const Json failed = second.next("failed");
    CHECK(failed["error"]["name"] == "address_in_use");
    CHECK(failed["error"]["message"].get<std::string>().find("pid " + std::to_string(first.process().pid())) !=
          std::string::npos);
    CHECK(second.exit_code() == kNodeFailedExit);
  }
  LineStation client(client_options(first));
  REQUIRE(client.open());
  reports(client, {"started cpu1#1"});
  first.drop_lifeline();
  first.next("stopped");
}

TEST_CASE("a device that does not obey is killed within the grace time") {
  TempDir root;
  Cluster cluster(root.path(), {.grace_ms = 500, .environment = {"FAKE_cpu0=stubborn"}});
  cluster.next("started");
  cluster.wait_ready(2);
  cluster.drop_lifeline();
  const Json exited = cluster.next("actor_exited", "cpu0");
  CHECK(exited["cause"] == "signal 9 (Killed)");
  CHECK(exited["stopped_by_us"] == true);
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
}

TEST_CASE("a second signal does not wait for the grace time") {
  TempDir root;
  Cluster cluster(root.path(), {.grace_ms = 600'000, .environment = {"FAKE_cpu0=stubborn"}});
  cluster.next("started");
  cluster.wait_ready(2);
  cluster.process().signal(SIGINT);
  cluster.next("stopping");
  cluster.process().signal(SIGINT);
  CHECK(cluster.next("actor_exited", "cpu0")["cause"] == "signal 9 (Killed)");
  cluster.next("stopped");
}

TEST_CASE("helpers that a device left behind end with the cluster") {
  TempDir root;
  Cluster cluster(root.path(), {.devices = 1, .environment = {"FAKE_cpu0=orphan"}});
  cluster.next("started");
  cluster.wait_ready(1);
  REQUIRE(::kill(static_cast<pid_t>(cluster.pids.at("cpu0")), SIGKILL) == 0);
  cluster.next("actor_started", "cpu0");
  cluster.wait_ready(1);
  REQUIRE(::kill(static_cast<pid_t>(cluster.pids.at("cpu0")), SIGKILL) == 0);
  cluster.next("actor_exited", "cpu0");
  std::vector<std::int64_t> orphans;
  std::istringstream log(cluster.log_of("cpu0"));
  for (std::string line; std::getline(log, line);) {
    if (line.starts_with("orphan ")) orphans.push_back(std::stoll(line.substr(7)));
  }
  CHECK(orphans.size() == 2);
  cluster.drop_lifeline();
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
  for (const std::int64_t pid : orphans) CHECK(ends(pid));
}

TEST_CASE("the coordinator's orders are obeyed: one actor again, then all at an end") {
  TempDir root;
  Cluster cluster(root.path());
  cluster.next("started");
  LineStation client(client_options(cluster));
  REQUIRE(client.open());
  reports(client, {"started cpu1#1"});  // the coordinator and the node actor know each other
  REQUIRE(client.send(Operation{1, "restart", "cpu1"}));
  const Json exited = cluster.next("actor_exited", "cpu1");
  CHECK(exited["stopped_by_us"] == true);
  CHECK(exited["restart_in_ms"] == 0);
  CHECK(cluster.next("actor_started", "cpu1")["incarnation"] == 2);
  REQUIRE(client.send(Operation{2, "shutdown", ""}));
  CHECK(cluster.next("stopping")["text"].get<std::string>().find("a test asked for it") != std::string::npos);
  cluster.next("stopped");
  CHECK(cluster.exit_code() == kNodeStoppedExit);
}

}  // namespace
}  // namespace callboard::actors
