// The module callboard._plain_ops: rms_norm as a plain pybind11 function, beside the operator of the same arithmetic.
// What torch.compile, torch.export and TorchScript make of it is what operators are registered for.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

namespace {

/// c10::Error becomes RuntimeError. The GIL is let go while it computes: nothing of Python is touched.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const pybind11::gil_scoped_release release;
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("callboard::rms_norm", "")
      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>()
      .call(x, weight, eps);
}

}  // namespace

PYBIND11_MODULE(_plain_ops, module) {
  module.def("rms_norm", &rms_norm, pybind11::arg("x"), pybind11::arg("weight"), pybind11::arg("eps"));
}
