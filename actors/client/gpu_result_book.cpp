#include "actors/client/gpu_result_book.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace callboard::actors {

void GpuResultBook::add(const TensorRef& result) {
  std::lock_guard lock(mutex_);
  if (entries_.size() >= sweep_at_) {
    forget_ended_locked();
    sweep_at_ = std::max<std::size_t>(64, 2 * entries_.size());
  }
  entries_.emplace(result.data, Entry{std::max<std::size_t>(result.bytes, 1), result.device});
}

Status GpuResultBook::use_on(const void* address, void* stream) {
  const auto* byte = static_cast<const std::byte*>(address);
  std::vector<std::shared_ptr<DeviceMemory>> found;  // told, and perhaps ended, without the lock
  {
    std::lock_guard lock(mutex_);
    for (const auto& [start, entry] : entries_) {
      if (std::less<>()(byte, start)) break;
      if (!std::less<>()(byte, start + entry.bytes)) continue;
      if (auto memory = entry.memory.lock()) found.push_back(std::move(memory));
    }
  }
  if (found.empty()) {
    return fail(ErrorCode::kBadInput, "this tensor is not a result of a cluster that lies on a GPU",
                "of tensors that torch allocated, call tensor.record_stream(stream)");
  }
  Status status;
  for (const auto& memory : found) {
    if (Status told = memory->use_on(stream); !told && status) status = told;
  }
  return status;
}

std::size_t GpuResultBook::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void GpuResultBook::forget_ended_locked() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.memory.expired(); });
}

}  // namespace callboard::actors
