#include "actors/coordinator/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "actors/coordinator/members.h"
#include "actors/coordinator/operation_desk.h"
#include "actors/coordinator/programs.h"
#include "actors/coordinator/runs.h"
#include "actors/coordinator/status.h"

namespace callboard::actors {
namespace {

class CoordinatorCoreImpl final : public CoordinatorCore {
 public:
  explicit CoordinatorCoreImpl(CoordinatorOptions options)
      : context_(std::move(options)),
        members_(context_),
        programs_(context_, members_),
        runs_(context_, members_, programs_),
        desk_(context_, members_, programs_, runs_) {}

  Status admit(const Hello& hello) const override { return members_.admit(hello); }

  Actions step(Event event, TimePoint now) override {
    notice_pause(now);
    std::visit([&](auto&& e) { on(std::forward<decltype(e)>(e), now); }, std::move(event));
    on_time(now);
    settle(now);
    return std::exchange(context_.out, {});
  }

  TimePoint next_tick() const override {
    return std::min({next_beat_, members_.next_due(), programs_.next_due(), runs_.next_due(), desk_.next_due()});
  }

  std::string status_json(TimePoint now) const override {
    return actors::status_json(StatusView{context_, members_, programs_, runs_, now});
  }

 private:
  // -- peers ----------------------------------------------------------------------------------------------------------

  void on(const PeerJoined& event, TimePoint now) {
    const Hello& hello = event.hello;
    if (!members_.admit(hello)) return;
    if (hello.role == Role::kNode) {
      members_.set_node(hello.who);
    } else if (hello.role == Role::kClient) {
      members_.client_joined(hello, now);
    } else if (hello.role == Role::kDevice && !members_.joined_device(hello.who)) {
      const DeviceIndex index = *members_.find_device(hello.who.name);
      if (const auto loss = members_.device_joined(index, hello, now)) device_lost(*loss);
      programs_.device_joined(index);
    }
  }

  void on(const PeerLost& event, TimePoint now) {
    if (const auto device = members_.joined_device(event.peer)) {
      members_.link_lost(*device, event.why, now);
    } else if (members_.find_client(event.peer) != nullptr) {
      client_lost(event.peer, event.why);
    } else if (members_.node() == event.peer) {
      context_.log(log::Level::kError, "node_lost", event.peer.to_string() + ": " + event.why.message);
      members_.set_node(std::nullopt);
    }
  }

  void client_lost(const ActorId& id, const Error& why) {
    context_.log(log::Level::kInfo, "client_gone", id.to_string() + ": " + why.message);
    const auto node = members_.clients().extract(id);
    desk_.client_lost(id);
    runs_.client_lost(node.mapped());
    programs_.client_lost(id);
    tell_holder_gone(id);
  }

  /// A device that started after the holder's end has not heard of it from the node actor, and may have lent to it.
  void tell_holder_gone(const ActorId& holder) {
    for (const Device& device : members_.devices()) {
      if (device.joined) context_.send(device.id, HolderGone{holder});
    }
  }

  void device_lost(const DeviceLoss& loss) {
    programs_.device_lost(loss);
    runs_.device_lost(loss);
    desk_.device_lost(loss.who, loss.error);
    if (loss.ended) tell_holder_gone(loss.who);  // after the cancels: what was cancelled lends nothing any more
  }

  void on(const SendRefused& event, TimePoint now) {
    context_.log(log::Level::kError, "not_sent",
                 std::string(message_name(event.message)) + " to " + event.to.to_string() + ": " + event.why.message);
    if (const auto* run = std::get_if<RunFragment>(&event.message)) {
      runs_.run_refused(event.to, *run, event.why, now);
    } else if (const auto* load = std::get_if<LoadFragment>(&event.message)) {
      if (const auto device = members_.joined_device(event.to)) programs_.load_refused(*device, *load, event.why);
      runs_.refuse_broken();
    } else if (const auto* outcome = std::get_if<Outcome>(&event.message)) {
      runs_.outcome_refused(event.to, *outcome, event.why);
    } else if (const auto* result = std::get_if<OperationResult>(&event.message)) {
      if (!result->error) context_.send(event.to, OperationResult{result->request, event.why, {}});
    } else if (const auto* loaded = std::get_if<ProgramLoaded>(&event.message)) {
      if (!loaded->error) context_.send(event.to, ProgramLoaded{loaded->request, event.why, {}, {}});
    }
  }

  // -- messages -------------------------------------------------------------------------------------------------------

  void on(MessageFrom&& event, TimePoint now) {
    members_.seen(event.from, event.message, now);
    if (members_.find_client(event.from) != nullptr) {
      from_client(event.from, std::move(event.message), now);
    } else if (members_.joined_device(event.from)) {
      from_device(event.from, std::move(event.message), now);
    } else if (members_.node() == event.from) {
      from_node(event.message);
    } else if (auto* late = std::get_if<FragmentFinished>(&event.message)) {
      runs_.finished(event.from, std::move(*late),
                     now);  // of a fenced incarnation: counted, its values released (CO-3)
    }
  }

  void from_client(const ActorId& from, Message&& message, TimePoint now) {
    if (auto* submit = std::get_if<Submit>(&message)) return runs_.submit(from, std::move(*submit), now);
    if (const auto* cancel = std::get_if<CancelRequest>(&message)) return runs_.cancel(from, cancel->request);
    if (auto* load = std::get_if<LoadProgram>(&message)) return programs_.load(from, std::move(*load), now);
    if (const auto* unload = std::get_if<UnloadProgram>(&message)) return programs_.unload(from, unload->program);
    if (const auto* operation = std::get_if<Operation>(&message)) return desk_.operation(from, *operation, now);
    if (!std::holds_alternative<Beat>(message)) unexpected(from, message);
  }

  void from_device(const ActorId& from, Message&& message, TimePoint now) {
    if (auto* finished = std::get_if<FragmentFinished>(&message))
      return runs_.finished(from, std::move(*finished), now);
    if (auto* loaded = std::get_if<FragmentLoaded>(&message)) {
      const bool refused = loaded->error.has_value();
      programs_.fragment_loaded(from, std::move(*loaded));
      if (refused) runs_.refuse_broken();
      return;
    }
    if (auto* chosen = std::get_if<TransportChosen>(&message)) {
      return members_.transport_chosen(*members_.joined_device(from), std::move(*chosen));
    }
    if (auto* reply = std::get_if<DeviceReply>(&message)) return desk_.device_reply(from, std::move(*reply));
    if (!std::holds_alternative<Beat>(message)) unexpected(from, message);
  }

  void from_node(const Message& message) {
    if (const auto* started = std::get_if<ActorStarted>(&message)) return members_.started(*started);
    if (const auto* exited = std::get_if<ActorExited>(&message)) {
      if (const auto loss = members_.exited(*exited)) device_lost(*loss);
      return;
    }
    if (!std::holds_alternative<Beat>(message)) unexpected(*members_.node(), message);
  }

  void unexpected(const ActorId& from, const Message& message) {
    context_.log(log::Level::kWarning, "unexpected_message",
                 std::string(message_name(message)) + " from " + from.to_string());
  }

  void on(const Tick&, TimePoint) {}

  // -- time -----------------------------------------------------------------------------------------------------------

  /// Steps come at least every beat. A longer gap means that this process stood still: its peers could not be heard.
  void notice_pause(TimePoint now) {
    if (last_step_ != kNever && now - last_step_ > context_.options.beat_dead / 2) {
      context_.log(log::Level::kWarning, "paused", "the coordinator stood still; nobody's silence counts");
      members_.forgive_silence(now);
    }
    last_step_ = now;
  }

  void on_time(TimePoint now) {
    if (next_beat_ == kNever || next_beat_ <= now) {
      members_.beat_to_all();
      next_beat_ = after(now, context_.options.beat_interval);
    }
    for (const ActorId& who : members_.silent(now)) {
      const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(context_.options.beat_dead).count();
      if (const auto device = members_.joined_device(who)) {
        if (members_.node()) context_.send(*members_.node(), StopActor{who, true, true});
        members_.link_lost(*device, Error(ErrorCode::kPeerLost, who.to_string() + " gave no sign of life for " +
                                                                    std::to_string(silence) + " ms"), now);
      } else {
        context_.forget(who);
        client_lost(who, Error(ErrorCode::kPeerLost, "no sign of life"));
      }
    }
    for (const DeviceLoss& loss : members_.overdue(now)) device_lost(loss);
    runs_.on_time(now);
  }

  void settle(TimePoint now) {
    programs_.settle(now);
    for (DeviceIndex index = 0; index < members_.devices().size(); ++index) {
      const bool loading = members_.device(index).state == DeviceState::kLoading;
      if (loading && programs_.loading_on(index) == 0) members_.set_ready(index);
    }
    runs_.start_waiting(now);
    desk_.settle(now);
  }

  CoreContext context_;
  Members members_;
  Programs programs_;
  Runs runs_;
  OperationDesk desk_;
  TimePoint last_step_ = kNever;
  TimePoint next_beat_ = kNever;
};

}  // namespace

std::unique_ptr<CoordinatorCore> CoordinatorCore::create(CoordinatorOptions options) {
  return std::make_unique<CoordinatorCoreImpl>(std::move(options));
}

}  // namespace callboard::actors
