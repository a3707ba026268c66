// Tensors in and out of WireValues: tensor_convert, tensor_import, tensor_export.
#include <cstring>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>

#include "kernels/cpu_backend.h"
#include "kernels/tensor_convert.h"
#include "kernels/tensor_export.h"
#include "kernels/tensor_import.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

constexpr std::int64_t kLarge = 100'000;  // of one-byte elements and more: above the inline limit

struct Exchange {
  Exchange()
      : own(test_memory().arena, kSelf),
        backend(make_cpu_backend().value()),
        exporter(own, *backend),
        importer(own, test_memory().segments.get(), *backend),
        stream(backend->make_stream(StreamKind::kCommunicate).value()) {}

  Result<std::vector<WireValue>> try_out(const at::Tensor& tensor, bool copy = false,
                                         std::vector<ActorId> holders = {kClient}) {
    return exporter.export_item({c10::IValue(tensor), "result", copy, std::move(holders), {}}, *stream, kNever);
  }
  WireValue out(const at::Tensor& tensor, bool copy = false) { return try_out(tensor, copy).value().at(0); }
  at::Tensor in(const WireValue& value) { return importer.import(value).value().toTensor(); }

  OwnBlocks own;
  std::unique_ptr<DeviceBackend> backend;
  TensorExporter exporter;
  TensorImporter importer;
  std::unique_ptr<StreamContext> stream;
};

const TensorHandle& handle_of(const WireValue& value) { return std::get<TensorHandle>(value); }
bool is_inline(const WireValue& value) { return std::holds_alternative<InlineBytes>(handle_of(value).data); }
std::uint64_t leases() { return test_memory().arena->stats().leases; }

at::Tensor of_type(at::ScalarType type, std::int64_t count) {
  if (c10::isComplexType(type)) return at::randn({count}, at::kComplexDouble).to(type);
  if (c10::isFloatingType(type)) return at::randn({count}).to(type);
  return at::randint(0, 2, {count}, at::kLong).to(type);
}

}  // namespace

TEST_CASE("R45: every dtype goes out and in bit by bit, inline and by handle") {
  Exchange exchange;
  for (int number = 1; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    const at::ScalarType type = scalar_type_of(dtype).value();
    INFO(dtype_name(dtype));
    CHECK(dtype_of(type).value() == dtype);
    CHECK(c10::elementSize(type) == dtype_size(dtype));
    for (const std::int64_t count : {std::int64_t{7}, kLarge}) {
      const at::Tensor tensor = of_type(type, count);
      const WireValue wire = exchange.out(tensor);
      CHECK(handle_of(wire).meta.dtype == dtype);
      CHECK(is_inline(wire) == (count == 7));
      CHECK(identical(from_wire(wire), tensor));
    }
  }
}

TEST_CASE("dtypes that do not travel are refused by name") {
  CHECK(dtype_of(at::ScalarType::QInt8).error().message.find("QInt8") != std::string::npos);
  CHECK_FALSE(dtype_of(at::ScalarType::Bits8));
  CHECK_FALSE(scalar_type_of(DType::kUndefined));
}

TEST_CASE("R29: strided, offset, expanded, empty and 0-dim tensors keep shape, strides and values") {
  Exchange exchange;
  const at::Tensor base = at::rand({40, 50});
  const at::Tensor large = at::rand({400, 500});
  for (const at::Tensor& tensor :
       {base.t(), base.slice(0, 1, 40, 2), base.slice(1, 3), base.slice(0, 5, 6).expand({8, 50}), base[3][4],
        at::empty({0}), at::empty({3, 0, 2}), base.slice(0, 4, 4), large.t(), large.slice(0, 7), large.slice(1, 1, 400),
        large.slice(0, 0, 400, 2), large.slice(0, 5, 6).expand({400, 500}),
        at::rand({2, 64, 40, 30}).contiguous(at::MemoryFormat::ChannelsLast)}) {
    INFO(tensor.sizes() << " " << tensor.strides() << " " << tensor.storage_offset());
    const WireValue wire = exchange.out(tensor);
    CHECK(handle_of(wire).check());
    CHECK(handle_of(wire).meta.sizes == tensor.sizes().vec());
    CHECK(handle_of(wire).meta.strides == tensor.strides().vec());
    CHECK(identical(from_wire(wire), tensor));
    CHECK(identical(exchange.in(to_wire(tensor)), tensor));
    CHECK(exchange.in(to_wire(tensor)).strides() == tensor.strides());
  }
  CHECK(leases() == 0);
}

TEST_CASE("a column of a wide matrix is packed instead of taking all of it along") {
  Exchange exchange;
  const at::Tensor wide = at::rand({2'000, 200});
  const WireValue column = exchange.out(wide.select(1, 3));
  CHECK(is_inline(column));
  CHECK(identical(from_wire(column), wide.select(1, 3)));
  const at::Tensor thin = at::rand({30'000, 20}).slice(1, 0, 2);
  const WireValue packed = exchange.out(thin);
  CHECK_FALSE(is_inline(packed));
  CHECK(handle_of(packed).meta.is_contiguous());
  CHECK(identical(from_wire(packed), thin));
}

TEST_CASE("a view keeps its strides, however thin, where little memory goes along") {
  Exchange exchange;
  const at::Tensor cube = at::rand({5, 5, 5});
  const at::Tensor wide = at::rand({20, 10, 120});
  for (const at::Tensor& view : {cube.select(1, 3), cube.diagonal(0, 0, 1), cube.slice(2, 0, 1), cube.select(2, 4),
                                 wide.slice(1, 0, 9).slice(2, 0, 40), at::rand({200, 80}).select(1, 0)}) {
    INFO(view.sizes() << " " << view.strides());
    const WireValue wire = exchange.out(view);
    CHECK(handle_of(wire).meta.strides == view.strides().vec());
    CHECK(identical(from_wire(wire), view));
  }
  CHECK(leases() == 0);
}

TEST_CASE("what lies in the arena is leased where it lies, what does not is copied once") {
  Exchange exchange;
  const at::Tensor mine = at::rand({kLarge});
  const WireValue leased = exchange.try_out(mine, false, {kSelf}).value().at(0);
  CHECK(exchange.exporter.copied_bytes() == 0);
  CHECK(exchange.in(leased).const_data_ptr() == mine.const_data_ptr());

  std::vector<float> foreign(kLarge, 2.5f);
  const at::Tensor outside = at::from_blob(foreign.data(), {kLarge});
  CHECK(exchange.exporter.bytes_to_copy({c10::IValue(outside), "", false, {}}) == kLarge * sizeof(float));
  const auto copied = exchange.try_out(outside, false, {kClient, kPeer, kSelf}).value();
  CHECK(exchange.exporter.copied_bytes() == kLarge * sizeof(float));
  REQUIRE(copied.size() == 3);
  CHECK(leases() == 3);
  for (const WireValue& wire : copied) CHECK(identical(from_wire(wire), outside));
  CHECK(leases() == 0);
}

TEST_CASE("memory that must not be leased is copied") {
  Exchange exchange;
  const at::Tensor state = at::rand({kLarge});
  const WireValue wire = exchange.out(state, true);
  CHECK(exchange.exporter.copied_bytes() == kLarge * sizeof(float));
  state.zero_();
  CHECK(from_wire(wire).sum().item<float>() > 0);
}

TEST_CASE("a small view of a huge storage is copied so that its lease does not keep all of it") {
  Exchange exchange;
  const at::Tensor huge = at::rand({1'000'000});
  const at::Tensor view = huge.slice(0, 500'000, 520'000);
  const WireValue wire = exchange.out(view);
  CHECK(exchange.exporter.copied_bytes() == 80'000);
  CHECK(identical(from_wire(wire), view));
}

TEST_CASE("AR-1: a leased result stays as it was after its tensor is gone and its memory asked for again") {
  Exchange exchange;
  at::Tensor result = at::rand({kLarge});
  const at::Tensor copy = result.clone();
  const WireValue wire = exchange.out(result);
  result.reset();
  const at::Tensor next = at::ones({kLarge});
  CHECK(identical(from_wire(wire), copy));
}

TEST_CASE("R43: conjugated and negated views are resolved before their bytes are taken") {
  Exchange exchange;
  for (const std::int64_t count : {std::int64_t{5}, kLarge}) {
    const at::Tensor z = at::randn({count}, at::kComplexFloat);
    for (const at::Tensor& view : {z.conj(), z.conj().slice(0, 1), at::_neg_view(at::real(z)), at::imag(z.conj())}) {
      const at::Tensor back = from_wire(exchange.out(view));
      CHECK_FALSE(back.is_conj());
      CHECK_FALSE(back.is_neg());
      CHECK(identical(back, view));
    }
  }
}

TEST_CASE("tensors without plain memory are refused with what to do") {
  Exchange exchange;
  const auto sparse = exchange.try_out(at::ones({2, 2}).to_sparse());
  REQUIRE_FALSE(sparse);
  CHECK(sparse.error().code == ErrorCode::kUnsupported);
  CHECK(sparse.error().message.find("result") != std::string::npos);
  CHECK(sparse.error().hint.find("to_dense") != std::string::npos);
  const auto quantized = exchange.try_out(at::quantize_per_tensor(at::rand({4}), 0.1, 0, at::kQInt8));
  CHECK(quantized.error().code == ErrorCode::kUnsupported);
  CHECK(quantized.error().hint.find("dequantize") != std::string::npos);
  CHECK(exchange.try_out(at::empty({3}, at::kMeta)).error().code == ErrorCode::kUnsupported);
}

TEST_CASE("numbers and None travel as what they are") {
  Exchange exchange;
  const auto out = [&](c10::IValue value) {
    return exchange.exporter.export_item({std::move(value), "n", false, {kClient}}, *exchange.stream, kNever)
        .value()
        .at(0);
  };
  CHECK(out(std::int64_t{1}) == WireValue(std::int64_t{1}));
  CHECK(out(1.0) == WireValue(1.0));
  CHECK(out(true) == WireValue(true));
  CHECK(out(c10::IValue()) == WireValue());
  CHECK(exchange.importer.import(std::int64_t{1}).value().isInt());
  CHECK(exchange.importer.import(1.0).value().isDouble());
  CHECK(exchange.importer.import(true).value().isBool());
  CHECK(exchange.importer.import({}).value().isNone());
  CHECK_FALSE(exchange.exporter.export_item({c10::IValue("text"), "n", false, {kClient}}, *exchange.stream, kNever));
}

TEST_CASE("a block of another process is read where it lies and released with the last tensor over it") {
  Exchange exchange;
  const at::Tensor tensor = at::rand({kLarge});
  const std::uint64_t before = test_memory().peer->stats().leases;
  const WireValue wire = to_wire(tensor);
  CHECK(test_memory().peer->stats().leases == before + 1);
  at::Tensor read = exchange.in(wire);
  const at::Tensor view = read.slice(0, 10);
  CHECK(identical(read, tensor));
  read.reset();
  CHECK(test_memory().peer->stats().leases == before + 1);
  CHECK(identical(view, tensor.slice(0, 10)));
}

TEST_CASE("handles that lie about their block are refused before a view exists") {
  Exchange exchange;
  WireValue wire = to_wire(at::rand({kLarge}));
  auto& handle = std::get<TensorHandle>(wire);
  handle.meta.sizes = {kLarge * 100};
  CHECK_FALSE(exchange.importer.import(wire));
  TensorHandle inline_handle{TensorMeta::contiguous(DType::kFloat32, {100}), InlineBytes{"four"}};
  CHECK(exchange.importer.import(inline_handle).error().code == ErrorCode::kMalformed);
  TensorHandle negative{TensorMeta::contiguous(DType::kFloat32, {1}), InlineBytes{"four"}};
  negative.meta.storage_offset = -1;
  CHECK_FALSE(exchange.importer.import(negative));
  CHECK(exchange.importer.import(TensorHandle{TensorMeta::contiguous(DType::kFloat32, {1}), CudaIpcBlock{}})
            .error()
            .code == ErrorCode::kUnsupported);
}

TEST_CASE("a block at an odd address is copied to an aligned one") {
  Exchange exchange;
  Arena* peer = test_memory().peer;
  auto* block = static_cast<std::byte*>(peer->allocate(200'000).value());
  const float number = 1.25f;
  std::memcpy(block + 1, &number, sizeof number);
  ArenaBlock where = peer->lease(block, kSelf).value();
  peer->deallocate(block);
  where.offset += 1;
  where.bytes -= 1;
  const at::Tensor read = exchange.in(TensorHandle{TensorMeta::contiguous(DType::kFloat32, {1}), where});
  CHECK(read.item<float>() == 1.25f);
  CHECK(reinterpret_cast<std::uintptr_t>(read.const_data_ptr()) % 4 == 0);
}
