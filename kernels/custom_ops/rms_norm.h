// callboard::rms_norm(Tensor x, Tensor weight, float eps) -> Tensor
//
// y = x / sqrt(mean(x * x, last dimension) + eps) * weight
//
//   x       (..., d), float32, float64, bfloat16 or float16; any strides; d or any other size may be 0
//   weight  (d), of x's dtype, on x's device
//   eps     not negative, not NaN
//   result  x's sizes and dtype, contiguous, of its own memory
//
// Squares are summed in float32, in float64 for float64. Differentiable in x and weight, twice. c10::Error says what is
// wrong with an argument. Any thread; on CUDA the work is queued on the thread's current stream and nothing is waited
// for, so a CUDA graph can capture it.
#pragma once

#include <ATen/core/Tensor.h>

namespace callboard::ops {

/// Throws c10::Error unless the arguments are as above. Sizes may be symbolic.
void check_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace callboard::ops
