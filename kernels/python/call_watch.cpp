#include "kernels/python/call_watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "kernels/kernel_failure.h"
#include "kernels/python/bootstrap.h"
#include "kernels/python/gil.h"
#include "kernels/python/py_ref.h"

namespace callboard::kernels {

namespace {

constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::seconds kPatience{1};  // without a call, before the thread parks

}  // namespace

CallWatch::~CallWatch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

CallWatch::Call::Call(CallWatch& watch, const StopSignal* stop) : watch_(stop == nullptr ? nullptr : &watch) {
  if (watch_ == nullptr) return;
  bool wake = false;
  {
    std::lock_guard lock(watch.mutex_);
    watch.stop_ = stop;
    watch.python_thread_ = PyThread_get_thread_ident();
    ++watch.calls_;
    wake = watch.parked_;
    if (!watch.thread_.joinable()) watch.thread_ = std::thread([&watch] { watch.run(); });
  }
  if (wake) watch.changed_.notify_all();
}

std::optional<Error> CallWatch::Call::end() {
  if (watch_ == nullptr) return std::nullopt;
  CallWatch& watch = *std::exchange(watch_, nullptr);
  std::lock_guard lock(watch.mutex_);
  watch.stop_ = nullptr;
  if (watch.reason_) PyThreadState_SetAsyncExc(watch.python_thread_, nullptr);
  return std::exchange(watch.reason_, std::nullopt);
}

void CallWatch::run() {
  ::pthread_setname_np(::pthread_self(), "python/watch");
  std::unique_lock lock(mutex_);
  std::uint64_t seen = 0;
  TimePoint last_call = Clock::now();
  while (!ending_) {
    const TimePoint now = Clock::now();
    if (calls_ != seen) last_call = now;
    const bool same = stop_ != nullptr && calls_ == seen;
    seen = calls_;
    if (same && !reason_ && stop_->stop_reason()) {
      lock.unlock();
      interrupt(seen);
      lock.lock();
      continue;
    }
    if (stop_ != nullptr || now - last_call < kPatience) {
      changed_.wait_for(lock, kLook, [this] { return ending_; });
      continue;
    }
    parked_ = true;
    changed_.wait(lock, [&] { return ending_ || calls_ != seen; });
    parked_ = false;
  }
}

/// Waits for the GIL: for as long as the call keeps it, nothing could be raised anyway.
void CallWatch::interrupt(std::uint64_t call) {
  try {
    const GilScopedAcquire gil(GilSite::kStop);
    const PyRef stopped = bootstrap_function("Stopped");
    if (!stopped) {
      PyErr_Clear();
      return;
    }
    std::lock_guard lock(mutex_);
    if (stop_ == nullptr || calls_ != call || reason_) return;
    reason_ = stop_->stop_reason();
    if (reason_) PyThreadState_SetAsyncExc(python_thread_, stopped.get());
  } catch (const KernelFailure&) {
    // The interpreter ends, and the call with it.
  }
}

}  // namespace callboard::kernels
