#include "messages/protocol.h"

#include <array>

namespace callboard {
namespace {

// In the order of the variant Message.
// clang-format off
constexpr std::array<std::string_view, std::variant_size_v<Message>> kMessageNames{
    "hello", "welcome", "refused", "beat", "ack", "bye",
    "load_program", "program_loaded", "unload_program", "submit", "outcome", "quiesced", "cancel_request", "operation",
    "operation_result", "actor_event",
    "load_fragment", "fragment_loaded", "unload_fragments", "peer_moved", "run_fragment", "fragment_finished",
    "cancel_run", "device_query", "device_reply",
    "edge_values", "release_leases",
    "actor_started", "actor_exited", "shut_down", "stop_actor",
    "memory_hello", "memory_welcome", "segment_added", "segment_dropped", "open_segment", "segment_opened",
    "holder_gone", "owner_gone", "segments_held",
    "find_constants", "constants_found", "add_constants", "constants_added", "open_constant", "constant_opened",
    "release_constants"};
// clang-format on
static_assert(!kMessageNames.back().empty(), "every message has a name");

}  // namespace

Message::Message() = default;
Message::Message(const Message& other) = default;
Message::Message(Message&& other) noexcept = default;
Message& Message::operator=(const Message& other) = default;
Message& Message::operator=(Message&& other) noexcept = default;
Message::~Message() = default;
bool operator==(const Message& a, const Message& b) {
  return static_cast<const MessageVariant&>(a) == static_cast<const MessageVariant&>(b);
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kCoordinator: return "coordinator";
    case Role::kNode: return "node";
    case Role::kDevice: return "device";
    case Role::kClient: return "client";
  }
  return "unknown_role";
}

std::string_view message_name(std::size_t index) {
  return index < kMessageNames.size() ? kMessageNames[index] : "unknown_message";
}

std::string_view message_name(const Message& message) { return message_name(message.index()); }

}  // namespace callboard
