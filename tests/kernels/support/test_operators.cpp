#include "tests/kernels/support/test_operators.h"

#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include "kernels/kernel.h"

namespace callboard::testing {

std::atomic<int> count_calls{0};
std::function<void()> hook_body;
std::string echoed;
std::atomic<int> effects_done{0};

namespace {

using kernels::describe;

at::Tensor count(const at::Tensor& x) {
  ++count_calls;
  return x.clone();
}

at::Tensor hook(const at::Tensor& x) {
  if (hook_body) hook_body();
  return x.clone();
}

at::Tensor throws(const at::Tensor&, const std::string& how) {
  if (how == "runtime_error") throw std::runtime_error("plain trouble");
  if (how == "int") throw 7;
  if (how == "bad_alloc") throw std::bad_alloc();
  if (how == "failure") {
    Error error(ErrorCode::kPythonFailed, "the Python kernel failed");
    error.detail = "Traceback: line 1";
    throw kernels::KernelFailure(error);
  }
  TORCH_CHECK(false, "ATen trouble");
}

std::tuple<at::Tensor, std::vector<at::Tensor>> pair(const at::Tensor& x) { return {x.add(1), {x.add(2), x.add(3)}}; }

std::optional<at::Tensor> maybe(const at::Tensor& x, bool give) {
  return give ? std::optional<at::Tensor>(x.clone()) : std::nullopt;
}

std::tuple<int64_t, double, bool> numbers(const at::Tensor& x) { return {x.numel(), 0.5, true}; }
std::vector<int64_t> shape_list(const at::Tensor& x) { return x.sizes().vec(); }
at::Tensor as_double(const at::Tensor& x) { return x.to(at::kDouble); }
at::Tensor twice(const at::Tensor& x) { return at::cat({x, x}); }

/// Edits the list that it was given, as an operator from elsewhere may.
int64_t keep_list(c10::List<int64_t> list) {
  list.push_back(1);
  return static_cast<int64_t>(list.size());
}

int64_t with_generator(const at::Tensor&, std::optional<at::Generator> generator) { return generator.has_value(); }
void effect(const at::Tensor&) { ++effects_done; }

void add_to(const at::Tensor& x, at::Tensor y) { y.add_(x); }

template <class T>
std::string list_text(const std::string& kind, const T& items) {
  std::string text = kind + "[";
  for (const auto& item : items) {
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, std::string>) {
      text += item + ",";
    } else {
      text += std::to_string(item) + ",";
    }
  }
  return text + "]";
}

int64_t echo(const at::Tensor& t, int64_t i, double f, bool b, c10::complex<double> c, std::string s, at::ScalarType d,
             at::Layout l, at::MemoryFormat m, at::Device v) {
  echoed = describe(t) + " i" + std::to_string(i) + " f" + std::to_string(f) + " b" + std::to_string(b) + " c" +
           std::to_string(c.real()) + "," + std::to_string(c.imag()) + " s" + s + " d" + c10::toString(d) + " l" +
           std::to_string(static_cast<int>(l)) + " m" + std::to_string(static_cast<int>(m)) + " v" + v.str();
  return 0;
}

int64_t echo_lists(at::IntArrayRef i, at::ArrayRef<double> f, c10::List<bool> b, c10::List<std::string> s,
                   const c10::List<std::optional<at::Tensor>>& o, at::TensorList t, at::ArrayRef<at::Scalar> n) {
  std::vector<bool> bools;
  for (const bool item : b) bools.push_back(item);
  std::vector<std::string> strings;
  for (const auto& item : s) strings.push_back(item);
  echoed = list_text("i", i.vec()) + list_text("f", f.vec()) + list_text("b", bools) + list_text("s", strings) + "o[";
  for (std::size_t k = 0; k < o.size(); ++k) echoed += std::optional<at::Tensor>(o.get(k)).has_value() ? "x" : "-";
  echoed += "]t" + std::to_string(t.size()) + "n[";
  for (std::size_t k = 0; k < n.size(); ++k) echoed += c10::toString(n[k].type()) + std::string(",");
  echoed += "]";
  return 0;
}

int64_t echo_scalar(const at::Scalar& s) {
  echoed = std::string(c10::toString(s.type()));
  return 0;
}

int64_t echo_optional(std::optional<int64_t> i, std::optional<at::ScalarType> d, at::OptionalIntArrayRef l,
                      const std::optional<at::Tensor>& t, std::string_view named) {
  echoed = std::string(i ? "i" : "-") + (d ? "d" : "-") + (l ? "l" : "-") + (t && t->defined() ? "t" : "-") +
           std::string(named);
  return 0;
}

int64_t echo_expanded(at::IntArrayRef i) {
  echoed = list_text("i", i.vec());
  return 0;
}

}  // namespace

TORCH_LIBRARY(cbtest, m) {
  m.def("count(Tensor x) -> Tensor", &count);
  m.def("hook(Tensor x) -> Tensor", &hook);
  m.def("throws(Tensor x, str how) -> Tensor", &throws);
  m.def("pair(Tensor x) -> (Tensor, Tensor[])", &pair);
  m.def("maybe(Tensor x, bool give) -> Tensor?", &maybe);
  m.def("numbers(Tensor x) -> (int, float, bool)", &numbers);
  m.def("shape_list(Tensor x) -> int[]", &shape_list);
  m.def("as_double(Tensor x) -> Tensor", &as_double);
  m.def("twice(Tensor x) -> Tensor", &twice);
  m.def("keep_list(int[] list) -> int", &keep_list);
  m.def("with_generator(Tensor x, *, Generator? generator=None) -> int", &with_generator);
  m.def("effect(Tensor x) -> ()", &effect);
  m.def("add_to(Tensor x, Tensor(a!) y) -> ()", &add_to);
  m.def(
      "echo(Tensor t, int i, float f, bool b, complex c, str s, ScalarType d, Layout l, MemoryFormat m, Device v) -> "
      "int",
      &echo);
  m.def("echo_lists(int[] i, float[] f, bool[] b, str[] s, Tensor?[] o, Tensor[] t, Scalar[] n) -> int", &echo_lists);
  m.def("echo_scalar(Scalar s) -> int", &echo_scalar);
  m.def(
      "echo_optional(int? i=None, ScalarType? d=None, int[]? l=None, Tensor? t=None, *, str named=\"default\") -> int",
      &echo_optional);
  m.def("echo_expanded(int[2] i) -> int", &echo_expanded);
  m.def("only_elsewhere(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(cbtest, CUDA, m) { m.impl("only_elsewhere", &count); }

}  // namespace callboard::testing
