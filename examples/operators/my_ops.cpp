// Operators of your own, for Callboard's devices and for PyTorch alike: schema, kernel and shapes in a shared library.
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace {

/// clamp(x, low, high) * scale in one pass over contiguous float32; of every other kind by LibTorch's operators.
at::Tensor clamp_scale(const at::Tensor& x, double low, double high, double scale) {
  TORCH_CHECK_VALUE(low <= high, "myops::clamp_scale: low is ", low, " and high is ", high, "; low must not be above");
  if (x.scalar_type() != at::kFloat || !x.is_contiguous()) return at::clamp(x, low, high).mul(scale);
  at::Tensor y = at::empty_like(x);
  const auto* from = x.const_data_ptr<float>();
  auto* to = y.mutable_data_ptr<float>();
  const auto below = static_cast<float>(low);
  const auto above = static_cast<float>(high);
  const auto factor = static_cast<float>(scale);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const float item = from[i] < below ? below : from[i];  // NaN stays NaN
    to[i] = (item > above ? above : item) * factor;
  }
  return y;
}

/// Shapes only: by it torch.export and torch.compile know what comes out without running anything.
at::Tensor clamp_scale_meta(const at::Tensor& x, double, double, double) { return at::empty_like(x); }

}  // namespace

TORCH_LIBRARY(myops, library) {
  library.def("clamp_scale(Tensor x, float low, float high, float scale=1.0) -> Tensor");
}
TORCH_LIBRARY_IMPL(myops, CPU, library) { library.impl("clamp_scale", clamp_scale); }
TORCH_LIBRARY_IMPL(myops, Meta, library) { library.impl("clamp_scale", clamp_scale_meta); }
