#include "actors/node/supervisor.h"

#include <signal.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(1'000)};

SupervisorOptions options_for(std::vector<std::string> devices) {
  SupervisorOptions options;
  options.devices = std::move(devices);
  return options;
}

/// Plays the shell: spawns at once, keeps what lives, remembers what was reported.
class Stage {
 public:
  explicit Stage(SupervisorOptions options) : supervisor_(Supervisor::create(std::move(options))) {}

  void step(Supervisor::Event event) {
    auto actions = supervisor_->step(event, now);
    for (auto& action : actions) {
      if (const auto* spawn = std::get_if<Supervisor::Spawn>(&action)) on_spawn(spawn->who);
      if (const auto* signal = std::get_if<Supervisor::Signal>(&action)) signals.push_back(*signal);
      if (const auto* report = std::get_if<Supervisor::Report>(&action)) on_report(report->message);
      if (const auto* end = std::get_if<Supervisor::Finished>(&action)) finished.push_back(*end);
    }
    std::vector<Supervisor::Event> next;
    next.swap(queued_);
    for (const auto& e : next) step(e);
  }

  void ends(const std::string& name, int signal = SIGKILL) {
    REQUIRE(alive.contains(name));
    const ActorId who{name, alive.at(name).first};
    ActorExited report;
    report.who = who;
    report.pid = alive.at(name).second;
    report.signalled = signal != 0;
    report.code = signal;
    report.log_tail = "last words of " + name;
    alive.erase(name);
    step(Supervisor::Exited{who, report});
  }

  /// Lets time pass, with the ticks that are asked for.
  void pass(Duration wait) {
    const TimePoint until = now + wait;
    while (supervisor_->next_tick() <= until) {
      now = std::max(now, supervisor_->next_tick());
      const TimePoint before = supervisor_->next_tick();
      step(Supervisor::Tick{});
      REQUIRE(supervisor_->next_tick() > before);  // or the shell would spin
    }
    now = until;
  }

  const ActorExited& last_exit(const std::string& name) const { return exits.at(name).back(); }

  TimePoint now = kStart;
  std::map<std::string, std::pair<Incarnation, std::int64_t>> alive;
  std::map<std::string, std::vector<Incarnation>> started;  // Spawn actions
  std::map<std::string, std::vector<ActorExited>> exits;    // reports
  std::vector<Supervisor::Signal> signals;
  std::vector<Supervisor::Finished> finished;
  std::map<std::string, Error> refuse_to_spawn;
  Supervisor& supervisor() { return *supervisor_; }

 private:
  void on_spawn(const ActorId& who) {
    REQUIRE_FALSE(alive.contains(who.name));                                              // SV-1
    if (!started[who.name].empty()) REQUIRE(who.incarnation > started[who.name].back());  // SV-1
    started[who.name].push_back(who.incarnation);
    if (refuse_to_spawn.contains(who.name)) {
      queued_.push_back(Supervisor::SpawnFailed{who, refuse_to_spawn.at(who.name)});
      return;
    }
    alive[who.name] = {who.incarnation, ++pids_};
    queued_.push_back(Supervisor::Spawned{who, pids_});
  }
  void on_report(const Message& message) {
    if (const auto* exited = std::get_if<ActorExited>(&message)) exits[exited->who.name].push_back(*exited);
  }

  std::unique_ptr<Supervisor> supervisor_;
  std::vector<Supervisor::Event> queued_;
  std::int64_t pids_ = 100;
};

TEST_CASE("start brings up the coordinator and all devices at once") {
  Stage stage(options_for({"cpu0", "cpu1"}));
  stage.step(Supervisor::Start{});
  CHECK(stage.alive.size() == 3);
  CHECK(stage.started["coordinator"] == std::vector<Incarnation>{1});
  CHECK(stage.supervisor().next_tick() == kNever);
  stage.step(Supervisor::Start{});
  CHECK(stage.started["cpu0"].size() == 1);
}

TEST_CASE("SV-1, SV-2: whatever happens, one process for each name, growing incarnations, one exit for each start") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    SupervisorOptions options = options_for({"cpu0", "cpu1", "cpu2"});
    options.seed = seed;
    options.restarts_max = random() % 6;
    Stage stage(options);
    stage.step(Supervisor::Start{});
    const std::vector<std::string> names{"cpu0", "cpu1", "cpu2"};
    for (int i = 0; i < 60; ++i) {
      const std::string& name = names[random() % 3];
      switch (random() % 6) {
        case 0:
        case 1:
          if (stage.alive.contains(name)) stage.ends(name);
          break;
        case 2:
          stage.pass(milliseconds(random() % 5'000));
          break;
        case 3:
          stage.step(
              Supervisor::StopOne{{name, random() % 2 == 0 ? 0 : random() % 5}, random() % 2 == 0, random() % 2 == 0});
          break;
        case 4:
          if (random() % 8 == 0) stage.step(Supervisor::Stop{random() % 2 == 0});
          break;
        default:
          stage.step(Supervisor::Exited{{name, random() % 4 + 1'000}, {}});
          break;  // of nobody we know
      }
    }
    stage.step(Supervisor::Stop{});
    stage.pass(seconds(10));
    for (const auto& name : names) {
      if (stage.alive.contains(name)) stage.ends(name);
    }
    stage.pass(seconds(1));
    if (stage.alive.contains("coordinator")) stage.ends("coordinator");
    CHECK(stage.finished.size() == 1);
    for (const auto& [name, incarnations] : stage.started) {
      std::set<Incarnation> ended;
      for (const ActorExited& report : stage.exits[name]) ended.insert(report.who.incarnation);
      REQUIRE(stage.exits[name].size() == incarnations.size());
      REQUIRE(ended == std::set<Incarnation>(incarnations.begin(), incarnations.end()));
    }
  }
}

TEST_CASE("the first restart is immediate, later ones back off with a jitter of a fifth") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  stage.ends("cpu0");
  CHECK(stage.last_exit("cpu0").restart_in_ms == 0);
  CHECK(stage.last_exit("cpu0").log_tail == "last words of cpu0");
  CHECK_FALSE(stage.last_exit("cpu0").stopped_by_us);
  REQUIRE(stage.alive.contains("cpu0"));
  std::int64_t expected = 200;
  for (int i = 0; i < 4; ++i) {
    stage.ends("cpu0");
    const std::int64_t wait = stage.last_exit("cpu0").restart_in_ms;
    CHECK(wait >= expected * 8 / 10 - 1);
    CHECK(wait <= expected * 12 / 10);
    CHECK_FALSE(stage.alive.contains("cpu0"));
    stage.pass(milliseconds(wait + 1));
    REQUIRE(stage.alive.contains("cpu0"));
    expected *= 2;
  }
}

TEST_CASE("SV-3: more restarts than allowed within the window end them, with the last cause") {
  Stage stage(options_for({"cpu0", "cpu1"}));
  stage.step(Supervisor::Start{});
  for (int i = 0; i < 5; ++i) {
    stage.ends("cpu0");
    stage.pass(seconds(4));
    REQUIRE(stage.alive.contains("cpu0"));
  }
  stage.ends("cpu0", SIGSEGV);
  CHECK(stage.last_exit("cpu0").restart_in_ms == -1);
  CHECK(stage.last_exit("cpu0").code == SIGSEGV);
  stage.pass(seconds(10'000));
  CHECK_FALSE(stage.alive.contains("cpu0"));
  CHECK(stage.finished.empty());  // the cluster goes on without it
  stage.ends("cpu1");
  CHECK(stage.alive.contains("cpu1"));

  SECTION("until somebody restarts it by hand, with a budget of its own again") {
    stage.step(Supervisor::StopOne{{"cpu0", 0}, false, true});
    CHECK(stage.alive.contains("cpu0"));
    stage.ends("cpu0");
    CHECK(stage.last_exit("cpu0").restart_in_ms == 0);
  }
}

TEST_CASE("SV-3: restarts that are longer ago than the window are forgotten") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  for (int i = 0; i < 100; ++i) {
    stage.ends("cpu0");
    stage.pass(seconds(20));
    REQUIRE(stage.alive.contains("cpu0"));
  }
}

TEST_CASE("without a restart policy an end is final") {
  SupervisorOptions options = options_for({"cpu0"});
  options.restart = false;
  Stage stage(options);
  stage.step(Supervisor::Start{});
  stage.ends("cpu0");
  CHECK(stage.last_exit("cpu0").restart_in_ms == -1);
  CHECK(stage.supervisor().next_tick() == kNever);
}

TEST_CASE("a program that cannot be started is reported as an exit, and tried again only where that may help") {
  Stage stage(options_for({"cpu0", "cpu1"}));
  stage.refuse_to_spawn["cpu0"] = Error(ErrorCode::kStartFailed, "no such file");
  stage.refuse_to_spawn["cpu1"] = Error(ErrorCode::kResourceExhausted, "no more processes");
  stage.step(Supervisor::Start{});
  CHECK(stage.last_exit("cpu0").restart_in_ms == -1);
  CHECK(stage.last_exit("cpu0").pid == 0);
  CHECK(stage.last_exit("cpu0").log_tail.find("no such file") != std::string::npos);
  stage.pass(seconds(30));
  CHECK(stage.started["cpu0"].size() == 1);
  CHECK(stage.started["cpu1"].size() == 6);  // the first and five more
  CHECK(stage.finished.empty());
}

TEST_CASE("the end of the coordinator is the end of the cluster") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  SECTION("by a signal") { stage.ends("coordinator", SIGSEGV); }
  SECTION("in good order, but unasked") { stage.ends("coordinator", 0); }
  CHECK(stage.last_exit("coordinator").restart_in_ms == -1);
  REQUIRE(stage.signals.size() == 1);
  CHECK(stage.signals[0].signal == SIGTERM);
  CHECK(stage.signals[0].who.name == "cpu0");
  stage.ends("cpu0", SIGTERM);
  CHECK(stage.last_exit("cpu0").stopped_by_us);
  REQUIRE(stage.finished.size() == 1);
  CHECK(stage.finished[0].failed);
  CHECK(stage.finished[0].why.find("coordinator#1") != std::string::npos);
  CHECK(stage.finished[0].why.find("last words of coordinator") != std::string::npos);
}

TEST_CASE("a coordinator that cannot be started ends everything") {
  Stage stage(options_for({"cpu0"}));
  stage.refuse_to_spawn["coordinator"] = Error(ErrorCode::kStartFailed, "no such file");
  stage.step(Supervisor::Start{});
  if (stage.alive.contains("cpu0")) stage.ends("cpu0", SIGTERM);
  REQUIRE(stage.finished.size() == 1);
  CHECK(stage.finished[0].failed);
  CHECK(stage.finished[0].why.find("no such file") != std::string::npos);
}

TEST_CASE("SV-4: stop ends devices first, then the coordinator") {
  Stage stage(options_for({"cpu0", "cpu1"}));
  stage.step(Supervisor::Start{});
  stage.step(Supervisor::Stop{});
  CHECK(stage.signals.size() == 2);
  for (const auto& signal : stage.signals) CHECK(signal.signal == SIGTERM);
  stage.ends("cpu0", 0);
  CHECK(stage.signals.size() == 2);
  stage.ends("cpu1", 0);
  REQUIRE(stage.signals.size() == 3);
  CHECK(stage.signals[2].who.name == "coordinator");
  CHECK(stage.signals[2].signal == SIGTERM);
  CHECK(stage.signals[2].pid == stage.alive.at("coordinator").second);
  CHECK(stage.finished.empty());
  stage.ends("coordinator", 0);
  REQUIRE(stage.finished.size() == 1);
  CHECK_FALSE(stage.finished[0].failed);
  CHECK(stage.last_exit("cpu0").stopped_by_us);
  CHECK(stage.last_exit("coordinator").restart_in_ms == -1);
}

TEST_CASE("SV-4: what does not end is killed within the grace time") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  stage.step(Supervisor::Stop{});
  stage.pass(milliseconds(3'999));
  CHECK(stage.signals.size() == 1);
  stage.pass(milliseconds(1));
  REQUIRE(stage.signals.size() == 2);
  CHECK(stage.signals[1].signal == SIGKILL);
  stage.ends("cpu0");
  REQUIRE(stage.signals.size() == 3);
  CHECK(stage.signals[2].signal == SIGTERM);  // the coordinator's turn
  stage.pass(milliseconds(1'000));
  REQUIRE(stage.signals.size() == 4);
  CHECK(stage.signals[3].signal == SIGKILL);
  CHECK(stage.signals[3].who.name == "coordinator");
  stage.pass(seconds(100));
  CHECK(stage.signals.size() == 4);
}

TEST_CASE("SV-4: a forced stop kills all at once, also after an orderly one has begun") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  SECTION("at once") { stage.step(Supervisor::Stop{true}); }
  SECTION("on the second try") {
    stage.step(Supervisor::Stop{});
    stage.step(Supervisor::Stop{true});
  }
  std::set<std::string> killed;
  for (const auto& signal : stage.signals) {
    if (signal.signal == SIGKILL) killed.insert(signal.who.name);
  }
  CHECK(killed == std::set<std::string>{"coordinator", "cpu0"});
  stage.ends("coordinator");
  stage.ends("cpu0");
  REQUIRE(stage.finished.size() == 1);
  CHECK_FALSE(stage.finished[0].failed);
}

TEST_CASE("SV-4: nothing is started once a stop has begun") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  stage.ends("cpu0");
  stage.ends("cpu0");  // waits for its restart now
  REQUIRE_FALSE(stage.alive.contains("cpu0"));
  stage.step(Supervisor::Stop{});
  stage.step(Supervisor::StopOne{{"cpu0", 0}, false, true});
  stage.pass(seconds(100));
  CHECK_FALSE(stage.alive.contains("cpu0"));
  stage.ends("coordinator", 0);
  CHECK(stage.finished.size() == 1);
}

TEST_CASE("a stop before the start finishes at once") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Stop{});
  CHECK(stage.finished.size() == 1);
  stage.step(Supervisor::Start{});
  CHECK(stage.alive.empty());
}

TEST_CASE("one actor is stopped, or restarted, without a charge") {
  Stage stage(options_for({"cpu0"}));
  stage.step(Supervisor::Start{});
  SECTION("restarted, 20 times") {
    for (Incarnation i = 1; i <= 20; ++i) {
      stage.step(Supervisor::StopOne{{"cpu0", i}, false, true});
      CHECK(stage.signals.back().signal == SIGTERM);
      stage.ends("cpu0", SIGTERM);
      CHECK(stage.last_exit("cpu0").stopped_by_us);
      CHECK(stage.last_exit("cpu0").restart_in_ms == 0);
      REQUIRE(stage.alive.contains("cpu0"));
    }
    stage.ends("cpu0");
    CHECK(stage.last_exit("cpu0").restart_in_ms == 0);
  }
  SECTION("stopped for good") {
    stage.step(Supervisor::StopOne{{"cpu0", 1}, false, false});
    stage.ends("cpu0", SIGTERM);
    CHECK(stage.last_exit("cpu0").restart_in_ms == -1);
    CHECK_FALSE(stage.alive.contains("cpu0"));
  }
  SECTION("killed where it does not end") {
    stage.step(Supervisor::StopOne{{"cpu0", 1}, false, true});
    stage.pass(seconds(5));
    CHECK(stage.signals.back().signal == SIGKILL);
  }
  SECTION("killed at once where asked") {
    stage.step(Supervisor::StopOne{{"cpu0", 1}, true, true});
    CHECK(stage.signals.back().signal == SIGKILL);
  }
  SECTION("but not an incarnation that is gone, nor the coordinator, nor a stranger") {
    stage.step(Supervisor::StopOne{{"cpu0", 7}, true, true});
    stage.step(Supervisor::StopOne{{"coordinator", 1}, true, true});
    stage.step(Supervisor::StopOne{{"cpu9", 0}, true, true});
    CHECK(stage.signals.empty());
  }
}

}  // namespace
}  // namespace callboard::actors
