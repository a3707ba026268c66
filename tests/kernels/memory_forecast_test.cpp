#include "kernels/memory_forecast.h"

#include "messages/graph_check.h"
#include "tests/kernels/support/fragment_maker.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

ValueSpec floats(Expr size) {
  return ValueSpec{"", ValueKind::kTensor, DType::kFloat32, std::vector<Expr>{std::move(size)}};
}

MemoryForecast forecast_of(const Fragment& fragment, std::vector<std::pair<ValueId, ValueId>> shared = {}) {
  return MemoryForecast(fragment, compute_frees(fragment), shared);
}

}  // namespace

TEST_CASE("the forecast peaks where most values live at once and frees after the last reader") {
  FragmentMaker maker("forecast");
  const ValueId x = maker.input(tensor_spec(DType::kFloat32, {10}));
  const ValueId a = maker.node("aten::relu", {value(x)}, {}, floats(Expr::constant(100)));
  const ValueId b = maker.node("aten::relu", {value(a)}, {}, floats(Expr::constant(50)));
  const ValueId c = maker.node("aten::relu", {value(b)}, {}, floats(Expr::constant(10)));
  maker.output(c);
  const MemoryForecast forecast = forecast_of(maker.build());
  const auto peak = forecast.peak({});
  CHECK(peak.bytes == 600);
  CHECK(peak.node == 1);
  REQUIRE(forecast.largest());
  CHECK(forecast.largest()->bytes == 600);
}

TEST_CASE("a view adds nothing to the forecast but keeps its base") {
  FragmentMaker maker("forecast of views");
  const ValueId x = maker.input(tensor_spec(DType::kFloat32, {10}));
  const ValueId a = maker.node("aten::relu", {value(x)}, {}, floats(Expr::constant(100)));
  const ValueId view = maker.node("aten::alias", {value(a)}, {}, floats(Expr::constant(100)));
  const ValueId c = maker.node("aten::relu", {value(view)}, {}, floats(Expr::constant(100)));
  maker.output(c);
  const Fragment fragment = maker.build();
  CHECK(forecast_of(fragment, {{a, view}}).peak({}).bytes == 800);
  CHECK(forecast_of(fragment, {{a, view}}).peak({}).node == 2);
}

TEST_CASE("the forecast follows symbols and knows no bound where a symbol has none") {
  FragmentMaker maker("forecast of symbols");
  maker.symbol("s0", 2, 1000);
  const ValueId x = maker.input(floats(Expr::symbol(0)));
  maker.output(maker.node("aten::relu", {value(x)}, {}, floats(Expr::symbol(0))));
  Fragment fragment = maker.build();
  CHECK(forecast_of(fragment).smallest().bytes == 8);
  CHECK(forecast_of(fragment).largest()->bytes == 4000);
  fragment.symbols[0].max = INT64_MAX;
  CHECK_FALSE(forecast_of(fragment).largest());
}

TEST_CASE("sizes that overflow do not wrap around in the forecast") {
  FragmentMaker maker("forecast of huge sizes");
  const ValueId x = maker.input(any_tensor());
  maker.output(maker.node("aten::relu", {value(x)}, {}, tensor_spec(DType::kFloat32, {std::int64_t{1} << 50})));
  maker.output(maker.node("aten::relu", {value(x)}, {}, tensor_spec(DType::kFloat32, {std::int64_t{1} << 50})));
  CHECK(forecast_of(maker.build()).peak({}).bytes >= std::uint64_t{1} << 44);
}
