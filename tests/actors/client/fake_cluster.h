// A cluster in the test's own process: the run directory, a node actor's memory broker, a coordinator that does what
// the test says, and a device that only owns memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "actors/core/loop.h"
#include "actors/core/memory_lane.h"
#include "actors/core/run_dir.h"
#include "actors/core/transport.h"
#include "actors/node/memory_broker.h"
#include "kernels/memory/arena.h"
#include "tests/actors/client/temporary_folder.h"

namespace callboard::actors {

constexpr auto kPatience = std::chrono::seconds(20);  // of a test that goes wrong

struct FakeClusterOptions {
  std::int64_t coordinator_pid = 0;  ///< 0: this process
  std::function<Status(const Hello&)> admit = [](const Hello&) -> Status { return {}; };
  bool listens = true;
  std::size_t requests_per_client = limits::kRequestsPerClientMax;
  bool results_on_gpu = false;
};

class FakeCluster {
 public:
  using Options = FakeClusterOptions;
  explicit FakeCluster(Options options = {});
  ~FakeCluster();

  /// Answers a message on the coordinator's thread; true if it did. What nobody answers is kept for await().
  using Handler = std::function<bool(FakeCluster&, const ActorId& from, const Message&)>;
  void on_message(Handler handler);
  void send(const ActorId& to, Message message);

  /// The next message of this type that came and was not answered. Fails the test after kPatience (then: a default
  /// one).
  template <class T>
  T await() {
    std::unique_lock lock(mutex_);
    T found;
    came_.wait_for(lock, kPatience, [&] {
      for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        if (auto* match = std::get_if<T>(&it->second)) {
          found = std::move(*match);
          client_ = it->first;
          kept_.erase(it);
          return true;
        }
      }
      return false;
    });
    return found;
  }
  /// Who sent what await() gave.
  ActorId client() const { return client_; }

  ClusterRecord record;

 private:
  void run(const Options& options);
  void watch_broker();

  TemporaryFolder folder_;
  RunDir dir_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Messenger> messenger_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<MemoryBroker> broker_;
  std::set<int> broker_fds_;
  TimerId broker_timer_ = 0;
  Handler handler_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::pair<ActorId, Message>> kept_;  // guarded by mutex_
  ActorId client_;
  std::thread thread_;
};

/// Memory of a device actor: gives out leased blocks, tells when leases end.
class FakeDevice {
 public:
  explicit FakeDevice(const FakeCluster& cluster);

  /// A block of `meta`, all elements `fill`, leased to `holder`.
  TensorHandle result(const ActorId& holder, std::int64_t count, float fill);
  /// Copies what a client's handle names.
  std::string read(const TensorHandle& handle);
  /// True once so many leases exist, within kPatience.
  bool await_leases(std::uint64_t count);
  /// True once this lease was given back, whether the arena knows it or not, within kPatience.
  bool await_released(LeaseId lease);

 private:
  ActorId self_{"cpu0", 1};
  kernels::Arena* arena_ = nullptr;
  std::mutex mutex_;
  std::condition_variable released_;
  std::set<LeaseId> given_back_;  // guarded by mutex_
  std::shared_ptr<MemoryLane> lane_;
};

}  // namespace callboard::actors
