// Arena, segment map and memory lane of one process, wired as an actor wires them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/core/memory_lane.h"
#include "kernels/memory/arena.h"
#include "kernels/memory/segment_map.h"

namespace callboard::test {

class MemoryMember {
 public:
  static Result<std::unique_ptr<MemoryMember>> connect(const std::string& socket, ActorId who,
                                                       kernels::ArenaOptions options = {}) {
    std::unique_ptr<MemoryMember> member(new MemoryMember());
    CALLBOARD_TRY(member->start(socket, std::move(who), std::move(options)));
    return member;
  }
  ~MemoryMember() {
    map.reset();
    lane_pointer_ = nullptr;
    lane.reset();
    *alive_ = nullptr;  // the arena lives on, as arenas do
  }

  /// Waits until `condition` holds, looked at after each event of the lane; false after 20 s.
  bool eventually(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }

  kernels::Arena* arena = nullptr;
  std::unique_ptr<actors::MemoryLane> lane;
  std::unique_ptr<kernels::SegmentMap> map;
  std::atomic<int> owners_gone{0};
  std::atomic<int> holders_gone{0};
  std::atomic<bool> node_gone{false};

 private:
  MemoryMember() = default;

  Status start(const std::string& socket, ActorId who, kernels::ArenaOptions options) {
    options.owner = who;
    kernels::SegmentObserver observer;
    observer.added = [alive = alive_](SegmentId segment, UniqueFd fd, std::uint64_t bytes) -> Status {
      return (*alive)->lane->add_segment(segment, std::move(fd), bytes);
    };
    observer.dropped = [alive = alive_](SegmentId segment) { (*alive)->lane->drop_segment(segment); };
    CALLBOARD_ASSIGN(arena, kernels::Arena::create(std::move(options), std::move(observer)));
    map = kernels::SegmentMap::create(
        [this](const ActorId& owner, SegmentId segment) { return lane->open_segment(owner, segment); },
        [this](const ActorId& owner, LeaseId lease) { lane->release(owner, lease); });
    actors::MemoryLane::Events events;
    events.holder_gone = [this](const ActorId& holder) {
      arena->holder_gone(holder);
      ++holders_gone;
      tell();
    };
    events.lease_released = [this](LeaseId lease) {
      arena->release(lease);
      tell();
    };
    events.owner_gone = [this](const ActorId& owner) {
      if (actors::MemoryLane* connected = lane_pointer_) connected->report_held(owner, map->held_segments(owner));
      map->drop_owner(owner);
      ++owners_gone;
      tell();
    };
    events.node_gone = [this] {
      node_gone = true;
      tell();
    };
    CALLBOARD_ASSIGN(lane, actors::MemoryLane::connect(socket, Role::kDevice, who, std::move(events)));
    lane_pointer_ = lane.get();
    return {};
  }
  void tell() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  std::atomic<actors::MemoryLane*> lane_pointer_{nullptr};
  const std::shared_ptr<MemoryMember*> alive_ = std::make_shared<MemoryMember*>(this);
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace callboard::test
