// How a tensor, or a plain number, is named on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "messages/base/ids.h"
#include "messages/tensor_meta.h"

namespace callboard {

using LeaseId = std::uint64_t;    ///< unique within its owner's incarnation, never reused; 0 is "none"
using SegmentId = std::uint64_t;  ///< likewise

/// The bytes themselves (small tensors). Holds the storage from its start to the last element touched.
struct InlineBytes {
  std::string bytes;
  bool operator==(const InlineBytes&) const = default;
};

/// A block in an arena segment of `owner`. The reader asks its node actor for the segment (by owner and id), maps it
/// once and adds `offset`. The block stays unchanged until the lease ends.
struct ArenaBlock {
  ActorId owner;
  SegmentId segment = 0;
  std::uint64_t offset = 0;  ///< bytes from the segment's start to the storage's start
  std::uint64_t bytes = 0;   ///< length of the block; meta must lie inside
  LeaseId lease = 0;
  bool operator==(const ArenaBlock&) const = default;
};

/// A block in a cudaMalloc slab of `owner`, with the interprocess event that orders readers after the writer (step 3).
struct CudaIpcBlock {
  ActorId owner;
  std::string device_uuid;    ///< 16 raw bytes
  std::string memory_handle;  ///< 64 raw bytes, cudaIpcMemHandle_t of the slab's base
  std::string event_handle;   ///< 64 raw bytes, cudaIpcEventHandle_t
  SegmentId slab = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  LeaseId lease = 0;
  bool operator==(const CudaIpcBlock&) const = default;
};

struct TensorHandle {
  TensorMeta meta;
  std::variant<InlineBytes, ArenaBlock, CudaIpcBlock> data;
  /// Between devices: the tensor says so at its maker, as a view of a weight does. Some operators choose their kernel
  /// by it (torch.matmul whether to fold), so it must be the same on the other side for the same last bits.
  bool requires_grad = false;
  bool operator==(const TensorHandle&) const = default;

  /// extent_bytes() of the meta against the data's length: kMalformed unless the tensor lies inside.
  Status check() const;
};

/// What flows along the edges of a program: nothing (None), a tensor or a plain number.
using WireValue = std::variant<std::monostate, TensorHandle, std::int64_t, double, bool>;

/// Bytes that `value` adds to a message, for credits and limits.
std::size_t wire_bytes(const WireValue& value);

}  // namespace callboard
