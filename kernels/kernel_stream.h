// A KernelStream: a thread with a bounded queue and one device stream.
#pragma once

#include <memory>
#include <string>

#include "kernels/device_backend.h"
#include "kernels/runtime.h"
#include "kernels/stream_thread.h"

namespace callboard::kernels {

/// The thread runs in InferenceMode with its device stream current, and (compute) with the intra-op threads it was
/// given. Any thread may post; stop as in StreamThread.
class KernelStream {
 public:
  /// `backend` must outlive the stream. `threads` counts for a compute stream only: the setting of some libraries under
  /// ATen is one for the process, and a communicate stream must not lower it.
  /// `waiting`: how its thread waits while it has nothing to run, where it is not for its queue
  /// (StreamThread::Options).
  static Result<std::unique_ptr<KernelStream>> create(DeviceBackend& backend, StreamKind kind, int threads,
                                                      IdleWaiting waiting = {});

  StreamKind kind() const { return kind_; }
  StreamContext& context() { return *context_; }
  StreamThread& thread() { return *thread_; }
  PushResult post(StreamThread::Work&& work) { return thread_->post(std::move(work)); }

 private:
  KernelStream() = default;

  StreamKind kind_ = StreamKind::kCompute;
  std::unique_ptr<StreamContext> context_;
  std::unique_ptr<StreamThread> thread_;  // last: joins before the stream goes
};

}  // namespace callboard::kernels
