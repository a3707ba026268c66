// Callboard's operators by their schemas, for tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/rsqrt.h>

#include <cstdint>

namespace callboard::testing {

template <class Signature>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("callboard::rms_norm")
      .call(x, weight, eps);
}

/// In float64, rounded once.
inline at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kDouble);
  return (wide * at::rsqrt((wide * wide).mean(-1, true) + eps) * weight.to(at::kDouble)).to(x.scalar_type());
}

inline void paged_append(const at::Tensor& cache, const at::Tensor& tokens, const at::Tensor& table,
                         const at::Tensor& positions) {
  operator_of<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "callboard::paged_append")
      .call(cache, tokens, table, positions);
}

inline at::Tensor paged_gather(const at::Tensor& cache, const at::Tensor& table, const at::Tensor& lengths,
                               std::int64_t max_length) {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t)>(
             "callboard::paged_gather")
      .call(cache, table, lengths, max_length);
}

}  // namespace callboard::testing
