#include "messages/tensor_handle.h"

namespace callboard {
namespace {

constexpr std::size_t kCudaHandlesBytes = CudaIpcBlock::kUuidBytes + 2 * CudaIpcBlock::kHandleBytes;

Status malformed(std::string message) { return fail(ErrorCode::kMalformed, std::move(message)); }

Status check_inside(const TensorMeta& meta, std::uint64_t extent, std::uint64_t bytes, const char* where) {
  if (extent <= bytes) return {};
  return malformed("tensor " + meta.to_string() + " touches " + std::to_string(extent) + " bytes, but its " + where +
                   " has " + std::to_string(bytes));
}

Status check_block(const ActorId& owner, std::uint64_t offset, std::uint64_t bytes) {
  if (owner.name.empty()) return malformed("a tensor handle names no owner");
  std::uint64_t end = 0;
  if (__builtin_add_overflow(offset, bytes, &end) || end > static_cast<std::uint64_t>(INT64_MAX)) {
    return malformed("a block of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of " +
                     owner.to_string() + " lies beyond what can be addressed");
  }
  return {};
}

}  // namespace

std::string CudaIpcBlock::join_handles(std::string_view uuid, std::string_view memory, std::string_view event) {
  std::string handles;
  handles.reserve(kCudaHandlesBytes);
  return handles.append(uuid).append(memory).append(event);
}

Status TensorHandle::check() const {
  CALLBOARD_ASSIGN(const std::uint64_t extent, meta.extent_bytes());
  if (const auto* inline_bytes = std::get_if<InlineBytes>(&data)) {
    return check_inside(meta, extent, inline_bytes->bytes.size(), "inline data");
  }
  if (const auto* block = std::get_if<ArenaBlock>(&data)) {
    CALLBOARD_TRY(check_block(block->owner, block->offset, block->bytes));
    return check_inside(meta, extent, block->bytes, "block");
  }
  const auto& block = std::get<CudaIpcBlock>(data);
  CALLBOARD_TRY(check_block(block.owner, block.offset, block.bytes));
  if (block.handles.size() != kCudaHandlesBytes) {
    return malformed("a CUDA block of " + block.owner.to_string() +
                     " needs a uuid of 16 bytes and two handles of 64 bytes, 144 in all, has " +
                     std::to_string(block.handles.size()));
  }
  return check_inside(meta, extent, block.bytes, "block");
}

std::string_view transport_path_name(TransportPath path) {
  switch (path) {
    case TransportPath::kSameProcess:
      return "same process";
    case TransportPath::kIpc:
      return "ipc";
    case TransportPath::kPeer:
      return "peer";
    case TransportPath::kHostCopy:
      return "host copy";
  }
  return "unknown";
}

std::size_t wire_bytes(const WireValue& value) {
  constexpr std::size_t kNumberBytes = 10;
  constexpr std::size_t kHandleBytes = 64;  // names, tags and numbers of a handle beside its arrays and bytes
  const auto* handle = std::get_if<TensorHandle>(&value);
  if (handle == nullptr) return kNumberBytes;
  std::size_t bytes = kHandleBytes + 9 * (handle->meta.sizes.size() + handle->meta.strides.size());
  if (const auto* inline_bytes = std::get_if<InlineBytes>(&handle->data)) {
    bytes += inline_bytes->bytes.size();
  } else if (const auto* block = std::get_if<ArenaBlock>(&handle->data)) {
    bytes += block->owner.name.size() + 45;
  } else {
    const auto& cuda = std::get<CudaIpcBlock>(handle->data);
    bytes += cuda.owner.name.size() + cuda.handles.size() + 54;
  }
  return bytes;
}

}  // namespace callboard
