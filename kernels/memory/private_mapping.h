// A private copy-on-write mapping of (a part of) another process's segment. Private to kernels/memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "messages/base/error.h"

namespace callboard::kernels {

/// Moves; unmaps at its end. Offsets are from the mapping's start and must be whole pages.
class PrivateMapping {
 public:
  /// Where the kernel charges every private writable mapping in full (vm.overcommit_memory 2), mapping whole segments
  /// writable would be refused: there only ranges in use are made writable.
  enum class Writable { kWhole, kByRange };
  static Writable writable_here();

  /// kResourceExhausted with the reason. The descriptor may be closed afterwards.
  static Result<PrivateMapping> map(int fd, std::uint64_t offset, std::uint64_t bytes, Writable writable);
  PrivateMapping(PrivateMapping&& other) noexcept;
  PrivateMapping& operator=(PrivateMapping&& other) noexcept;
  ~PrivateMapping();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

  /// Before a range is handed out; does nothing with kWhole. kResourceExhausted.
  Status begin_range(std::uint64_t offset, std::uint64_t bytes) const;
  /// Did this process write there? nullopt if the kernel cannot tell (before Linux 6.7).
  std::optional<bool> written(std::uint64_t offset, std::uint64_t bytes) const;
  /// Forgets what this process wrote there: later reads see the segment itself. Drops exactly the written pages where
  /// the kernel can tell them (the others stay mapped and warm), else the whole range.
  void drop_written(std::uint64_t offset, std::uint64_t bytes) const;
  /// Forgets the whole range, without asking which pages were written.
  void drop_all(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  PrivateMapping() = default;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  Writable writable_ = Writable::kWhole;
};

}  // namespace callboard::kernels
