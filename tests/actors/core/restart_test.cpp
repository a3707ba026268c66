// Children that come and go while other threads of this process use the network.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/core/process.h"
#include "messages/base/fd.h"
#include "tests/actors/core/station.h"
#include "tests/actors/core/temp_dir.h"
#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using test::HubStation;
using test::kPatience;
using test::LineStation;
using test::Seen;

constexpr int kSenders = 4;
constexpr int kReportFd = 5;
#if defined(CALLBOARD_SANITIZED)
constexpr Incarnation kRestarts = 10;  // ten times slower
#else
constexpr Incarnation kRestarts = 100;
#endif

std::string sender_name(int index) { return "sender-" + std::to_string(index); }

/// "0 1 2 5": what /proc/self/fd lists, without the descriptor that reads it.
std::string open_descriptors() {
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return "no /proc/self/fd";
  std::set<int> found;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') found.insert(std::atoi(entry->d_name));
  }
  found.erase(::dirfd(dir));
  ::closedir(dir);
  std::string text;
  for (int fd : found) text += (text.empty() ? "" : " ") + std::to_string(fd);
  return text;
}

/// One thread's Line: each message is answered by the hub before the next one goes.
struct Sender {
  Sender(int index, const std::string& endpoint) : name(sender_name(index)), line(options(index, endpoint)) {}

  static Line::Options options(int index, const std::string& endpoint) {
    Line::Options options = test::line_options(endpoint, ActorId{sender_name(index), 1});
    options.hello.role = Role::kClient;
    return options;
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested() && wrong.empty()) {
      if (const Status sent = line.send(Operation{++count, name, ""}); !sent) {
        wrong = sent.error().message;
        return;
      }
      const auto answer = line.events().next_of(Seen::Kind::kMessage);
      if (!answer || std::get<Operation>(*answer->message).request != count) wrong = "an answer is missing";
    }
  }

  const std::string name;
  LineStation line;
  std::uint64_t count = 0;
  std::string wrong;
};

/// On the hub's thread: answers the senders and passes what they send on to the child that is there.
struct Relay {
  explicit Relay(HubStation& hub) {
    hub.admit = [this](const Hello& hello) -> Status {
      if (hello.role == Role::kDevice) child = hello.who;
      return {};
    };
    hub.on_message = [this](Hub& h, const ActorId& from, const Message& message) {
      if (from.name == child.name) return;
      if (const Status answered = h.send(from, message); !answered) wrong = answered.error().message;
      if (child.incarnation == 0) return;
      const Status passed = h.send(child, message);
      ++(passed ? accepted : refused);
      if (!passed && passed.error().message.find(child.to_string()) == std::string::npos) {
        wrong = passed.error().message;
      }
    };
  }

  ActorId child{"cpu0", 0};
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  std::string wrong;
};

/// This program as the child: says which descriptors it was born with, then that all senders reach it.
TEST_CASE("the restarted process", "[.restarted]") {
  const std::string born_with = open_descriptors() + "\n";
  REQUIRE(::write(kReportFd, born_with.data(), born_with.size()) == static_cast<ssize_t>(born_with.size()));
  const char* endpoint = std::getenv("CALLBOARD_TEST_ENDPOINT");
  const char* incarnation = std::getenv("CALLBOARD_TEST_INCARNATION");
  REQUIRE(endpoint != nullptr);
  REQUIRE(incarnation != nullptr);
  LineStation line(test::line_options(endpoint, ActorId{"cpu0", std::strtoull(incarnation, nullptr, 10)}));
  REQUIRE(line.open());
  std::set<std::string> heard;
  while (heard.size() < kSenders) {
    const auto seen = line.events().next_of(Seen::Kind::kMessage);
    REQUIRE(seen);
    heard.insert(std::get<Operation>(*seen->message).name);
  }
  REQUIRE(line.send(Operation{1, "heard all", ""}));
  line.events().next_of(Seen::Kind::kLost);  // until the parent ends this process, or is gone
}

struct Child {
  Child(Incarnation incarnation, const std::string& endpoint) : id{"cpu0", incarnation} {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    report.reset(ends[0]);
    UniqueFd writing(ends[1]);
    SpawnOptions options;
    options.program = "/proc/self/exe";
    options.arguments = {"[.restarted]"};
    options.environment = environment_with(
        {"CALLBOARD_TEST_ENDPOINT=" + endpoint, "CALLBOARD_TEST_INCARNATION=" + std::to_string(incarnation)});
    options.fds = {{writing.get(), kReportFd}};
    auto spawned = Process::spawn(options);
    REQUIRE(spawned);
    process.emplace(std::move(*spawned));
  }

  std::string born_with() {
    std::string text;
    char byte = 0;
    while (::read(report.get(), &byte, 1) == 1 && byte != '\n') text += byte;
    return text;
  }

  const ActorId id;
  UniqueFd report;
  std::optional<Process> process;
};

bool wait_until_heard(HubStation& hub, const ActorId& child) {
  const TimePoint deadline = after(Clock::now(), kPatience);
  while (const auto seen = hub.events().next(deadline - Clock::now())) {
    if (seen->kind == Seen::Kind::kMessage && seen->who == child) return true;
  }
  return false;
}

TEST_CASE("R57: children that are restarted while threads send inherit nothing, and no message is lost") {
  test::TempDir dir;
  const std::string endpoint = "ipc://" + dir.file("hub.sock");
  UniqueFd leaky(::open("/dev/null", O_RDONLY));  // not close-on-exec, as some library would do it
  HubStation hub(test::hub_options(endpoint));
  Relay relay(hub);
  REQUIRE(hub.open());
  std::vector<std::unique_ptr<Sender>> senders;
  for (int i = 0; i < kSenders; ++i) {
    senders.push_back(std::make_unique<Sender>(i, endpoint));
    REQUIRE(senders.back()->line.open());
  }
  std::vector<std::jthread> threads;
  for (const auto& sender : senders) {
    threads.emplace_back([&s = *sender](const std::stop_token& stop) { s.run(stop); });
  }

  Incarnation restarted = 0;
  for (; restarted < kRestarts; ++restarted) {
    Child child(restarted + 1, endpoint);
    const std::string descriptors = child.born_with();
    const bool heard = wait_until_heard(hub, child.id);
    child.process->signal(SIGKILL);
    const auto exit = child.process->reap_until(after(Clock::now(), kPatience));
    hub.forget(child.id);
    CHECK(descriptors == "0 1 2 5");
    CHECK(heard);
    CHECK((exit && exit->code == SIGKILL));
    if (descriptors != "0 1 2 5" || !heard || !exit) break;
  }
  threads.clear();

  CHECK(restarted == kRestarts);
  std::uint64_t sent = 0;
  for (const auto& sender : senders) {
    CHECK(sender->wrong.empty());
    CHECK(sender->count >= restarted);  // each child heard each of them
    sent += sender->count;
  }
  hub.station().call([&] {
    CHECK(relay.wrong.empty());
    CHECK(relay.accepted >= restarted * kSenders);
    CHECK(relay.accepted + relay.refused <= sent);
  });
}

}  // namespace
}  // namespace callboard::actors
