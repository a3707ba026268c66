#include "actors/client/admission.h"

#include <algorithm>
#include <string>
#include <utility>

namespace callboard::actors {
namespace {

/// So often a signal is asked for.
constexpr Duration kAskForSignals = std::chrono::milliseconds(50);

}  // namespace

/// A place in line, given up at the end of the scope.
class Admission::Line {
 public:
  explicit Line(Admission& admission) : admission_(admission) {
    std::lock_guard lock(admission_.mutex_);
    admission_.line_.push_back(&self_);
    admission_.waiting_.fetch_add(1);
  }
  ~Line() {
    std::lock_guard lock(admission_.mutex_);
    std::deque<Waiter*>& line = admission_.line_;
    const bool was_first = line.front() == &self_;
    line.erase(std::find(line.begin(), line.end(), &self_));
    admission_.waiting_.fetch_sub(1);
    if (!was_first) return;
    admission_.want_.reset();
    if (!line.empty()) line.front()->changed.notify_all();
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  std::size_t before() const {
    std::lock_guard lock(admission_.mutex_);
    const std::deque<Waiter*>& line = admission_.line_;
    return static_cast<std::size_t>(std::find(line.begin(), line.end(), &self_) - line.begin());
  }
  void park_behind(TimePoint until) {
    std::unique_lock lock(admission_.mutex_);
    self_.changed.wait_until(lock, until,
                             [this] { return admission_.line_.front() == &self_ || admission_.ended_.has_value(); });
  }
  void park_first(std::uint64_t seen, TimePoint until) {
    std::unique_lock lock(admission_.mutex_);
    self_.changed.wait_until(lock, until, [&] { return admission_.changes_.load() != seen; });
  }

 private:
  Admission& admission_;
  Waiter self_;
};

bool Admission::take_place() {
  // Never above the limit, not even for a moment: another thread would be refused for nothing.
  std::size_t taken = taken_.load();
  while (taken < places_) {
    if (taken_.compare_exchange_weak(taken, taken + 1)) return true;
  }
  return false;
}

void Admission::wake_first() {
  changes_.fetch_add(1);
  std::lock_guard lock(mutex_);
  if (!line_.empty()) line_.front()->changed.notify_all();
}

void Admission::end(Error why) {
  std::lock_guard lock(mutex_);
  if (!ended_) ended_ = std::move(why);
  changes_.fetch_add(1);
  for (Waiter* waiter : line_) waiter->changed.notify_all();
}

Error late_submission(Error why, Duration waited, bool has_deadline) {
  if (why.code != ErrorCode::kOverloaded && why.code != ErrorCode::kOutOfMemory) return why;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  std::string message = "the request waited " + std::to_string(ms) + " ms for room and was not sent: " + why.message;
  if (!has_deadline) {
    why.message = std::move(message);
    return why;
  }
  Error expired(ErrorCode::kDeadlineExceeded, std::move(message), why.hint);
  expired.causes.push_back(std::move(why));
  return expired;
}

Error refused_in_callback(Error want) {
  want.message += "; a call from a callback does not wait, since the answers would wait for it";
  want.hint = "submit from another thread than the callback's";
  return want;
}

Status Admission::wait_in_line(Call call) {
  Line line(*this);
  for (;;) {
    const std::uint64_t seen = changes_.load();  // before the attempt: what changes after it is noticed
    const std::size_t before = line.before();
    if (before == 0) {
      const Admission* const outer = std::exchange(attempting_, this);
      call.want = call.attempt();
      attempting_ = outer;
      if (!call.want) return {};
    }
    {
      std::lock_guard lock(mutex_);
      if (ended_) return fail(*ended_);
      if (before == 0) want_ = call.want;
      if (before > 0 && want_) call.want = want_;
    }
    const TimePoint now = Clock::now();
    if (now >= call.until) {
      Error late = call.want.value_or(Error(ErrorCode::kOverloaded, "there is no room"));
      if (before > 0) late.message += "; " + std::to_string(before) + " earlier calls wait for it, too";
      return fail(std::move(late));
    }
    if (call.interrupted && call.interrupted()) return fail(ErrorCode::kCancelled, "the call was interrupted");
    TimePoint slice = call.interrupted ? std::min(call.until, after(now, kAskForSignals)) : call.until;
    if (before > 0) {
      line.park_behind(slice);
      continue;
    }
    if (call.retry) slice = std::min(slice, after(now, *call.retry));
    const auto park = [&](TimePoint until) { line.park_first(seen, until); };
    if (call.wait) {
      call.wait([&] { return changes_.load() != seen; }, park, slice);
    } else {
      park(slice);
    }
  }
}

}  // namespace callboard::actors
