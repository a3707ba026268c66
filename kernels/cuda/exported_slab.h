// Opening what another process's SlabPool has lent. Private to kernels/cuda.
#pragma once

#include <string>

#include "kernels/cuda/device_error.h"
#include "kernels/cuda/runtime_table.h"
#include "messages/tensor_handle.h"

namespace callboard::kernels::cuda {

/// kTensorLost, for a block in memory of `owner`.
Error lost_block(const ActorId& owner, const std::string& why);

/// kMalformed where the handles are not as long as they must be.
Status check_handles(const CudaIpcBlock& block);

/// Maps the block's slab for the current device: from the address that it has here to the end of what was really
/// opened, whatever a handle says of it. kTensorLost if the handle names nothing (any more), kDeviceFailed, …
Result<AddressRange> open_exported_slab(RuntimeTable& runtime, DeviceHealth& health, const CudaIpcBlock& block);

}  // namespace callboard::kernels::cuda
