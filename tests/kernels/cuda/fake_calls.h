// What the files of the fake runtime share. Private to them.
#pragma once

#include <sys/mman.h>

#include "messages/base/check.h"
#include "tests/kernels/cuda/fake_runtime.h"

namespace callboard::kernels::cuda::testing {

constexpr Code kInvalidValue = 1;
constexpr Code kMemoryAllocation = 2;
constexpr Code kInvalidDevice = 101;
constexpr Code kMapFailed = 205;
constexpr Code kPeerUnsupported = 217;
constexpr Code kInvalidHandle = 400;
constexpr Code kNotReady = 600;
constexpr Code kCaptureUnsupported = 900;
constexpr Code kCapturedEvent = 907;

/// Addresses that nothing can be read from.
inline std::byte* reserve(std::uint64_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CALLBOARD_CHECK(mapped != MAP_FAILED, "addresses are to be had");
  return static_cast<std::byte*>(mapped);
}

#define FAKE_BEGIN(call)        \
  std::lock_guard lock(mutex_); \
  if (const Code injected = begin(call); injected != kSuccess) return injected

}  // namespace callboard::kernels::cuda::testing
