#include "kernels/cuda/opened_events.h"

#include <vector>

namespace callboard::kernels::cuda {

OpenedEvents::~OpenedEvents() {
  for (const auto& [key, opened] : events_) destroy(opened.event);
}

void OpenedEvents::destroy(Event event) noexcept {
  if (!health_.failed()) (void)health_.note(runtime_.event_destroy(event), "cudaEventDestroy");
}

Result<Event> OpenedEvents::take(const Key& key) {
  {
    std::lock_guard lock(mutex_);
    if (const auto found = events_.find(key); found != events_.end()) {
      ++found->second.users;
      return found->second.event;
    }
  }
  Event event = nullptr;
  const Code code = runtime_.ipc_open_event(&event, key.second);
  const Failure failure = code_info(code).failure;
  if (!health_.failed() && (failure == Failure::kUsage || failure == Failure::kStaleHandle)) {
    // The arguments are right, so it is the handle that names nothing any more.
    return fail(ErrorCode::kTensorLost,
                "a tensor in CUDA memory of " + key.first.to_string() +
                    " is lost: " + health_.describe(code, "cudaIpcOpenEventHandle").message,
                "run again what made it");
  }
  CALLBOARD_TRY(health_.note(code, "cudaIpcOpenEventHandle"));
  Event twice = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto [place, first] = events_.try_emplace(key);
    if (first) {
      place->second.event = event;
    } else {
      twice = std::exchange(event, place->second.event);  // another thread was faster
    }
    ++place->second.users;
  }
  if (twice != nullptr) destroy(twice);
  return event;
}

void OpenedEvents::give_back(const Key& key) noexcept {
  Event unused = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = events_.find(key);
    if (found == events_.end()) return;
    found->second.last_used = ++uses_;
    if (--found->second.users > 0) return;
    auto oldest = found;
    if (!found->second.lost) {
      if (events_.size() <= max_) return;
      for (auto other = events_.begin(); other != events_.end(); ++other) {
        if (other->second.users == 0 && other->second.last_used < oldest->second.last_used) oldest = other;
      }
    }
    unused = oldest->second.event;
    events_.erase(oldest);
  }
  destroy(unused);
}

void OpenedEvents::owner_gone(const ActorId& owner) {
  std::vector<Event> unused;
  {
    std::lock_guard lock(mutex_);
    for (auto event = events_.begin(); event != events_.end();) {
      event->second.lost = event->second.lost || event->first.first == owner;
      if (event->second.lost && event->second.users == 0) {
        unused.push_back(event->second.event);
        event = events_.erase(event);
      } else {
        ++event;
      }
    }
  }
  for (const Event event : unused) destroy(event);
}

std::size_t OpenedEvents::size() const {
  std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace callboard::kernels::cuda
