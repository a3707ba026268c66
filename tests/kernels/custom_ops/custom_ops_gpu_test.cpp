// The CUDA kernels. Each test needs a GPU and says so where there is none.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tests/kernels/custom_ops/operators.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/kernels/support/gpu.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

at::Tensor on_gpu(const at::Tensor& tensor) { return tensor.to(at::Device(at::kCUDA, 0)); }

bool close(const at::Tensor& found, const at::Tensor& expected) {
  const at::ScalarType type = expected.scalar_type();
  return found.cpu().allclose(expected, type == at::kBFloat16 ? 2e-2 : type == at::kHalf ? 2e-3 : 1e-5, 1e-5);
}

}  // namespace

TEST_CASE("rms_norm on a GPU gives the reference's numbers for every dtype, width and stride", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  REQUIRE(load_callboard_operators());
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    // Below a warp, no whole vectors, within shared memory, beyond it.
    for (const std::int64_t width : {1, 7, 384, 1025, 4096, 40'000}) {
      const at::Tensor x = (at::rand({5, 3, width}) - 0.5).to(type);
      const at::Tensor weight = at::rand({width}).to(type);
      INFO(toString(type) << ", width " << width);
      const at::Tensor expected = rms_norm_reference(x, weight, 1e-6);
      CHECK(close(rms_norm(on_gpu(x), on_gpu(weight), 1e-6), expected));
      const at::Tensor turned = on_gpu(x.transpose(0, 1).contiguous()).transpose(0, 1);
      CHECK(close(rms_norm(turned, on_gpu(weight), 1e-6), expected));
      // Off the alignment that vectors need.
      const at::Tensor shifted = at::empty({x.numel() + 1}, turned.options()).slice(0, 1).view_as(x);
      shifted.copy_(x);
      CHECK(close(rms_norm(shifted, on_gpu(weight), 1e-6), expected));
    }
    CHECK(rms_norm(on_gpu(at::empty({0, 8}).to(type)), on_gpu(at::rand({8}).to(type)), 1e-6).numel() == 0);
  }
}

TEST_CASE("rms_norm has derivatives on a GPU, and a tensor on another device is refused", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  REQUIRE(load_callboard_operators());
  const at::Tensor x = on_gpu(at::rand({4, 32})).requires_grad_();
  const at::Tensor weight = on_gpu(at::rand({32})).requires_grad_();
  rms_norm(x, weight, 1e-6).sum().backward();
  const at::Tensor gradient = x.grad().cpu();
  const at::Tensor host = x.data().cpu().requires_grad_();
  rms_norm(host, weight.data().cpu(), 1e-6).sum().backward();
  CHECK(gradient.allclose(host.grad(), 1e-4, 1e-5));
  CHECK_THROWS_AS(rms_norm(x, weight.cpu(), 1e-6), c10::Error);
}

TEST_CASE("rms_norm runs on the current stream", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  REQUIRE(load_callboard_operators());
  load_gpu_operators();
  const at::Tensor x = on_gpu(at::rand({1 << 20}));
  const at::Tensor weight = on_gpu(at::rand({1 << 10}));
  const c10::impl::VirtualGuardImpl streams(at::kCUDA);
  streams.synchronizeDevice(0);
  const c10::StreamGuard guard(streams.getStreamFromGlobalPool(x.device()));
  // Takes long on this stream: who does not run behind it reads what is not there yet.
  const at::Tensor late =
      operator_of<at::Tensor(const at::Tensor&, double, double)>("cbgpu::spin_add").call(x, 200.0, 2.0);
  const at::Tensor y = rms_norm(late.view({1 << 10, 1 << 10}), weight, 1e-6);
  CHECK(close(y, rms_norm_reference((x.cpu() + 2).view({1 << 10, 1 << 10}), weight.cpu(), 1e-6)));
}

TEST_CASE("a fragment with rms_norm is captured as a CUDA graph, and its replays compute", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  REQUIRE(load_callboard_operators());
  RuntimeOptions options;
  options.kind = "cuda";
  TestDevice device(options);
  FragmentMaker maker("captured");
  const ValueSpec spec = tensor_spec(DType::kFloat32, {8, 64});
  const ValueId x = maker.input(spec);
  const at::Tensor factors = at::rand({64});
  const ValueId weight = add_constant(maker, factors);
  maker.output(maker.node("callboard::rms_norm", {value(x), value(weight), 1e-6}, {}, spec));
  const Fragment fragment = maker.build();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor rows = at::rand({8, 64});
    CHECK(close(device.result(fragment, {rows}), rms_norm_reference(rows, factors, 1e-6)));
  }
  CHECK(device.runtime().describe().find("captured, 4 replays") != std::string::npos);
}

TEST_CASE("the paged cache on a GPU holds and gives what it does on the cpu", "[gpu]") {
  CALLBOARD_NEEDS_GPU();
  REQUIRE(load_callboard_operators());
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kChar, at::kLong}) {
    for (const std::int64_t width : {1, 3, 64}) {
      const at::Tensor cache = at::zeros({6, 4, width}, at::TensorOptions().dtype(type));
      const at::Tensor device_cache = on_gpu(cache);
      const at::Tensor table = at::tensor({4, 1, 0, 5, 3, 2}, at::kInt).view({2, 3});
      const at::Tensor positions = at::tensor({3, 0}, at::kLong);
      const at::Tensor tokens = (at::rand({2, 5, width}) * 100).to(type);
      paged_append(cache, tokens, table, positions);
      paged_append(device_cache, on_gpu(tokens), on_gpu(table), on_gpu(positions));
      CHECK(identical(device_cache.cpu(), cache));
      const at::Tensor lengths = at::tensor({8, 5}, at::kInt);
      CHECK(identical(paged_gather(device_cache, on_gpu(table), on_gpu(lengths), 9).cpu(),
                      paged_gather(cache, table, lengths, 9)));
    }
  }
}
