// Who took the GIL, how long they waited for it and kept it. Without Python and LibTorch, so that ThreadSanitizer sees
// it. It knows acquisitions through our guards only: what LibTorch takes by itself, when it destroys a tensor that has
// a Python object, no ledger sees. That there is no such tensor outside a GIL scope is the conversions' business.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "messages/base/clock.h"

namespace callboard::kernels {

/// Every place that takes the GIL. Closed: a new one gets a name here.
enum class GilSite : std::uint8_t {
  kStart,      ///< the interpreter's start: torch, versions, sys.path
  kImport,     ///< the modules of the allow list, their functions and schemas
  kWarmUp,     ///< warm-up functions, before the device is ready
  kCall,       ///< a kernel's call
  kThreadEnd,  ///< a thread that ran Python gives its thread state back
  kStop,       ///< a call that is to stop is interrupted
};
constexpr std::size_t kGilSites = 6;
std::string_view gil_site_name(GilSite site);

/// Counts of times by their power of two, from below 1 µs to above 16 s. Any thread adds, any thread reads.
class DurationHistogram {
 public:
  static constexpr std::size_t kBuckets = 26;  ///< bucket i: below 2^i µs; the last: everything else

  void add(Duration time) {
    const auto us = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::microseconds>(time).count()));
    const std::size_t bucket = std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(us)), kBuckets - 1);
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()),
                        std::memory_order_relaxed);
  }
  std::uint64_t count(std::size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  std::uint64_t count() const;
  void add(const DurationHistogram& other);
  std::uint64_t total_ns() const { return total_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> total_ns_{0};
};

/// Of one GIL domain. Any thread.
class GilLedger {
 public:
  // -- the guards
  void waits() {
    const std::uint32_t now = waiting_.fetch_add(1, std::memory_order_relaxed) + 1;
    std::uint32_t most = waiting_most_.load(std::memory_order_relaxed);
    while (now > most && !waiting_most_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
  void took(GilSite site, Duration waited) {
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    acquired_[static_cast<std::size_t>(site)].fetch_add(1, std::memory_order_relaxed);
    wait_.add(waited);
  }
  void gave_back(Duration held) { hold_.add(held); }
  /// A thread that serves an actor's loop asked for the GIL and was refused.
  void refused_on_loop() { on_loop_.fetch_add(1, std::memory_order_relaxed); }

  /// What another one has counted so far; `waiting` is a sum of moments.
  void add(const GilLedger& other);

  // -- readers
  std::uint64_t acquired(GilSite site) const {
    return acquired_[static_cast<std::size_t>(site)].load(std::memory_order_relaxed);
  }
  std::uint64_t on_loop() const { return on_loop_.load(std::memory_order_relaxed); }
  /// Threads that wait for the GIL now, and at most so far.
  std::uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }
  std::uint32_t waiting_most() const { return waiting_most_.load(std::memory_order_relaxed); }
  const DurationHistogram& wait() const { return wait_; }
  const DurationHistogram& hold() const { return hold_; }

 private:
  std::array<std::atomic<std::uint64_t>, kGilSites> acquired_{};
  std::atomic<std::uint64_t> on_loop_{0};
  std::atomic<std::uint32_t> waiting_{0};
  std::atomic<std::uint32_t> waiting_most_{0};
  DurationHistogram wait_;
  DurationHistogram hold_;
};

/// Of one GIL domain. Any thread.
struct ConversionCounts {
  std::atomic<std::int64_t> held_blocks{0};     ///< tensors over our memory that Python has now: kept after the call
  std::atomic<std::int64_t> held_bytes{0};      ///< of their storages
  std::atomic<std::uint64_t> copied_blocks{0};  ///< results that had to be copied: numpy's memory, or Python kept them
  std::atomic<std::uint64_t> copied_bytes{0};

  void add(const ConversionCounts& other);
};

/// What a GIL domain counts. May lie in memory that another process reads: nothing in it is a pointer, and zeros are
/// what a fresh one is.
struct GilBoard {
  GilLedger ledger;
  ConversionCounts conversions;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a counter in shared memory must not need a lock");

}  // namespace callboard::kernels
