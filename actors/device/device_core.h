// What a device actor decides, without LibTorch, clock, sockets or threads: fragments, runs that wait for edges, leases
// to hand back. The same object runs in the device actor and in the simulator.
//
//   DC-1  Each RunFragment that arrives is answered by exactly one FragmentFinished.
//   DC-2  A run starts when all its edge inputs of the current attempt are there; edges may come before their
//   RunFragment
//         (kept, bounded, until it comes or its time is over).
//   DC-3  Every handle that arrives is either given to the kernels or released; none is forgotten.
//   DC-4  After FragmentFinished was sent, nothing of the run is read any more.
//   DC-5  The way to each process of a device in `tests_transport_to` is tested when that process is first named, and
//         ends with one TransportChosen, by the answer or without one by transport_test_wait.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "kernels/runtime.h"
#include "messages/base/clock.h"
#include "messages/base/log.h"
#include "messages/protocol.h"

namespace callboard::actors {

struct DeviceCoreOptions {
  ActorId self;
  std::size_t runs_max = limits::kRunsPerDeviceMax;
  Duration early_edge_keep = std::chrono::seconds(10);
  /// Names of the devices that could read this one's memory where it lies.
  std::set<std::string> tests_transport_to = {};
  Duration transport_test_wait = std::chrono::seconds(20);  ///< a device may be compiling or loading meanwhile
};

class DeviceCore {
 public:
  struct FromCoordinator {
    Message message;
  };
  struct FromPeer {
    ActorId from;
    Message message;
  };
  struct PeerGone {
    ActorId peer;
  };
  struct Loaded {
    ContentHash program;
    std::uint32_t fragment = 0;
    Result<kernels::LoadedInfo> info;
  };
  struct Finished {
    RunId run = 0;
    Attempt attempt = 1;
    std::uint32_t fragment = 0;
    kernels::RunResult result;
  };
  /// The answer to OfferTransport.
  struct TransportOffered {
    ActorId reader;
    std::uint64_t test = 0;
    Result<CudaIpcBlock> block;
  };
  /// The answer to AnswerTransport.
  struct TransportAnswered {
    ActorId exporter;
    TransportTested answer;
  };
  /// The answer to JudgeTransport.
  struct TransportJudged {
    std::uint64_t test = 0;
    TransportChosen chosen;
  };
  struct Tick {};
  using Event = std::variant<FromCoordinator, FromPeer, PeerGone, Loaded, Finished, TransportOffered, TransportAnswered,
                             TransportJudged, Tick>;

  struct SendCoordinator {
    Message message;
  };
  struct SendPeer {
    PeerAddress peer;
    Message message;
  };  ///< the shell connects a Line when it has none
  struct AnswerPeer {
    ActorId peer;
    Message message;
  };  ///< over the link by which it came to us
  struct Load {
    Fragment fragment;
  };
  struct Unload {
    ContentHash program;
  };
  struct Run {
    kernels::RunOrder order;
  };  ///< the shell answers Finished also when run() refuses
  struct Cancel {
    RunId run = 0;
    Error reason;
  };
  struct Release {
    WireValue value;
  };  ///< of another owner: give its lease back unread
  struct ReleaseOwn {
    std::vector<LeaseId> leases;
  };  ///< of our arena: a reader gave them back
  struct EndHolder {
    ActorId holder;
  };  ///< of leases on our arena: its process is gone
  struct Query {
    DeviceQuery query;
  };  ///< the shell answers with DeviceReply
  struct OfferTransport {
    ActorId reader;
    std::uint64_t test = 0;
  };
  struct AnswerTransport {
    ActorId exporter;
    TestTransport order;
  };
  /// Ends the offer to this reader, whatever there is of it.
  struct JudgeTransport {
    ActorId reader;
    TransportTested answer;
  };
  struct LogLine {
    log::Level level;
    std::string event;
    std::string text;
  };
  using Action = std::variant<SendCoordinator, SendPeer, AnswerPeer, Load, Unload, Run, Cancel, Release, ReleaseOwn,
                              EndHolder, Query, OfferTransport, AnswerTransport, JudgeTransport, LogLine>;
  using Actions = std::vector<Action>;

  virtual ~DeviceCore() = default;
  static std::unique_ptr<DeviceCore> create(DeviceCoreOptions options);
  virtual Actions step(Event event, TimePoint now) = 0;
  virtual TimePoint next_tick() const = 0;
};

}  // namespace callboard::actors
