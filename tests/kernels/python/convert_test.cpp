// Tensors to Python and back: the same memory, another storage, no Python object left behind.
#include "kernels/python/convert.h"

#include <cstring>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/view_as_complex.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include "kernels/python/gil.h"
#include "kernels/python/python_error.h"
#include "tests/kernels/python/support/python_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

bool has_python_object(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr ||
         tensor.storage().unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

/// The error of to_tensor() for the value of a Python expression.
Error refused(const std::string& expression) {
  const PyRef globals = PyRef::steal(PyDict_New());
  PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins());
  const PyRef torch = PyRef::steal(PyImport_ImportModule("torch"));
  PyDict_SetItemString(globals.get(), "torch", torch.get());
  const PyRef value = PyRef::steal(PyRun_String(expression.c_str(), Py_eval_input, globals.get(), globals.get()));
  if (!value) FAIL(take_python_error(expression).to_string());
  const auto tensor = to_tensor(value.get());
  REQUIRE_FALSE(tensor);
  CHECK(tensor.error().code == ErrorCode::kOutputMismatch);
  return tensor.error();
}

}  // namespace

TEST_CASE("Python gets the same memory over a storage of its own") {
  const auto domain = make_domain({});
  at::Tensor blob;
  {
    const c10::InferenceMode inference;  // as kernels make them
    blob = at::rand({6, 8}).slice(0, 1, 5).transpose(0, 1);
  }
  const GilScopedAcquire gil(GilSite::kCall);
  const c10::AutoGradMode no_grad(false);
  const auto alias = alias_for_python(blob);
  REQUIRE(alias);
  CHECK(alias->const_data_ptr() == blob.const_data_ptr());
  CHECK(alias->sizes() == blob.sizes());
  CHECK(alias->strides() == blob.strides());
  CHECK(alias->storage_offset() == blob.storage_offset());
  CHECK(alias->storage().unsafeGetStorageImpl() != blob.storage().unsafeGetStorageImpl());
  CHECK_FALSE(alias->is_inference());
  CHECK_FALSE(was_written(*alias));
  {
    const PyRef object = to_object(*alias);
    REQUIRE(object);
    const PyRef storage = PyRef::steal(PyObject_CallMethod(object.get(), "untyped_storage", nullptr));
    REQUIRE(storage);
    CHECK(has_python_object(*alias));
    const PyRef row = PyRef::steal(PyObject_CallMethod(object.get(), "select", "ii", 0, 0));
    const PyRef written = PyRef::steal(PyObject_CallMethod(row.get(), "add_", "i", 1));
    REQUIRE(written);
    CHECK(was_written(*alias));  // through a view
    const auto back = to_tensor(object.get());
    REQUIRE(back);
    CHECK(back->storage().unsafeGetStorageImpl() == blob.storage().unsafeGetStorageImpl());
    CHECK(back->strides() == blob.strides());
    CHECK_FALSE(has_python_object(*back));
  }
  CHECK_FALSE(has_python_object(blob));
}

TEST_CASE("R43: conj and neg bits, and whether it requires grad, are Python's, too") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const c10::AutoGradMode no_grad(false);
  const at::Tensor complex = at::view_as_complex(at::rand({3, 2}));
  const auto conj = alias_for_python(complex.conj());
  REQUIRE(conj);
  CHECK(conj->is_conj());
  CHECK(identical(*conj, complex.conj()));
  const auto imag = alias_for_python(at::imag(complex.conj()));
  REQUIRE(imag);
  CHECK(imag->is_neg());
  CHECK(identical(*imag, at::imag(complex.conj())));
  at::Tensor weight = at::rand({2});
  weight.requires_grad_();
  CHECK(alias_for_python(weight)->requires_grad());
  CHECK_FALSE(alias_for_python(at::rand({2}))->requires_grad());
}

TEST_CASE("R45: every dtype crosses, bit for bit") {
  const auto domain = make_domain(standin({"same"}));
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                                    at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble,
                                    at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kUInt64}) {
    INFO(c10::toString(type));
    at::Tensor x = at::empty({5}, type);
    at::Tensor bytes = at::arange(static_cast<std::int64_t>(x.nbytes()), at::kByte);
    if (type == at::kBool) bytes = bytes.remainder(2);
    std::memcpy(x.mutable_data_ptr(), bytes.to(at::kByte).const_data_ptr(), x.nbytes());
    const auto results = call(*domain, "same", {x});
    CHECK(results.at(0).toTensor().const_data_ptr() == x.const_data_ptr());
    CHECK(results.at(0).toTensor().scalar_type() == type);
    CHECK(identical(results.at(0).toTensor(), x));
  }
}

TEST_CASE("what is no plain tensor is refused by name") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  CHECK(refused("None").message.find("found None") == 0);
  CHECK(refused("{}").message.find("a dict") != std::string::npos);
  CHECK(refused("3").message.find("a int") != std::string::npos);
  CHECK(refused("[torch.ones(1)]").message.find("a list of 1") != std::string::npos);
  CHECK(refused("'text'").message.find("a str") != std::string::npos);
  CHECK(refused("torch.ones(2).to_sparse()").hint.find("to_dense") != std::string::npos);
  const auto sparse = alias_for_python(at::ones({2}).to_sparse());
  REQUIRE_FALSE(sparse);
  CHECK(sparse.error().code == ErrorCode::kUnsupported);
}

TEST_CASE("one tensor, a tuple and a list become an array; counts and nesting are told") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const PyRef one = to_object(at::ones({1}));
  const PyRef pair = PyRef::steal(PyTuple_Pack(2, one.get(), one.get()));
  const PyRef nested = PyRef::steal(PyTuple_Pack(2, one.get(), pair.get()));
  CHECK(to_tensor_array(one.get(), 1)->size() == 1);
  CHECK(to_tensor_array(pair.get(), 2)->size() == 2);
  CHECK(to_tensor_array(pair.get(), std::nullopt)->size() == 2);
  const auto count = to_tensor_array(pair.get(), 3);
  REQUIRE_FALSE(count);
  CHECK(count.error().message == "found a tuple of 2 where 3 are expected");
  const auto inner = to_tensor_array(nested.get(), 2);
  REQUIRE_FALSE(inner);
  CHECK(inner.error().message.find("item 1: found a tuple of 2") == 0);
}

TEST_CASE("an undefined tensor is None") {
  const auto domain = make_domain({});
  const GilScopedAcquire gil(GilSite::kCall);
  const auto alias = alias_for_python(at::Tensor());
  REQUIRE(alias);
  CHECK(to_object(*alias).get() == Py_None);
}

TEST_CASE("results are copied only where Python or another allocator has their memory") {
  const auto domain = make_domain(standin({"scale", "from_numpy", "keeps_result", "same", "row", "spoils_kept"}));
  run_python("KEPT.clear()");
  ConversionCounts& counts = conversion_counts();
  const auto copies_of = [&](const char* function, std::vector<c10::IValue> arguments) {
    const std::uint64_t before = counts.copied_blocks.load();
    call(*domain, function, std::move(arguments));
    return counts.copied_blocks.load() - before;
  };
  for (const std::int64_t size : {10, 100'000}) {
    CHECK(copies_of("scale", {at::ones({size}), 2.0}) == 0);
    CHECK(copies_of("same", {at::ones({size})}) == 0);
    CHECK(copies_of("row", {at::ones({3, size})}) == 0);
    CHECK(copies_of("from_numpy", {at::ones({size})}) == 1);
    CHECK(copies_of("keeps_result", {at::ones({size})}) == 1);
  }
  const at::Tensor kept = call(*domain, "keeps_result", {at::ones({4})}).at(0).toTensor();
  call(*domain, "spoils_kept", {at::ones({2})});
  CHECK(identical(kept, at::full({4}, 2.0)));  // what Python wrote later is not in it
}
