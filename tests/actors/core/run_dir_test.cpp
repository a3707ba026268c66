#include "actors/core/run_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "actors/core/process.h"
#include "actors/core/transport.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_, value->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

struct Root {
  TempDir dir;
  Variable variable{"CALLBOARD_RUN_DIR", dir.path()};
};

ClusterRecord record_for(const RunDir& dir, const std::string& name) {
  ClusterRecord record;
  record.name = name;
  record.run_dir = dir.path;
  record.node_pid = ::getpid();
  record.epoch = 1;
  record.coordinator_endpoint = "ipc://" + dir.path + "/coordinator.sock";
  record.memory_socket = dir.path + "/memory.sock";
  record.version = "0.1.0";
  return record;
}

void touch(const std::string& path) { std::ofstream(path) << "left behind"; }

TEST_CASE("a run directory is ours alone and goes when it is removed") {
  Root root;
  auto dir = claim_run_dir("lab-a");
  REQUIRE(dir);
  CHECK(dir->path == root.dir.path() + "/lab-a");
  struct stat info = {};
  REQUIRE(::stat(dir->path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  touch(dir->path + "/something");
  remove_run_dir(*dir);
  CHECK_FALSE(fs::exists(dir->path));
}

TEST_CASE("logs stay where they are asked for, and the next claim sweeps them") {
  Root root;
  auto dir = claim_run_dir("lab");
  REQUIRE(dir);
  fs::create_directory(dir->path + "/logs");
  touch(dir->path + "/logs/cpu0.log");
  touch(dir->path + "/cluster.yaml");
  remove_run_dir(*dir, true);
  dir->lock.reset();
  CHECK(fs::exists(dir->path + "/logs/cpu0.log"));
  CHECK_FALSE(fs::exists(dir->path + "/cluster.yaml"));
  auto again = claim_run_dir("lab");
  REQUIRE(again);
  CHECK_FALSE(fs::exists(again->path + "/logs"));
}

TEST_CASE("R54: a name in use is refused with the pid of its owner, who is unharmed") {
  Root root;
  auto first = claim_run_dir("lab");
  REQUIRE(first);
  touch(first->path + "/coordinator.sock");
  auto second = claim_run_dir("lab");
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kAddressInUse);
  CHECK(second.error().message.find("pid " + std::to_string(::getpid())) != std::string::npos);
  CHECK(fs::exists(first->path + "/coordinator.sock"));
  CHECK(claim_run_dir("other"));
}

TEST_CASE("R54: what a dead owner left is swept away") {
  Root root;
  {
    auto dead = claim_run_dir("lab");
    REQUIRE(dead);
    touch(dead->path + "/coordinator.sock");
    fs::create_directories(dead->path + "/logs/old");
    REQUIRE(write_record(record_for(*dead, "lab")));
  }  // the lock goes as it does when a process is killed; nothing is tidied up
  CHECK(list_clusters().empty());
  CHECK(find_cluster("lab").error().code == ErrorCode::kClusterNotFound);
  auto next = claim_run_dir("lab");
  REQUIRE(next);
  CHECK_FALSE(fs::exists(next->path + "/coordinator.sock"));
  CHECK_FALSE(fs::exists(next->path + "/logs"));
  CHECK_FALSE(fs::exists(next->path + "/cluster.json"));
}

TEST_CASE("a lock is not inherited by children that outlive their parent's interest") {
  Root root;
  SpawnOptions sleeper;
  sleeper.program = "/bin/sh";
  sleeper.arguments = {"-c", "exec sleep 1000"};
  std::optional<Process> child;
  {
    auto dir = claim_run_dir("lab");
    REQUIRE(dir);
    auto spawned = Process::spawn(sleeper);
    REQUIRE(spawned);
    child.emplace(std::move(*spawned));
  }
  CHECK(claim_run_dir("lab"));
}

/// What a killed node actor leaves.
std::string dead_cluster(const std::string& name) {
  auto dead = claim_run_dir(name);
  REQUIRE(dead);
  touch(dead->path + "/cluster.yaml");
  fs::create_directory(dead->path + "/logs");
  touch(dead->path + "/logs/cpu0.log");
  REQUIRE(write_record(record_for(*dead, name)));
  return dead->path;
}

TEST_CASE("what killed clusters left is swept, with a line for each, and nothing else is") {
  Root root;
  const std::string dead = dead_cluster("dead");
  auto alive = claim_run_dir("alive");
  REQUIRE(alive);
  touch(alive->path + "/cluster.yaml");
  const auto make = [&](const std::string& name) {
    fs::create_directory(root.dir.file(name));
    fs::permissions(root.dir.file(name), fs::perms(0700));
    return root.dir.file(name);
  };
  const std::string unlocked = make("results");  // the user's own: there is no lock
  touch(unlocked + "/cluster.yaml");
  const std::string mixed = make("mixed");
  touch(mixed + "/lock");
  touch(mixed + "/thesis.tex");
  const std::string open_to_all = make("shared");
  touch(open_to_all + "/lock");
  fs::permissions(open_to_all, fs::perms(0755));
  touch(root.dir.file("file"));

  const auto listed = list_dead_run_dirs();
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].name == "dead");
  CHECK(listed[0].path == dead);

  const auto first = sweep_dead_run_dirs(true);
  REQUIRE(first.size() == 1);
  CHECK(first[0].find(dead + ": ") == 0);
  CHECK(first[0].find("cluster.json") != std::string::npos);
  CHECK(fs::exists(dead + "/logs/cpu0.log"));
  CHECK_FALSE(fs::exists(dead + "/cluster.yaml"));
  CHECK(sweep_dead_run_dirs(true).empty());

  const auto second = sweep_dead_run_dirs();
  REQUIRE(second.size() == 1);
  CHECK(second[0].find("logs") != std::string::npos);
  CHECK_FALSE(fs::exists(dead));
  CHECK(sweep_dead_run_dirs().empty());
  for (const std::string& kept : {alive->path + "/cluster.yaml", unlocked + "/cluster.yaml", mixed + "/thesis.tex",
                                  open_to_all + "/lock", root.dir.file("file")}) {
    INFO(kept);
    CHECK(fs::exists(kept));
  }
}

TEST_CASE("the logs of a failed cluster are swept by their lock file") {
  Root root;
  {
    auto failed = claim_run_dir("failed");
    REQUIRE(failed);
    fs::create_directory(failed->path + "/logs");
    touch(failed->path + "/logs/cpu0.log");
    remove_run_dir(*failed, true);
    CHECK(sweep_dead_run_dirs().empty());  // its owner is about to end
  }
  CHECK(list_dead_run_dirs().size() == 1);
  CHECK(sweep_dead_run_dirs().size() == 1);
  CHECK_FALSE(fs::exists(root.dir.file("failed")));
}

TEST_CASE("claims and sweeps at the same time: each claim gets its directory, and keeps it") {
  Root root;
  std::atomic<bool> done{false};
  std::thread sweeper([&] {
    while (!done) sweep_dead_run_dirs();
  });
  int claimed = 0;
  int kept = 0;
  for (int round = 0; round < 100; ++round) {
    auto dir = claim_run_dir("lab");
    if (!dir) continue;
    ++claimed;
    touch(dir->path + "/cluster.yaml");
    kept += fs::exists(dir->path + "/cluster.yaml") && fs::exists(dir->path + "/lock") ? 1 : 0;
    if (round % 2 == 0) {
      remove_run_dir(*dir);
    } else {
      // As after a kill: the lock goes, the rest stays. The number of a process that has ended stands in it.
      std::ofstream(dir->path + "/lock") << "999999999\n";
    }
  }
  done = true;
  sweeper.join();
  CHECK(claimed == 100);
  CHECK(kept == 100);
}

TEST_CASE("names of clusters have one grammar") {
  Root root;
  for (const char* good : {"a", "lab-a", "0", "a-", "abcdefghijabcdefghijabcdefghijabcdefghij"}) {
    INFO(good);
    CHECK(claim_run_dir(good));
  }
  for (const char* bad :
       {"", "-a", "A", "a.b", "..", ".", "a/b", "a b", "ä", "a_b", "abcdefghijabcdefghijabcdefghijabcdefghijx"}) {
    INFO(bad);
    const auto refused = claim_run_dir(bad);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kConfigOutOfRange);
  }
}

TEST_CASE("R53: a run directory that leaves no room for sockets is refused before anything is made") {
  TempDir dir;
  const std::string deep = dir.path() + "/" + std::string(90, 'd');
  Variable variable("CALLBOARD_RUN_DIR", deep);
  const auto refused = claim_run_dir("lab");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kConfigOutOfRange);
  CHECK(refused.error().message.find(deep) != std::string::npos);
  CHECK(refused.error().message.find("107") != std::string::npos);
  CHECK_FALSE(fs::exists(deep));
}

TEST_CASE("the root is a directory of ours or is refused") {
  TempDir dir;
  SECTION("it is made, with its parents") {
    Variable variable("CALLBOARD_RUN_DIR", dir.file("a/b"));
    const auto root = run_root();
    REQUIRE(root);
    struct stat info = {};
    REQUIRE(::stat(root->c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0700);
  }
  SECTION("open to others") {
    fs::create_directory(dir.file("open"));
    fs::permissions(dir.file("open"), fs::perms(0755));
    Variable variable("CALLBOARD_RUN_DIR", dir.file("open"));
    CHECK(run_root().error().code == ErrorCode::kPermission);
  }
  SECTION("a symbolic link") {
    fs::create_directory(dir.file("real"));
    fs::permissions(dir.file("real"), fs::perms(0700));
    fs::create_directory_symlink(dir.file("real"), dir.file("link"));
    Variable variable("CALLBOARD_RUN_DIR", dir.file("link"));
    CHECK(run_root().error().code == ErrorCode::kPermission);
  }
  SECTION("a file") {
    touch(dir.file("file"));
    Variable variable("CALLBOARD_RUN_DIR", dir.file("file"));
    CHECK_FALSE(run_root());
  }
  SECTION("from XDG_RUNTIME_DIR where nothing else is said") {
    Variable ours("CALLBOARD_RUN_DIR", std::nullopt);
    Variable xdg("XDG_RUNTIME_DIR", dir.path());
    CHECK(*run_root() == dir.path() + "/callboard");
  }
}

TEST_CASE("a cluster is found by name, by path, and alone") {
  Root root;
  CHECK(find_cluster("").error().code == ErrorCode::kClusterNotFound);
  auto a = claim_run_dir("a");
  REQUIRE(a);
  CHECK(find_cluster("a").error().code == ErrorCode::kClusterNotFound);  // claimed, not recorded yet
  const ClusterRecord written = record_for(*a, "a");
  REQUIRE(write_record(written));
  for (const std::string& wanted : {std::string(), std::string("a"), a->path}) {
    const auto found = find_cluster(wanted);
    REQUIRE(found);
    CHECK(found->name == "a");
    CHECK(found->node_pid == ::getpid());
    CHECK(found->coordinator_endpoint == written.coordinator_endpoint);
    CHECK(found->memory_socket == written.memory_socket);
    CHECK(found->epoch == 1);
    CHECK(found->version == "0.1.0");
  }
  CHECK(find_cluster(a->path + std::string("\0x", 2)).error().code == ErrorCode::kBadInput);
  auto b = claim_run_dir("b");
  REQUIRE(b);
  REQUIRE(write_record(record_for(*b, "b")));
  const auto ambiguous = find_cluster("");
  REQUIRE_FALSE(ambiguous);
  CHECK(ambiguous.error().message.find("a, b") != std::string::npos);
  CHECK(find_cluster("c").error().message.find("a, b") != std::string::npos);
  CHECK(find_cluster("../a").error().code == ErrorCode::kClusterNotFound);
  std::ofstream(b->path + "/cluster.json") << "{\"name\": 3";
  const auto damaged = find_cluster("b");  // it runs all the same
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().code == ErrorCode::kEnvironment);
  CHECK(damaged.error().message.find("process " + std::to_string(::getpid())) != std::string::npos);
  CHECK(damaged.error().hint.find("kill " + std::to_string(::getpid())) != std::string::npos);
  CHECK(find_cluster("")->name == "a");
}

TEST_CASE("R10: pids of a cluster in another pid namespace are not taken for pids of ours") {
  Root root;
  auto dir = claim_run_dir("a");
  REQUIRE(dir);
  ClusterRecord written = record_for(*dir, "a");
  written.coordinator_pid = ::getpid();
  REQUIRE(write_record(written));
  auto found = find_cluster("a");
  REQUIRE(found);
  CHECK_FALSE(found->foreign_pids);
  CHECK(found->coordinator_pid == ::getpid());

  const std::string path = dir->path + "/cluster.json";
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::string record = text.str();
  const auto at = record.find("pid:[");
  REQUIRE(at != std::string::npos);
  std::ofstream(path) << record.replace(at, 5, "pid:[9");
  found = find_cluster("a");
  REQUIRE(found);
  CHECK(found->foreign_pids);
  CHECK(found->node_pid == 0);
  CHECK(found->coordinator_pid == 0);
}

}  // namespace
}  // namespace callboard::actors
