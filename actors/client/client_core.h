// The client's machinery: one loop thread with the line to the coordinator and the session, and what programs share.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/client/admission.h"
#include "actors/client/client.h"
#include "actors/client/client_memory.h"
#include "actors/client/future_state.h"
#include "actors/client/input_pack.h"
#include "actors/client/session.h"
#include "actors/core/loop.h"
#include "actors/core/transport.h"

namespace callboard::actors {

/// A program as its requests see it; shared with the loop thread, never changed once it is loaded.
struct ProgramInfo {
  ProgramInfo() = default;
  ProgramInfo(const ProgramInfo&) = delete;
  ProgramInfo& operator=(const ProgramInfo&) = delete;
  ~ProgramInfo() {
    if (gone) gone();
  }

  ContentHash id;
  ProgramGraph graph;
  std::vector<ValueSpec> inputs;  ///< input_specs(graph)
  std::vector<PlannedFragment> plan;
  std::function<void()> gone;  ///< when neither the user nor a request has it any more; any thread
};

/// Methods are thread-safe unless they end in _on_loop. Programs and futures may outlive the client: after close()
/// every call answers kCancelled.
class ClientCore : public FutureHost, public std::enable_shared_from_this<ClientCore> {
 public:
  static Result<std::shared_ptr<ClientCore>> start(ClusterRecord record, Client::Options options);
  ~ClientCore() override;
  /// Ends everything as kCancelled and joins the thread. Idempotent; not from the loop thread.
  void close();

  const ClusterRecord& record() const { return record_; }
  Result<std::shared_ptr<ClientMemory>> memory() const;

  /// Places are requests on their way: taken by who submits, given back when the inputs are free.
  Admission& admission() { return *admission_; }
  /// `call` waits in line, the first one in the loop's place where nobody else does: what makes room comes as a
  /// message.
  Status wait_in_line(Admission::Call call);
  /// Sends. The caller has taken a place, which is the request's now, or given back if this fails.
  Result<std::shared_ptr<Future>> submit(std::shared_ptr<const ProgramInfo> program, PackedInputs inputs,
                                         std::vector<std::optional<std::int64_t>> known, TimePoint deadline);
  void cancel(std::shared_ptr<FutureState> future) override;
  /// In the loop's place where nobody else waits: the answer then wakes this thread and no other.
  void wait(const OneShot<FutureValue>& value, TimePoint until) override;
  /// Sends LoadProgram or Operation and waits for the answer.
  Result<Message> ask(Message question, TimePoint deadline);
  void set_event_callback(std::function<void(const ActorEvent&)> callback);

  // -- programs: each load is unloaded once, since the coordinator counts them; the last user of a constant gives it
  // back
  void add_constant_users(const std::vector<ContentHash>& constants);
  void drop_constant_users(const std::vector<ContentHash>& constants);
  /// Of a load that succeeded.
  void unload(const ContentHash& program, const std::vector<ContentHash>& constants);

 private:
  using Question = OneShot<Result<Message>>;
  struct Pending {
    std::shared_ptr<FutureState> future;  // null once it is set
    std::shared_ptr<const ProgramInfo> program;
    std::vector<std::optional<std::int64_t>> known;
    std::vector<std::shared_ptr<void>> holds;
  };
  struct Order;

  ClientCore(ClusterRecord record, Client::Options options);
  Status connect();
  void look_for_gpus();
  Status check_usable() const;  // under mutex_
  Status post_locked(std::function<void()> task);
  template <class Park>
  void wait_in_loop(const std::function<bool()>& done, const Park& park, TimePoint until);

  void run_on_loop_thread();
  Status open_line_on_loop();
  Status watch_coordinator_on_loop();
  void coordinator_ended_on_loop();
  void beat_on_loop();
  void lose_on_loop(Error why);
  void teardown_on_loop();
  void submit_on_loop(Order& order);
  void apply_on_loop(Session::Actions actions);
  void send_on_loop(Message message);
  void complete_on_loop(RequestSeq request, Outcome outcome);
  void answer_on_loop(Session::Answered answered);
  void arm_timer_on_loop();
  FutureValue result_on_loop(const Pending& pending, Outcome outcome);
  void discard_on_loop(const std::vector<WireValue>& values);

  const ClusterRecord record_;
  const Client::Options options_;
  const kernels::cuda::ClientPlugin* gpu_plugin_ = nullptr;  // set before the loop's thread starts, like the next
  std::string description_ = "{}";                           // of the Hello
  const ActorId self_;
  const int pid_;  // of the process that made it: a forked child has no loop thread
  const std::shared_ptr<Messenger> messenger_;
  const std::unique_ptr<Loop> loop_;
  OneShot<Status> connected_;
  const std::shared_ptr<Admission> admission_;  // shared with blocks of the arena, which may outlive the client
  std::atomic<int> waiters_{0};                 // threads that wait for a future without driving the loop

  mutable std::mutex mutex_;
  bool closed_ = false;                                // guarded by mutex_
  std::shared_ptr<ClientMemory> memory_;               // guarded by mutex_
  std::function<void(const ActorEvent&)> on_event_;    // guarded by mutex_
  std::map<ContentHash, std::size_t> constant_users_;  // guarded by mutex_

  // loop thread only
  const std::unique_ptr<Session> session_;
  std::unique_ptr<Line> line_;
  std::shared_ptr<ClientMemory> loop_memory_;
  UniqueFd coordinator_pidfd_;
  std::map<RequestSeq, Pending> requests_;
  std::map<RequestSeq, std::shared_ptr<Question>> questions_;
  TimerId timer_ = 0;
  TimePoint timer_at_ = kNever;
  std::uint64_t beats_ = 0;
  bool lost_ = false;
  bool torn_down_ = false;

  std::thread thread_;
};

/// Waits in slices, so that `interrupted` is asked now and then; kCancelled if it says so, nothing once set or late.
template <class T>
Status wait_interruptibly(const OneShot<T>& what, TimePoint until, const std::function<bool()>& interrupted) {
  constexpr auto kSlice = std::chrono::milliseconds(50);
  while (!what.is_set() && Clock::now() < until) {
    what.wait_until(interrupted ? std::min(until, after(Clock::now(), kSlice)) : until);
    if (interrupted && !what.is_set() && interrupted()) return fail(ErrorCode::kCancelled, "the call was interrupted");
  }
  return {};
}

}  // namespace callboard::actors
