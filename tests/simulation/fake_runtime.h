// Kernels without tensors: computes what the oracle can compute too, after a virtual delay, one run at a time.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kernels/runtime.h"
#include "tests/simulation/memory.h"

namespace callboard::simulation {

/// What the operators of simulated programs mean: "sim::count" adds one, anything else mixes its name with what it
/// reads.
Content evaluate(const Node& node, const std::map<ValueId, Content>& values);
/// What a constant holds.
Content constant_content(const Constant& constant);

struct RuntimeFaults {
  double fails = 0;    ///< of "sim::fragile" nodes
  Duration slowest = std::chrono::milliseconds(5);
};

/// Stands for kernels::DeviceRuntime, arena and segment map of one device actor.
class FakeRuntime {
 public:
  using Done = std::function<void(kernels::RunResult)>;
  FakeRuntime(World& world, Memory& memory, const RuntimeFaults& faults, ActorId self)
      : world_(world), memory_(memory), faults_(faults), self_(std::move(self)) {}

  void load(const Fragment& fragment) { loaded_[{fragment.program, fragment.index}] = Loaded{fragment, {}, 0}; }
  void unload(const ContentHash& program);
  void run(kernels::RunOrder order, Done done);
  void cancel(RunId run, const Error& reason);
  /// The process stands still until then.
  void pause_until(TimePoint when) { busy_until_ = std::max(busy_until_, when); }
  void stop() { alive_.reset(); }
  /// Called with the lease when a handle of another owner was read.
  std::function<void(const ActorId& owner, LeaseId lease)> on_release;

 private:
  struct Loaded {
    Fragment fragment;
    std::map<std::string, Content> states;
    std::uint64_t version = 0;
  };
  struct Job {
    kernels::RunOrder order;
    Done done;
    std::optional<Error> cancelled;
  };
  void start_next();
  void complete();
  kernels::RunResult compute(const kernels::RunOrder& order);
  void hand_out(const Fragment& fragment, const kernels::RunOrder& order, const std::map<ValueId, Content>& values,
                kernels::RunResult& result);
  void give_back(const WireValue& value);

  World& world_;
  Memory& memory_;
  const RuntimeFaults& faults_;
  const ActorId self_;
  std::map<std::pair<ContentHash, std::uint32_t>, Loaded> loaded_;
  std::deque<Job> queue_;  // the first one runs
  bool running_ = false;
  TimePoint busy_until_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace callboard::simulation
