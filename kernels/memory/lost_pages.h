// Faults in mapped files whose file became shorter, or whose disk failed. The system answers such a read with SIGBUS,
// which ends a process. Here the mapping is given zeros in place of what was lost, and whoever asks is told.
// Private to kernels/memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "messages/base/error.h"

namespace callboard::kernels {

/// From now on pages of this private mapping that get lost read as zeros, from the first lost one to the mapping's end.
/// Installs the process's handler of SIGBUS the first time; faults elsewhere go to the handler that was there before.
/// The number is for the functions below. kResourceExhausted beyond 1,024 mappings. Any thread.
Result<std::size_t> watch_lost_pages(void* mapping, std::uint64_t bytes);
/// Before the mapping is unmapped. 0 is nothing.
void unwatch_lost_pages(std::size_t watch) noexcept;
/// Has any been lost since? True for good.
bool has_lost_pages(std::size_t watch) noexcept;

}  // namespace callboard::kernels
