// One child process of a GIL domain, seen by the device: it is started, called, stopped, and its memory comes back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "kernels/device_exchange.h"
#include "kernels/gil_domain.h"
#include "kernels/memory/arena.h"
#include "kernels/process_domain/domain_board.h"
#include "kernels/process_domain/domain_socket.h"
#include "kernels/runtime.h"
#include "kernels/stop_signal.h"

namespace callboard::kernels {

/// The owner of constants, as messages name it.
inline const ActorId kConstants{"constants", 0};

/// What all children of a domain share. Outlives them.
struct DomainHost {
  ActorId device;
  Arena* arena = nullptr;
  SegmentMap* segments = nullptr;  ///< of blocks that others lent; nullptr: there are none
  DomainDeviceMemory memory;       ///< of the device's own; none for a CPU
  DomainProcesses processes;
  std::function<void(std::string_view step)> step;  ///< PythonOptions::step; may be empty
};

/// One thread at a time, but for board() and pid().
class DomainChild {
 public:
  /// Starts the process and tells it what to become. kStartFailed, kResourceExhausted; kUnsupported where the device's
  /// own memory cannot be shared.
  static Result<std::unique_ptr<DomainChild>> spawn(const DomainHost& host, DomainStart start);
  /// Kills it; what it was granted and lent goes back when it is dead.
  ~DomainChild();
  DomainChild(const DomainChild&) = delete;
  DomainChild& operator=(const DomainChild&) = delete;

  /// Until imports and warm-ups are over. Its own error (DomainFailed), kStartFailed where it ended or took too long,
  /// with what it was doing. kActorUnavailable once `closing` says so.
  Result<DomainReady> await_ready(TimePoint deadline, const std::atomic<bool>* closing = nullptr);

  /// What became of a call.
  struct Outcome {
    std::optional<DomainResult> result;  ///< nothing: the child is of no use any more
    Error error;                         ///< then why
    bool begun = true;                   ///< false: it had ended before the call; another one may run it
  };
  /// Fills in the call's number. `target`: for errors; `stop` may be nullptr, else it outlives the call. Then step()
  /// until there is an outcome, which may be at once.
  void begin(DomainCall call, const std::string& target, const StopSignal* stop);
  /// One look, which parks for at most 20 ms and not beyond `until`: takes the answer, serves the child's questions,
  /// sees to deadline, watchdog, memory and the child's life. A call that does not stop within two seconds costs the
  /// child.
  std::optional<Outcome> step(TimePoint until);
  /// The call under way is not wanted any more.
  void abandon(Error reason);
  int socket() const { return socket_.fd(); }  ///< readable when a step has something to do

  /// The granted block that a result lies in is the device's; kMalformed if the child was not granted it. Of the
  /// device's own memory after end_call().
  Result<c10::Storage> take(const DomainPlace& place);
  void free(const std::vector<DomainPlace>& places);
  /// An argument in the device's own memory, until the child gives it back. The errors of DeviceRoom::lend().
  Result<CudaIpcBlock> lend(const c10::Storage& storage);
  /// First of all with a result: the device's stream then runs behind the child's work. After an error the child must
  /// go.
  Status end_call(const DomainResult& result);

  std::int64_t pid() const { return process_->pid(); }
  int pidfd() const { return process_->pidfd(); }
  bool alive() const;
  const DomainBoard& board() const { return *board_; }
  std::uint64_t calls() const { return calls_; }
  std::uint32_t number() const { return number_; }

 private:
  DomainChild(const DomainHost& host, std::unique_ptr<HelperProcess> process, DomainSocket socket, MappedBoard board,
              UniqueFd words, std::unique_ptr<DeviceRoom> room, std::uint32_t number);

  /// The call under way.
  struct Current {
    std::uint64_t number = 0;
    std::string what;
    const StopSignal* stop = nullptr;
    TimePoint watchdog = kNever;
    TimePoint kill_at = kNever;
    std::optional<Error> stopped;
    std::optional<Outcome> outcome;  // found while it began
    bool dead = false;
  };
  using Block = std::pair<SegmentId, std::uint64_t>;  // segment and offset
  struct Granted {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };

  /// Answers a question; false if the message is none.
  Result<bool> serve(const DomainMessage& message);
  Status grant(std::uint64_t bytes);
  Status grant_of_device(std::uint64_t bytes);
  Status put_in_order(DomainCall& call);
  Status open(const DomainOpen& question);
  Result<OpenedSegment> descriptor(const DomainOpen& question) const;
  std::map<Block, Granted>::iterator block_of(const DomainPlace& place);
  std::optional<Outcome> take(DomainMessage& message);
  std::optional<Outcome> look();
  std::optional<Error> reason_to_stop() const;
  std::optional<Error> too_large() const;
  void tell_step(std::string& last) const;
  std::string while_doing() const;
  Outcome end_by(Error error);
  Outcome end(std::optional<Error> why);
  void write_stacks();
  std::string last_words() const;

  const DomainHost& host_;
  const std::unique_ptr<HelperProcess> process_;
  DomainSocket socket_;
  const MappedBoard board_;
  const UniqueFd words_;
  std::unique_ptr<DeviceRoom> room_;  // nullptr for a CPU
  const std::uint32_t number_;
  std::uint64_t calls_ = 0;
  Current now_;
  std::map<Block, Granted> granted_;
};

}  // namespace callboard::kernels
