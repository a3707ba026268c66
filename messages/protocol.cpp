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
    "release_constants",
    "test_transport", "transport_tested", "transport_chosen"};
// clang-format on
static_assert(!kMessageNames.back().empty(), "every message has a name");

}  // namespace

Message::Message() = default;
template <class T>
  requires(!std::is_same_v<T, Message>)
Message::Message(T value) : MessageVariant(std::in_place_type<T>, std::move(value)) {}

// An alternative that is missing here does not link.
template Message::Message(Hello);
template Message::Message(Welcome);
template Message::Message(Refused);
template Message::Message(Beat);
template Message::Message(Ack);
template Message::Message(Bye);
template Message::Message(LoadProgram);
template Message::Message(ProgramLoaded);
template Message::Message(UnloadProgram);
template Message::Message(Submit);
template Message::Message(Outcome);
template Message::Message(Quiesced);
template Message::Message(CancelRequest);
template Message::Message(Operation);
template Message::Message(OperationResult);
template Message::Message(ActorEvent);
template Message::Message(LoadFragment);
template Message::Message(FragmentLoaded);
template Message::Message(UnloadFragments);
template Message::Message(PeerMoved);
template Message::Message(RunFragment);
template Message::Message(FragmentFinished);
template Message::Message(CancelRun);
template Message::Message(DeviceQuery);
template Message::Message(DeviceReply);
template Message::Message(EdgeValues);
template Message::Message(ReleaseLeases);
template Message::Message(ActorStarted);
template Message::Message(ActorExited);
template Message::Message(ShutDown);
template Message::Message(StopActor);
template Message::Message(MemoryHello);
template Message::Message(MemoryWelcome);
template Message::Message(SegmentAdded);
template Message::Message(SegmentDropped);
template Message::Message(OpenSegment);
template Message::Message(SegmentOpened);
template Message::Message(HolderGone);
template Message::Message(OwnerGone);
template Message::Message(SegmentsHeld);
template Message::Message(FindConstants);
template Message::Message(ConstantsFound);
template Message::Message(AddConstants);
template Message::Message(ConstantsAdded);
template Message::Message(OpenConstant);
template Message::Message(ConstantOpened);
template Message::Message(ReleaseConstants);
template Message::Message(TestTransport);
template Message::Message(TransportTested);
template Message::Message(TransportChosen);

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
