// Ends the leases of what a SlabReader's blocks let go, when the device is done with it.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "kernels/cuda/slab_reader.h"

namespace callboard::kernels::cuda {

/// A thread of its own (cuda/leases), which parks while there is nothing of that. Ends before the reader.
class ReaderThread {
 public:
  ReaderThread(RuntimeTable& runtime, SlabReader& reader);  ///< both outlive it
  ~ReaderThread();                                          ///< joins
  ReaderThread(const ReaderThread&) = delete;
  ReaderThread& operator=(const ReaderThread&) = delete;

  /// To be called after a block was let go; any thread, may outlive this object.
  const std::function<void()>& wake() const { return wake_; }

 private:
  class Waker;
  static void run(RuntimeTable& runtime, SlabReader& reader, Waker& waker);

  const std::shared_ptr<Waker> waker_;
  const std::function<void()> wake_;
  std::thread thread_;
};

}  // namespace callboard::kernels::cuda
