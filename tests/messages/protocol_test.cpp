#include "messages/protocol.h"

#include <set>

#include "tests/support/test.h"

namespace callboard {
namespace {

TEST_CASE("every message has a name of its own") {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < std::variant_size_v<Message>; ++i) CHECK(names.insert(message_name(i)).second);
  CHECK(message_name(std::variant_size_v<Message>) == "unknown_message");
}

TEST_CASE("names follow the variant's order") {
  CHECK(message_name(Message(Hello{})) == "hello");
  CHECK(message_name(Message(Submit{})) == "submit");
  CHECK(message_name(Message(ActorEvent{})) == "actor_event");
  CHECK(message_name(Message(RunFragment{})) == "run_fragment");
  CHECK(message_name(Message(DeviceReply{})) == "device_reply");
  CHECK(message_name(Message(ReleaseLeases{})) == "release_leases");
  CHECK(message_name(Message(StopActor{})) == "stop_actor");
  CHECK(message_name(Message(SegmentsHeld{})) == "segments_held");
  CHECK(message_name(Message(ReleaseConstants{})) == "release_constants");
}

TEST_CASE("roles have names") {
  CHECK(role_name(Role::kCoordinator) == "coordinator");
  CHECK(role_name(Role::kNode) == "node");
  CHECK(role_name(Role::kDevice) == "device");
  CHECK(role_name(Role::kClient) == "client");
  CHECK(role_name(static_cast<Role>(9)) == "unknown_role");
}

TEST_CASE("messages with an error are equal if their errors are") {
  Outcome a;
  a.error = Error(ErrorCode::kBadInput, "one");
  Outcome b = a;
  CHECK(a == b);
  b.error = Error(ErrorCode::kBadInput, "another");
  CHECK_FALSE(a == b);
}

}  // namespace
}  // namespace callboard
