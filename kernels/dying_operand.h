// An elementwise operator whose first operand nobody will read again writes its result there: no allocation, and for
// large tensors no fresh pages.
#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace callboard::kernels {

/// The in-place form (`add_` of `add`) of an operator that LibTorch tags as pointwise, if both have a kernel of their
/// own on CPU: then the two run the same loop and give the same bits. nullopt otherwise. Only for CPU: on a GPU another
/// stream may still read memory that no tensor holds any more.
std::optional<c10::OperatorHandle> in_place_form(const c10::OperatorHandle& op);

/// Whether the operator whose `count` arguments lie on top of `stack` may write into the first one, without anybody
/// seeing it but by the time it takes. So it is if
///   - this stack holds the only reference to the tensor and the tensor the only one to its memory (no view, no lease,
///     no export under way, not what the run was given or keeps: constants, state);
///   - that memory came from the allocator and is no larger than the tensor;
///   - the result has the same sizes, dtype `result` and, to the last one, the same strides: all tensors contiguous and
///     of one dtype (Python numbers may be of a lesser one), each with the first one's sizes or with no dimensions;
///   - the first one is not a number made a tensor (n of `torch.mul(n, x)`), which promotes less than its result does.
/// Cost: some loads of what the operator reads anyway.
bool may_overwrite_first(const torch::jit::Stack& stack, std::size_t count, c10::ScalarType result);

}  // namespace callboard::kernels
