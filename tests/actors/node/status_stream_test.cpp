#include "actors/node/status_stream.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include <nlohmann/json.hpp>

#include "tests/support/test.h"

namespace callboard::actors {
namespace {

using Json = nlohmann::json;

TEST_CASE("an event is one line of JSON, whatever a log may hold") {
  NodeEvent event{NodeEvent::Kind::kActorExited};
  event.exit.who = {"cpu0", 3};
  event.exit.pid = 17;
  event.exit.signalled = true;
  event.exit.code = SIGKILL;
  event.exit.log_tail = "two\nlines \"quoted\" \xff";
  event.exit.restart_in_ms = 200;
  const std::string line = to_json_line(event);
  CHECK(line.find('\n') == std::string::npos);
  const Json json = Json::parse(line);
  CHECK(json["event"] == "actor_exited");
  CHECK(json["name"] == "cpu0");
  CHECK(json["incarnation"] == 3);
  CHECK(json["cause"] == "signal 9 (Killed)");
  CHECK(json["restart_in_ms"] == 200);
  CHECK(json["by_itself"] == false);  // somebody killed it
  CHECK(exit_text(event.exit) == "cpu0#3: signal 9 (Killed)");

  event.exit.code = SIGSEGV;
  CHECK(Json::parse(to_json_line(event))["by_itself"] == true);
  event.exit.signalled = false;
  event.exit.code = 3;
  CHECK(Json::parse(to_json_line(event))["by_itself"] == true);

  NodeEvent failed{NodeEvent::Kind::kFailed};
  failed.error = Error(ErrorCode::kAddressInUse, "taken", "choose another");
  failed.logs = "/somewhere";
  const Json told = Json::parse(to_json_line(failed));
  CHECK(told["error"]["code"] == 601);
  CHECK(told["error"]["hint"] == "choose another");
  CHECK(told["logs"] == "/somewhere");
}

TEST_CASE("a reader that does not read, or has gone, holds nobody up") {
  ::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  UniqueFd read(ends[0]);
  StatusStream stream{UniqueFd(ends[1])};
  NodeEvent event{NodeEvent::Kind::kStopping};
  event.text = std::string(10'000, 'x');
  for (int i = 0; i < 1'000; ++i) stream.write(event);  // far more than the pipe and the memory for it
  char byte = 0;
  CHECK(::read(read.get(), &byte, 1) == 1);
  CHECK(byte == '{');
  read.reset();
  stream.write(event);
  stream.finish();
  stream.write(event);
  StatusStream nobody{UniqueFd()};
  nobody.write(event);
  nobody.finish();
}

}  // namespace
}  // namespace callboard::actors
