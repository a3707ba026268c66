// How a tensor, or a plain number, is named on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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

/// A block in a cudaMalloc slab of `owner`, with the interprocess event that orders readers after the writer. The
/// reader opens the slab once and adds `offset`. Contents and lifetime as ArenaBlock, but for the owner's death: then
/// the block is lost.
struct CudaIpcBlock {
  static constexpr std::size_t kUuidBytes = 16;
  static constexpr std::size_t kHandleBytes = 64;

  ActorId owner;
  SegmentId slab = 0;
  std::uint64_t offset = 0;  ///< bytes from the slab's start to the storage's start
  std::uint64_t bytes = 0;   ///< length of the block; meta must lie inside
  LeaseId lease = 0;
  LeaseId mapping = 0;  ///< lease of this reader on the slab as a whole: released when it closes the slab
  /// Raw: uuid of the device, cudaIpcMemHandle_t of the slab, cudaIpcEventHandle_t. One string, since a handle of any
  /// kind is as large as its largest kind.
  std::string handles;
  bool operator==(const CudaIpcBlock&) const = default;

  static std::string join_handles(std::string_view uuid, std::string_view memory, std::string_view event);
  /// Only on a handle that check() accepted.
  std::string_view device_uuid() const { return std::string_view(handles).substr(0, kUuidBytes); }
  std::string_view memory_handle() const { return std::string_view(handles).substr(kUuidBytes, kHandleBytes); }
  std::string_view event_handle() const { return std::string_view(handles).substr(kUuidBytes + kHandleBytes); }
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

/// How a tensor gets from its maker to a reader.
enum class TransportPath : std::uint8_t {
  kSameProcess = 0,  ///< by its address
  kIpc = 1,          ///< opened where it lies, on the reader's own device
  kPeer = 2,         ///< opened where it lies and read from another device
  kHostCopy = 3,     ///< as a copy in host memory
};
std::string_view transport_path_name(TransportPath path);  ///< "same process", "ipc", "peer", "host copy"

/// What flows along the edges of a program: nothing (None), a tensor or a plain number.
using WireValue = std::variant<std::monostate, TensorHandle, std::int64_t, double, bool>;

/// Bytes that `value` adds to a message, for credits and limits.
std::size_t wire_bytes(const WireValue& value);

}  // namespace callboard
