#include "kernels/custom_ops/rms_norm_rows.h"

#include <cmath>
#include <cstring>

// One body for all levels of x86-64, in vectors of the compiler's own kind, as wide as the level's registers. What is
// inlined into a function is compiled for that function's level.
#define CALLBOARD_INLINE __attribute__((always_inline)) static inline

namespace callboard::ops {

namespace {

// Vectors go by reference: by value their ABI would depend on the level.

/// `kBytes` of elements that are computed with as they are.
template <class T, int kBytes>
struct Plain {
  using Element = T;
  using Sum = T;
  using Vector __attribute__((vector_size(kBytes))) = T;
  static constexpr std::int64_t kWidth = kBytes / sizeof(T);
  CALLBOARD_INLINE void load(const Element* from, Vector& to) { std::memcpy(&to, from, sizeof to); }
  CALLBOARD_INLINE void store(Element* to, const Vector& from) { std::memcpy(to, &from, sizeof from); }
};
template <int kBytes>
using Float32 = Plain<float, kBytes>;
template <int kBytes>
using Float64 = Plain<double, kBytes>;

template <int kBytes>
struct Vectors {
  using F32 __attribute__((vector_size(kBytes))) = float;
  using U32 __attribute__((vector_size(kBytes))) = std::uint32_t;
  using U16 __attribute__((vector_size(kBytes / 2))) = std::uint16_t;
};

/// Halves: computed with in float32, rounded to nearest even at the end. Bits has widen() and narrow().
template <class Bits, int kBytes>
struct Half : Vectors<kBytes> {
  using typename Vectors<kBytes>::U16;
  using typename Vectors<kBytes>::U32;
  using Element = std::uint16_t;
  using Sum = float;
  using Vector = typename Vectors<kBytes>::F32;
  static constexpr std::int64_t kWidth = kBytes / sizeof(float);
  CALLBOARD_INLINE void load(const Element* from, Vector& to) {
    U16 narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    U32 bits = __builtin_convertvector(narrow, U32);
    Bits::widen(bits);
    std::memcpy(&to, &bits, sizeof to);
  }
  CALLBOARD_INLINE void store(Element* to, const Vector& from) {
    U32 bits;
    std::memcpy(&bits, &from, sizeof bits);
    Bits::narrow(bits);
    const U16 narrow = __builtin_convertvector(bits, U16);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

template <int kBytes>
struct BFloat16Bits {
  using U32 = typename Vectors<kBytes>::U32;
  CALLBOARD_INLINE void widen(U32& bits) { bits <<= 16; }
  CALLBOARD_INLINE void narrow(U32& bits) {
    const U32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits = (bits & 0x7fffffff) > 0x7f800000 ? U32{} + 0x7fc0 : rounded;
  }
};
template <int kBytes>
using BFloat16 = Half<BFloat16Bits<kBytes>, kBytes>;

template <int kBytes>
struct Float16Bits {
  using F32 = typename Vectors<kBytes>::F32;
  using U32 = typename Vectors<kBytes>::U32;
  static constexpr std::uint32_t kBias = 112u << 23;     // between the exponents of both formats
  static constexpr std::uint32_t kOneHalf = 0x3f000000;  // 0.5f, whose last bit is worth one subnormal step
  static constexpr std::uint32_t kInfinity16 = 0x7c00;
  static constexpr std::uint32_t kNormalMin = 0x38800000;  // 2^-14, the least normal float16, as a float32

  CALLBOARD_INLINE void widen(U32& bits) {
    const U32 sign = (bits & 0x8000) << 16;
    const U32 magnitude = bits & 0x7fff;
    U32 wide = (magnitude << 13) + kBias;
    wide = magnitude >= kInfinity16 ? wide + kBias : wide;
    // Subnormals: steps above one half, less the half.
    U32 steps = magnitude + kOneHalf;
    F32 value;
    std::memcpy(&value, &steps, sizeof value);
    value -= 0.5F;
    std::memcpy(&steps, &value, sizeof steps);
    bits = (magnitude < 0x400 ? steps : wide) | sign;
  }
  CALLBOARD_INLINE void narrow(U32& bits) {
    const U32 sign = (bits & 0x80000000) >> 16;
    const U32 magnitude = bits & 0x7fffffff;
    U32 normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - kBias) >> 13;
    normal = normal > kInfinity16 ? U32{} + kInfinity16 : normal;
    // Subnormals: the addition rounds to steps.
    F32 value;
    std::memcpy(&value, &magnitude, sizeof value);
    value += 0.5F;
    U32 steps;
    std::memcpy(&steps, &value, sizeof steps);
    steps -= kOneHalf;
    U32 narrowed = magnitude < kNormalMin ? steps : normal;
    narrowed = magnitude > 0x7f800000 ? U32{} + 0x7e00 : narrowed;
    bits = narrowed | sign;
  }
};
template <int kBytes>
using Float16 = Half<Float16Bits<kBytes>, kBytes>;

/// The last elements of a row, with zeros behind them: they add nothing to the sum and are not written back.
template <class T>
CALLBOARD_INLINE void load_tail(const typename T::Element* from, std::int64_t count, typename T::Vector& to) {
  typename T::Element padded[T::kWidth] = {};
  for (std::int64_t i = 0; i < count; ++i) padded[i] = from[i];
  T::load(padded, to);
}

template <class T>
CALLBOARD_INLINE void add_square(const typename T::Element* from, typename T::Vector& sum) {
  typename T::Vector value;
  T::load(from, value);
  sum += value * value;
}

template <class T>
CALLBOARD_INLINE typename T::Sum sum_of_squares(const typename T::Element* row, std::int64_t width) {
  // Four side by side, so that one addition does not wait for the one before; names, since GCC keeps an array in
  // memory.
  typename T::Vector first = {};
  typename T::Vector second = {};
  typename T::Vector third = {};
  typename T::Vector fourth = {};
  std::int64_t i = 0;
  for (; i + 4 * T::kWidth <= width; i += 4 * T::kWidth) {
    add_square<T>(row + i, first);
    add_square<T>(row + i + T::kWidth, second);
    add_square<T>(row + i + 2 * T::kWidth, third);
    add_square<T>(row + i + 3 * T::kWidth, fourth);
  }
  for (; i + T::kWidth <= width; i += T::kWidth) add_square<T>(row + i, first);
  if (i < width) {
    typename T::Vector value;
    load_tail<T>(row + i, width - i, value);
    second += value * value;
  }
  const typename T::Vector all = (first + second) + (third + fourth);
  typename T::Sum total = 0;
  for (std::int64_t lane = 0; lane < T::kWidth; ++lane) total += all[lane];
  return total;
}

template <class T>
CALLBOARD_INLINE void scale(const typename T::Element* row, const typename T::Element* weight, typename T::Element* to,
                            std::int64_t width, typename T::Sum factor) {
  typename T::Vector value;
  typename T::Vector by;
  std::int64_t i = 0;
  for (; i + T::kWidth <= width; i += T::kWidth) {
    T::load(row + i, value);
    T::load(weight + i, by);
    value = value * factor * by;
    T::store(to + i, value);
  }
  if (i == width) return;
  load_tail<T>(row + i, width - i, value);
  load_tail<T>(weight + i, width - i, by);
  value = value * factor * by;
  typename T::Element padded[T::kWidth];
  T::store(padded, value);
  for (std::int64_t k = 0; k < width - i; ++k) to[i + k] = padded[k];
}

template <class Element>
struct Rows {
  const Element* x;
  const Element* weight;
  Element* y;
  std::int64_t rows;
  std::int64_t width;
  double eps;
};

template <class T>
CALLBOARD_INLINE void rms_norm(const Rows<typename T::Element>& all) {
  for (std::int64_t row = 0; row < all.rows; ++row) {
    const auto* const x = all.x + row * all.width;
    const double mean = static_cast<double>(sum_of_squares<T>(x, all.width)) / static_cast<double>(all.width);
    scale<T>(x, all.weight, all.y + row * all.width, all.width,
             static_cast<typename T::Sum>(1.0 / std::sqrt(mean + all.eps)));
  }
}

template <template <int> class Format>
using RowsOf = Rows<typename Format<16>::Element>;

#if defined(__x86_64__)
template <template <int> class Format>
__attribute__((target("avx2,fma"))) void run_avx2(const RowsOf<Format>& all) {
  rms_norm<Format<32>>(all);
}

template <template <int> class Format>
__attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma"))) void run_avx512(const RowsOf<Format>& all) {
  rms_norm<Format<64>>(all);
}

enum class Level { kBase, kAvx2, kAvx512 };

Level level_here() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return !avx2 ? Level::kBase : avx512 ? Level::kAvx512 : Level::kAvx2;
}
#endif

template <template <int> class Format>
void run(const RowsOf<Format>& all) {
#if defined(__x86_64__)
  static const Level level = level_here();
  if (level == Level::kAvx512) return run_avx512<Format>(all);
  if (level == Level::kAvx2) return run_avx2<Format>(all);
#endif
  rms_norm<Format<16>>(all);
}

}  // namespace

void rms_norm_rows_float32(const float* x, const float* weight, float* y, std::int64_t rows, std::int64_t width,
                           double eps) {
  run<Float32>({x, weight, y, rows, width, eps});
}

void rms_norm_rows_float64(const double* x, const double* weight, double* y, std::int64_t rows, std::int64_t width,
                           double eps) {
  run<Float64>({x, weight, y, rows, width, eps});
}

void rms_norm_rows_bfloat16(const std::uint16_t* x, const std::uint16_t* weight, std::uint16_t* y, std::int64_t rows,
                            std::int64_t width, double eps) {
  run<BFloat16>({x, weight, y, rows, width, eps});
}

void rms_norm_rows_float16(const std::uint16_t* x, const std::uint16_t* weight, std::uint16_t* y, std::int64_t rows,
                           std::int64_t width, double eps) {
  run<Float16>({x, weight, y, rows, width, eps});
}

}  // namespace callboard::ops
