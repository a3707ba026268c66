// Points in the work of streams, of which somebody wants to know when they are past. Private to kernels/cuda.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"

namespace callboard::kernels::cuda {

/// Behind all that a stream had been given when the mark was made.
struct StreamMark {
  int device = 0;  ///< the event's, which must be the stream's
  Stream stream = nullptr;
  Event event = nullptr;  ///< none yet: the stream was being captured
};

/// Makes marks, with local events that are used again. A stream that is being captured (a CUDA graph) is left alone:
/// the event would become part of the graph and could never be asked, and to ask it would break the capture. It is
/// recorded when the capture is over, behind more than was asked for. So a stream must live until its marks are past.
/// Thread-safe; none changes the thread's current device.
class StreamMarks {
 public:
  StreamMarks(RuntimeTable& runtime, std::shared_ptr<DeviceHealth> health)
      : runtime_(runtime), health_(std::move(health)) {}
  ~StreamMarks();
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  /// An error where no event is to be had: wait for the stream instead. kDeviceFailed.
  Result<StreamMark> set(int device, Stream stream);
  /// True: past, and the event is given back. False: not yet; or, after waiting, still being captured. An error says
  /// nothing of other marks, unless the device has failed.
  Result<bool> passed(StreamMark& mark, bool wait);
  /// The event of a mark that nobody asks any more.
  void give_back(const StreamMark& mark) noexcept;

 private:
  Result<Event> take(int device);
  Status record_here(StreamMark& mark);

  RuntimeTable& runtime_;
  const std::shared_ptr<DeviceHealth> health_;
  std::mutex mutex_;
  std::map<int, std::vector<Event>> unused_;  // by device, as many as there were marks at once; guarded by mutex_
};

}  // namespace callboard::kernels::cuda
