// callboard::rms_norm on CPU and Meta, and its derivative on any device.
#include "kernels/custom_ops/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/custom_ops/rms_norm_rows.h"

namespace callboard::ops {

void check_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.device() == weight.device(), "callboard::rms_norm: x is on ", x.device(), ", weight on ",
              weight.device(), "; both must be on one device");
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "callboard::rms_norm: x is ", x.scalar_type(), ", weight is ",
              weight.scalar_type(), "; both must be of one dtype");
  const at::ScalarType type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf,
              "callboard::rms_norm: x is ", type, "; it must be Float, Double, BFloat16 or Half");
  TORCH_CHECK(x.dim() >= 1, "callboard::rms_norm: x has no dimension to take the mean over");
  TORCH_CHECK(weight.dim() == 1, "callboard::rms_norm: weight has ", weight.dim(), " dimensions; it must have one");
  TORCH_SYM_CHECK(weight.sym_size(0).sym_eq(x.sym_size(-1)), "callboard::rms_norm: weight has ", weight.sym_size(0),
                  " elements, the last dimension of x has ", x.sym_size(-1));
  TORCH_CHECK(eps >= 0, "callboard::rms_norm: eps is ", eps, "; it must be a number from 0 on");
}

namespace {

at::Tensor call(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("callboard::rms_norm", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
  return op.call(x, weight, eps);
}

at::Tensor rms_norm_meta(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight, eps);
  return at::empty_symint(x.sym_sizes(), x.options());
}

/// Fewer elements are not worth another thread.
constexpr std::int64_t kElementsAtOnce = 1 << 15;

const std::uint16_t* bits_of(const at::Tensor& tensor) {
  return static_cast<const std::uint16_t*>(tensor.const_data_ptr());
}

at::Tensor rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rms_norm(x, weight, eps);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  // Kept in variables: the pointers below are good as long as these live.
  const auto rows = x.expect_contiguous();
  const auto factors = weight.expect_contiguous();
  const std::int64_t width = x.size(-1);
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsAtOnce / width);
  at::parallel_for(0, x.numel() / width, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * width;
    const std::int64_t count = end - begin;
    if (x.scalar_type() == at::kFloat) {
      rms_norm_rows_float32(rows->const_data_ptr<float>() + at, factors->const_data_ptr<float>(),
                            y.mutable_data_ptr<float>() + at, count, width, eps);
    } else if (x.scalar_type() == at::kDouble) {
      rms_norm_rows_float64(rows->const_data_ptr<double>() + at, factors->const_data_ptr<double>(),
                            y.mutable_data_ptr<double>() + at, count, width, eps);
    } else {
      const auto run = x.scalar_type() == at::kHalf ? &rms_norm_rows_float16 : &rms_norm_rows_bfloat16;
      run(bits_of(*rows) + at, bits_of(*factors), static_cast<std::uint16_t*>(y.mutable_data_ptr()) + at, count, width,
          eps);
    }
  });
  return y;
}

/// With r = 1 / sqrt(mean(x * x) + eps) and n = x * r:
///   dx = r * (g * w - n * mean(g * w * n)),  dw = sum over the rows of g * n
/// Of differentiable operators, so it can be differentiated again. Halves are computed with in float32.
class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static constexpr bool is_traceable = true;  // for compiled autograd: reads nothing but what it is given

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return call(x, weight, eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::ScalarType type = saved[0].scalar_type();
    const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor x = saved[0].to(wide);
    const at::Tensor gradient = gradients[0].to(wide);
    const at::Tensor factor = at::rsqrt(at::mean(x * x, -1, true) + context->saved_data["eps"].toDouble());
    const at::Tensor normal = x * factor;
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) {
      const at::Tensor weighted = gradient * saved[1].to(wide);
      of_x = (factor * (weighted - normal * at::mean(weighted * normal, -1, true))).to(type);
    }
    if (context->needs_input_grad(1)) {
      of_weight = gradient * normal;
      std::vector<std::int64_t> leading(static_cast<std::size_t>(x.dim() - 1));
      std::iota(leading.begin(), leading.end(), 0);
      if (!leading.empty()) of_weight = of_weight.sum(leading);
      of_weight = of_weight.to(type);
    }
    return {of_x, of_weight, at::Tensor()};
  }
};

at::Tensor rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const bool backward = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  // Of a forward derivative (level 0 is the only one) apply() says that there is none.
  if (backward || x._fw_grad(0).defined() || weight._fw_grad(0).defined()) return RmsNorm::apply(x, weight, eps);
  const at::AutoDispatchBelowADInplaceOrView below;
  return call(x, weight, eps);
}

}  // namespace

}  // namespace callboard::ops

TORCH_LIBRARY_IMPL(callboard, CPU, m) { m.impl("rms_norm", callboard::ops::rms_norm_cpu); }
TORCH_LIBRARY_IMPL(callboard, Meta, m) { m.impl("rms_norm", callboard::ops::rms_norm_meta); }
TORCH_LIBRARY_IMPL(callboard, Autograd, m) { m.impl("rms_norm", callboard::ops::rms_norm_autograd); }
