#include "kernels/cuda/exported_slab.h"

#include <cstring>

namespace callboard::kernels::cuda {

Error lost_block(const ActorId& owner, const std::string& why) {
  return Error(ErrorCode::kTensorLost, "a tensor in CUDA memory of " + owner.to_string() + " is lost: " + why,
               "run again what made it");
}

Status check_handles(const CudaIpcBlock& block) {
  if (block.handles.size() == CudaIpcBlock::kUuidBytes + 2 * CudaIpcBlock::kHandleBytes) return {};
  return fail(ErrorCode::kMalformed, "a CUDA block of '" + block.owner.to_string() + "' has " +
                                         std::to_string(block.handles.size()) + " bytes of handles");
}

Result<AddressRange> open_exported_slab(RuntimeTable& runtime, DeviceHealth& health, const CudaIpcBlock& block) {
  IpcMemoryHandle handle;
  std::memcpy(handle.bytes.data(), block.memory_handle().data(), handle.bytes.size());
  void* base = nullptr;
  const std::string about = "slab " + std::to_string(block.slab) + " of " + block.owner.to_string();
  const Code code = runtime.ipc_open_memory(&base, handle);
  const Failure failure = code_info(code).failure;
  if (!health.failed() && (failure == Failure::kUsage || failure == Failure::kStaleHandle)) {
    // The arguments are right, so it is the handle that names nothing any more.
    return fail(lost_block(block.owner, health.describe(code, "cudaIpcOpenMemHandle", about).message));
  }
  CALLBOARD_TRY(health.note(code, "cudaIpcOpenMemHandle", about));
  AddressRange range;
  if (const Status known = health.note(runtime.address_range(base, &range), "cuMemGetAddressRange", about); !known) {
    if (!health.failed()) (void)health.note(runtime.ipc_close_memory(base), "cudaIpcCloseMemHandle", about);
    return fail(known.error());
  }
  const auto before = static_cast<std::uint64_t>(static_cast<std::byte*>(base) - static_cast<std::byte*>(range.base));
  return AddressRange{base, before <= range.bytes ? range.bytes - before : 0};
}

}  // namespace callboard::kernels::cuda
