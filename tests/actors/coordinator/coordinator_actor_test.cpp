#include "actors/coordinator/coordinator_actor.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "actors/core/process.h"
#include "actors/core/transport.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using namespace std::chrono_literals;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/callboard-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Process start_coordinator(const std::string& run_dir) {
  SpawnOptions options;
  options.program = COORDINATOR_UNDER_TEST;
  options.arguments = {run_dir};
  options.environment = environment_with({});
  options.log_file = run_dir + "/coordinator.log";
  auto process = Process::spawn(options);
  if (!process) throw std::runtime_error(process.error().to_string());
  return std::move(*process);
}

/// What the coordinator answers to one operation; an error text if it does not.
std::string ask(const std::string& run_dir, const std::string& operation) {
  const auto loop = Loop::create();
  const auto messenger = Messenger::create();
  std::string answer = "no answer";
  Line::Options options;
  options.hello.role = Role::kClient;
  options.hello.who = ActorId{"client-test", 1};
  options.hello.cluster = "under-test";
  options.endpoint = *ipc_endpoint(run_dir + "/coordinator.sock");
  Line::Events events;
  events.message = [&](const Message& message) {
    const auto* result = std::get_if<OperationResult>(&message);
    if (result == nullptr) return;
    answer = result->error ? result->error->to_string() : result->result;
    loop->stop();
  };
  events.lost = [&](const Error& why) {
    answer = why.to_string();
    loop->stop();
  };
  auto line = Line::connect(*loop, *messenger, std::move(options), std::move(events));
  REQUIRE(line);
  REQUIRE((*line)->send(Operation{1, operation, "{}"}));
  loop->in(20s, [&] { loop->stop(); });
  loop->run();
  line->reset();
  return answer;
}

#if !defined(CALLBOARD_SANITIZED)
std::uint64_t resident_kib(std::int64_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}
#endif

}  // namespace

TEST_CASE("the coordinator process answers, is small, links neither LibTorch nor Python, and ends on SIGTERM") {
  const TemporaryFolder folder;
  Process process = start_coordinator(folder.path());
  const auto status = nlohmann::json::parse(ask(folder.path(), "status"), nullptr, false);
  INFO(process.log_tail());
  REQUIRE(status.is_object());
  CHECK(status["name"] == "under-test");
  CHECK(status["ready"] == false);
  CHECK(status["actors"].size() == 3);

  std::ifstream maps("/proc/" + std::to_string(process.pid()) + "/maps");
  const std::string mapped((std::istreambuf_iterator<char>(maps)), {});
  CHECK(mapped.find("libzmq") != std::string::npos);
  for (const char* unwanted : {"libtorch", "libc10", "libpython"}) CHECK(mapped.find(unwanted) == std::string::npos);
#if !defined(CALLBOARD_SANITIZED)
  const std::uint64_t resident = resident_kib(process.pid());
  WARN("resident memory of an idle coordinator: " << resident << " KiB");
  CHECK(resident > 0);
  CHECK(resident <= 25 * 1024);
#endif

  process.signal(SIGTERM);
  const auto end = process.reap_until(Clock::now() + 20s);
  REQUIRE(end);
  CHECK_FALSE(end->signalled);
  CHECK(end->code == 0);
}

TEST_CASE("an operation that does not exist is answered with the nearest name over the wire") {
  const TemporaryFolder folder;
  const Process process = start_coordinator(folder.path());
  CHECK(ask(folder.path(), "statsu").find("did you mean 'status'?") != std::string::npos);
}

TEST_CASE("R53: a run directory that leaves no room for the socket is refused at the start") {
  const TemporaryFolder folder;
  const std::string deep = folder.path() + "/" + std::string(110, 'x');
  std::filesystem::create_directory(deep);
  Process process = start_coordinator(deep);
  const auto end = process.reap_until(Clock::now() + 20s);
  REQUIRE(end);
  CHECK(end->code == 1);
  CHECK(process.log_tail().find("107") != std::string::npos);
}

}  // namespace callboard::actors
