#include "kernels/cuda/reader_thread.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <optional>

namespace callboard::kernels::cuda {

namespace {

constexpr Duration kPollReading = std::chrono::milliseconds(2);   // while the device still reads what was let go
constexpr Duration kPollIdle = std::chrono::milliseconds(1'000);  // while slabs are open that nobody reads

}  // namespace

class ReaderThread::Waker {
 public:
  void wake(bool stop) {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
      stopping_ = stopping_ || stop;
    }
    changed_.notify_all();
  }
  /// Parks until woken, or for `time`. False: stop.
  bool wait(std::optional<Duration> time) {
    std::unique_lock lock(mutex_);
    const auto woken = [this] { return woken_; };
    if (time) {
      changed_.wait_for(lock, *time, woken);
    } else {
      changed_.wait(lock, woken);
    }
    woken_ = false;
    return !stopping_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;     // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
};

ReaderThread::ReaderThread(RuntimeTable& runtime, SlabReader& reader)
    : waker_(std::make_shared<Waker>()),
      wake_([waker = waker_] { waker->wake(false); }),
      thread_([&runtime, &reader, waker = waker_] { run(runtime, reader, *waker); }) {}

ReaderThread::~ReaderThread() {
  waker_->wake(true);
  thread_.join();
}

void ReaderThread::run(RuntimeTable& runtime, SlabReader& reader, Waker& waker) {
  ::pthread_setname_np(::pthread_self(), "cuda/leases");
  // Somebody in this process may capture a graph in the global mode (torch.cuda.graph does), which a query by another
  // thread would break. None of ours belongs to a capture. A driver that refuses is too old for global captures.
  CaptureMode mode = CaptureMode::kRelaxed;
  runtime.thread_exchange_capture_mode(&mode);
  std::optional<Duration> next;
  while (waker.wait(next)) {
    // A device that failed is told to whoever uses it next.
    static_cast<void>(reader.poll(Clock::now()));
    next = std::nullopt;
    if (reader.pending()) next = reader.stats().releasing > 0 ? kPollReading : kPollIdle;
  }
}

}  // namespace callboard::kernels::cuda
