// The arithmetic of callboard::rms_norm on contiguous rows in host memory. No LibTorch; any thread.
#pragma once

#include <cstdint>

namespace callboard::ops {

/// `rows` rows of `width` elements, from x to y (apart from each other), with `width` weights. Compiled for AVX2
/// and AVX-512 too; which one runs is asked of the processor, once.
void rms_norm_rows_float32(const float* x, const float* weight, float* y, std::int64_t rows, std::int64_t width,
                           double eps);
void rms_norm_rows_float64(const double* x, const double* weight, double* y, std::int64_t rows, std::int64_t width,
                           double eps);
/// By their bits.
void rms_norm_rows_bfloat16(const std::uint16_t* x, const std::uint16_t* weight, std::uint16_t* y, std::int64_t rows,
                            std::int64_t width, double eps);
void rms_norm_rows_float16(const std::uint16_t* x, const std::uint16_t* weight, std::uint16_t* y, std::int64_t rows,
                           std::int64_t width, double eps);

}  // namespace callboard::ops
