// What an arena knows of one of its segments. Private to arena.cpp, whose lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "kernels/memory/arena.h"
#include "kernels/memory/extent_allocator.h"
#include "kernels/memory/pages.h"
#include "kernels/memory/segment.h"

namespace callboard::kernels::arena_detail {

struct Block {
  std::uint64_t pages = 0;
  std::uint32_t leases = 0;
  bool allocated = true;  ///< false: deallocated, and leases are left
};

struct SegmentRecord {
  SegmentRecord(SegmentId number, Segment mapped, bool own, Zone whose)
      : id(number), memory(std::move(mapped)), dedicated(own), zone(whose), extents(memory.bytes() / page_bytes()) {}

  bool holds(const std::byte* pointer) const {
    return pointer >= memory.data() && pointer < memory.data() + memory.bytes();
  }
  std::uint64_t page_of(const std::byte* pointer) const {
    return static_cast<std::uint64_t>(pointer - memory.data()) / page_bytes();
  }
  std::byte* at(std::uint64_t page) const { return memory.data() + page * page_bytes(); }

  const SegmentId id;
  Segment memory;
  const bool dedicated;  ///< made for one block larger than an ordinary segment
  const Zone zone;
  ExtentAllocator extents;
  std::map<std::uint64_t, Block> blocks;  ///< by first page
};

struct Taken {
  SegmentRecord* segment = nullptr;  ///< stays: a segment with a block in it is not closed
  ExtentAllocator::Grant grant;
};

inline std::uint64_t cold_bytes(const ExtentAllocator::Grant& grant) {
  std::uint64_t pages = 0;
  for (const Extent& part : grant.cold) pages += part.pages;
  return pages * page_bytes();
}

}  // namespace callboard::kernels::arena_detail
