// One memfd segment: created, sized, sealed against resizing, mapped shared by its owner.
#pragma once

#include <cstddef>
#include <cstdint>

#include "messages/base/error.h"
#include "messages/base/fd.h"

namespace callboard::kernels {

/// The owner's shared read-write mapping of a memfd (mode 0400, sealed SHRINK|GROW|SEAL, MADV_DONTDUMP).
/// Moves; unmaps and closes at its end.
class Segment {
 public:
  /// Rounds `bytes` up to whole pages. kResourceExhausted with the reason if the system refuses.
  static Result<Segment> create(std::uint64_t bytes, const char* name);
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// A descriptor that cannot be mapped writable and shared (read-only re-open).
  Result<UniqueFd> open_read_only() const;
  /// Makes pages present (MADV_POPULATE_WRITE; touches them where the kernel has not that).
  void populate(std::uint64_t offset, std::uint64_t bytes);
  /// Gives pages back to the system; they read as zero afterwards.
  void punch(std::uint64_t offset, std::uint64_t bytes);
  int fd() const { return fd_.get(); }

 private:
  Segment() = default;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace callboard::kernels
