// What every GilDomain must hold to, over the functions of tests/python/standin_kernels.py. A kind's test file is:
// include this, make the domain, done.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <c10/core/InferenceMode.h>
#include <nlohmann/json.hpp>

#include "kernels/gil_domain.h"
#include "kernels/kernel_failure.h"
#include "tests/kernels/python/support/python_fixture.h"
#include "tests/support/test.h"

namespace callboard::kernels::conformance {

/// What a domain under test brings.
inline std::vector<PythonKernelEntry> suite_entries() {
  return testing::standin({"scale", "pair", "chunks", "join", "count", "raises", "exits", "out_of_memory",
                           "returns_none", "returns_three", "returns_argument", "writes_secretly", "writes_and_raises",
                           "keeps_result", "spoils_kept", "from_numpy", "noise", "spins"});
}

inline const PythonOperator& operator_of(const GilDomain& domain, const std::string& function) {
  for (const PythonOperator& op : domain.operators()) {
    if (op.op == "standin::" + function) return op;
  }
  throw std::runtime_error("the domain does not bring standin::" + function);
}

inline void check_identity(const GilDomain& domain, const std::string& kind) {
  CHECK(domain.kind() == kind);
  CHECK(domain.operators().size() == suite_entries().size());
  CHECK(operator_of(domain, "scale").target == "standin_kernels:scale");
  CHECK(operator_of(domain, "scale").schema.arguments().size() == 2);
  CHECK_FALSE(operator_of(domain, "scale").random);
  CHECK(operator_of(domain, "noise").random);
  CHECK_FALSE(domain.why_not("standin::same").empty());
  CHECK(domain.why_not("standin::never_heard_of").empty());
  const nlohmann::json text = nlohmann::json::parse(domain.describe());
  CHECK(text.at("domain") == kind);
  CHECK(text.at("operators").size() == domain.operators().size());
  CHECK(text.at("gil").at("acquired").is_object());
}

inline void check_values(GilDomain& domain) {
  for (const std::int64_t size : {3, 100'000}) {
    const at::Tensor x = at::rand({2, size});
    CHECK(testing::identical(testing::call(domain, "scale", {x, 2.5}).at(0).toTensor(), x * 2.5));
    const auto pair = testing::call(domain, "pair", {x});
    REQUIRE(pair.size() == 2);
    CHECK(testing::identical(pair[1].toTensor(), x * 2));
    const auto chunks = testing::call(domain, "chunks", {x, 2}).at(0).toTensorVector();
    REQUIRE(chunks.size() == 2);
    CHECK(testing::identical(chunks[1], x.slice(0, 1, 2)));
    const c10::List<at::Tensor> parts(std::vector<at::Tensor>{x, x});
    CHECK(testing::identical(testing::call(domain, "join", {parts, c10::IValue()}).at(0).toTensor(), at::cat({x, x})));
  }
  const auto numbers = testing::call(domain, "count", {at::ones({4})});
  REQUIRE(numbers.size() == 3);
  CHECK(numbers[0].toInt() == 4);
  CHECK(numbers[1].toDouble() == 4.0);
  CHECK(numbers[2].toBool());
}

/// Each costs its call; the next one works.
inline void check_errors(GilDomain& domain) {
  const auto failing = [&](const char* function) {
    const Error error = testing::call_error(domain, function, {at::ones({3})});
    CHECK(
        testing::identical(testing::call(domain, "scale", {at::ones({3}), 2.0}).at(0).toTensor(), at::full({3}, 2.0)));
    return error;
  };
  const Error raised = failing("raises");
  CHECK(raised.code == ErrorCode::kPythonFailed);
  CHECK(raised.message == "the Python kernel standin_kernels:raises raised ValueError: nothing to do for (3,)");
  CHECK(raised.detail.find("standin_kernels.py") != std::string::npos);
  CHECK(failing("exits").code == ErrorCode::kPythonFailed);
  CHECK(failing("out_of_memory").code == ErrorCode::kOutOfMemory);
  CHECK(failing("returns_none").code == ErrorCode::kOutputMismatch);
  CHECK(failing("returns_three").code == ErrorCode::kOutputMismatch);
  CHECK(failing("returns_argument").code == ErrorCode::kOutputMismatch);
}

/// A write that stays with the domain has harmed nothing.
inline void check_undeclared_writes(GilDomain& domain, bool harmed) {
  const at::Tensor x = at::ones({3});
  for (const char* function : {"writes_secretly", "writes_and_raises"}) {
    const c10::InferenceMode inference;
    torch::jit::Stack stack{x};
    std::vector<GilDomain::Undeclared> undeclared;
    try {
      domain.call(operator_of(domain, function), stack, undeclared);
    } catch (const KernelFailure& failure) {
      CHECK(failure.error().code == ErrorCode::kPythonFailed);
    }
    REQUIRE(undeclared.size() == 1);
    CHECK(undeclared[0].argument == 0);
    CHECK(undeclared[0].harmed == harmed);
    CHECK(undeclared[0].written.storage().unsafeGetStorageImpl() == x.storage().unsafeGetStorageImpl());
    if (!harmed) CHECK(testing::identical(x, at::ones({3})));
  }
}

/// Nothing that Python does later is seen in a result.
inline void check_results_are_own(GilDomain& domain) {
  for (const std::int64_t size : {3, 100'000}) {
    const at::Tensor kept = testing::call(domain, "keeps_result", {at::ones({size})}).at(0).toTensor();
    testing::call(domain, "spoils_kept", {at::ones({1})});
    CHECK(testing::identical(kept, at::full({size}, 2.0)));
    const at::Tensor numpy = testing::call(domain, "from_numpy", {at::ones({size})}).at(0).toTensor();
    CHECK(testing::identical(numpy, at::full({size}, 5.0)));
  }
}

/// Cancelled from the start: the first look finds it.
class Stop final : public StopSignal {
 public:
  std::optional<Error> stop_reason() const override { return Error(ErrorCode::kCancelled, "nobody wants it"); }
  TimePoint deadline() const override { return kNever; }
};

inline void check_stops(GilDomain& domain) {
  const c10::InferenceMode inference;
  const Stop stop;
  torch::jit::Stack stack{at::ones({3})};
  std::vector<GilDomain::Undeclared> undeclared;
  try {
    domain.call(operator_of(domain, "spins"), stack, undeclared, &stop);
    FAIL("it ran to its end");
  } catch (const KernelFailure& failure) {
    CHECK(failure.error().code == ErrorCode::kCancelled);
    CHECK(failure.error().detail.find("standin_kernels.py") != std::string::npos);
  }
  CHECK(testing::identical(testing::call(domain, "scale", {at::ones({3}), 2.0}).at(0).toTensor(), at::full({3}, 2.0)));
}

inline void check_gil_domain(GilDomain& domain, const std::string& kind) {
  REQUIRE(domain.warm_up(1));
  check_identity(domain, kind);
  check_values(domain);
  check_errors(domain);
  check_undeclared_writes(domain, kind == "inline");
  check_stops(domain);
  check_results_are_own(domain);
}

}  // namespace callboard::kernels::conformance
