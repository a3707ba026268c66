// From which size on a tensor goes by handle.
#pragma once

#include <cstddef>

namespace callboard {

/// Up to so many bytes this process sends a tensor inside the message: limits::kInlineBytesMax, or what the environment
/// variable CALLBOARD_INLINE_BYTES says (0 to 1 MiB - 64, what one text of a message holds; anything else is ignored).
/// The variable is for measuring the limit (`tools/bench --only inline_threshold`). A reader takes either form, so
/// processes need not agree. Any thread.
std::size_t inline_bytes_max() noexcept;

}  // namespace callboard
