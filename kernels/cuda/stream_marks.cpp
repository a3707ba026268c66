#include "kernels/cuda/stream_marks.h"

#include <utility>

namespace callboard::kernels::cuda {

namespace {

/// What a stream or an event that belongs to a capture gives, and a thread whose calls a capture forbids.
bool is_of_capture(Code code) {
  constexpr Code kFirst = 900;  // cudaErrorStreamCaptureUnsupported
  constexpr Code kLast = 907;   // cudaErrorCapturedEvent
  return code >= kFirst && code <= kLast;
}

}  // namespace

StreamMarks::~StreamMarks() {
  for (const auto& [device, events] : unused_) {
    const CurrentDeviceGuard current(runtime_, *health_, device);
    if (!current.status()) return;
    for (const Event event : events) (void)health_->note(runtime_.event_destroy(event), "cudaEventDestroy");
  }
}

Result<Event> StreamMarks::take(int device) {
  {
    std::lock_guard lock(mutex_);
    if (std::vector<Event>& unused = unused_[device]; !unused.empty()) {
      const Event event = unused.back();
      unused.pop_back();
      return event;
    }
  }
  Event event = nullptr;
  CALLBOARD_TRY(health_->note(runtime_.event_create(&event, EventKind::kLocal), "cudaEventCreateWithFlags"));
  return event;
}

void StreamMarks::give_back(const StreamMark& mark) noexcept {
  if (mark.event == nullptr) return;
  std::lock_guard lock(mutex_);
  unused_[mark.device].push_back(mark.event);
}

Status StreamMarks::record_here(StreamMark& mark) {
  bool capturing = false;
  const Code known = runtime_.stream_is_capturing(mark.stream, &capturing);
  if (!health_->failed() && is_of_capture(known)) return {};
  CALLBOARD_TRY(health_->note(known, "cudaStreamIsCapturing"));
  if (capturing) return {};
  CALLBOARD_ASSIGN(mark.event, take(mark.device));
  const Code code = runtime_.event_record(mark.event, mark.stream);
  if (code == kSuccess) return health_->status();
  give_back(mark);
  mark.event = nullptr;
  if (!health_->failed() && is_of_capture(code)) return {};
  return health_->note(code, "cudaEventRecord");
}

Result<StreamMark> StreamMarks::set(int device, Stream stream) {
  const CurrentDeviceGuard current(runtime_, *health_, device);
  CALLBOARD_TRY(current.status());
  StreamMark mark{device, stream, nullptr};
  CALLBOARD_TRY(record_here(mark));
  return mark;
}

Result<bool> StreamMarks::passed(StreamMark& mark, bool wait) {
  const CurrentDeviceGuard current(runtime_, *health_, mark.device);
  CALLBOARD_TRY(current.status());
  if (mark.event == nullptr) CALLBOARD_TRY(record_here(mark));
  if (mark.event == nullptr) return false;
  const Code code = wait ? runtime_.event_synchronize(mark.event) : runtime_.event_query(mark.event);
  CALLBOARD_TRY(health_->status());
  if (!wait && code_info(code).failure == Failure::kNotReady) return false;
  if (!is_of_capture(code)) CALLBOARD_TRY(health_->note(code, wait ? "cudaEventSynchronize" : "cudaEventQuery"));
  give_back(mark);
  mark.event = nullptr;
  return code == kSuccess;
}

}  // namespace callboard::kernels::cuda
