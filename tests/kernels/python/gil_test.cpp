// The guards, the ledger, and that tensors which Python has seen end without the GIL.
#include "kernels/python/gil.h"

#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/python_variable.h>

#include "kernels/kernel_failure.h"
#include "kernels/python/convert.h"
#include "kernels/python/py_ref.h"
#include "tests/kernels/python/support/python_fixture.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

static_assert(!std::is_copy_constructible_v<GilScopedAcquire> && !std::is_move_constructible_v<GilScopedAcquire>);
static_assert(!std::is_copy_constructible_v<GilScopedRelease> && !std::is_move_constructible_v<GilScopedRelease>);

ErrorCode refusal() {
  try {
    const GilScopedAcquire gil(GilSite::kCall);
  } catch (const KernelFailure& failure) {
    CHECK_FALSE(failure.error().message.empty());
    return failure.error().code;
  }
  return ErrorCode::kOk;
}

}  // namespace

TEST_CASE("the GIL is taken for a scope, nested scopes take it once, and the ledger knows") {
  const auto domain = make_domain({});
  GilLedger& ledger = inline_gil_ledger();
  const std::uint64_t before = ledger.acquired(GilSite::kCall);
  const std::uint64_t holds = ledger.hold().count();
  {
    const GilScopedAcquire outer(GilSite::kCall);
    CHECK(PyGILState_Check() == 1);
    {
      const GilScopedAcquire inner(GilSite::kCall);
      CHECK(PyGILState_Check() == 1);
    }
    CHECK(PyGILState_Check() == 1);
    {
      const GilScopedRelease release;
      std::thread([] {
        const GilScopedAcquire elsewhere(GilSite::kCall);
        CHECK(PyGILState_Check() == 1);
      }).join();
    }
    CHECK(PyGILState_Check() == 1);
  }
  CHECK(PyGILState_Check() == 0);
  CHECK(ledger.acquired(GilSite::kCall) == before + 2);
  CHECK(ledger.hold().count() >= holds + 2);
  CHECK(ledger.wait().count() >= ledger.acquired(GilSite::kCall));
  CHECK(ledger.waiting() == 0);
  CHECK(ledger.waiting_most() >= 1);
}

TEST_CASE("GIL-2: a thread that serves the loop is refused, and that is counted") {
  const auto domain = make_domain({});
  const std::uint64_t before = inline_gil_ledger().on_loop();
  const std::thread::id loop = std::this_thread::get_id();
  set_loop_question([loop] { return std::this_thread::get_id() == loop; });
  CHECK(refusal() == ErrorCode::kInternal);
  CHECK(inline_gil_ledger().on_loop() == before + 1);
  std::thread([] { CHECK(refusal() == ErrorCode::kOk); }).join();
  set_loop_question({});
  CHECK(refusal() == ErrorCode::kOk);
}

TEST_CASE("without a domain Python refuses, with one again it does not") {
  { const auto domain = make_domain({}); }
  CHECK(refusal() == ErrorCode::kActorUnavailable);
  const auto domain = make_domain({});
  CHECK(refusal() == ErrorCode::kOk);
}

TEST_CASE("R20, GIL-3: a thread keeps what Python knows of it, and threads may end and be made anew") {
  const auto domain = make_domain(standin({"calls_here"}));
  const std::uint64_t ended = inline_gil_ledger().acquired(GilSite::kThreadEnd);
  constexpr int kThreads = 8;
  for (int i = 0; i < kThreads; ++i) {
    std::thread([&] {
      for (std::int64_t calls = 1; calls <= 3; ++calls) {
        CHECK(call(*domain, "calls_here", {at::ones({2})}).at(0).toInt() == calls);
      }
    }).join();
  }
  CHECK(inline_gil_ledger().acquired(GilSite::kThreadEnd) == ended + kThreads);
}

TEST_CASE("histograms count by powers of two") {
  DurationHistogram histogram;
  histogram.add(std::chrono::nanoseconds(900));  // below 1 µs
  histogram.add(std::chrono::microseconds(1));
  histogram.add(std::chrono::microseconds(3));
  histogram.add(std::chrono::microseconds(1024));
  histogram.add(std::chrono::hours(2));
  CHECK(histogram.count(0) == 1);
  CHECK(histogram.count(1) == 1);
  CHECK(histogram.count(2) == 1);
  CHECK(histogram.count(11) == 1);
  CHECK(histogram.count(DurationHistogram::kBuckets - 1) == 1);
  CHECK(histogram.count() == 5);
  CHECK(histogram.total_ns() > 7'200'000'000'000);
}

namespace {

using Droppers = std::vector<std::pair<std::string, std::function<void()>>>;

/// Each drops the last reference that C++ has of a tensor which went through Python in one of the ways there are.
Droppers tensors_that_python_saw(GilDomain& domain) {
  Droppers drops;
  const auto add = [&](const std::string& name, std::vector<c10::IValue> values) {
    auto held = std::make_shared<std::vector<c10::IValue>>(std::move(values));
    drops.emplace_back(name, [held] { held->clear(); });
  };
  for (const std::int64_t size : {8, 100'000}) {  // on the heap, in the arena
    const auto fresh = [size] { return at::full({4, size}, 1.5); };
    const std::string suffix = size == 8 ? ", small" : ", large";
    for (const char* function :
         {"scale", "same", "row", "from_numpy", "sees_storages", "keeps_argument", "keeps_result"}) {
      std::vector<c10::IValue> arguments{fresh()};
      if (function == std::string("scale")) arguments.emplace_back(2.0);
      std::vector<c10::IValue> seen = arguments;
      add("the result of " + (function + suffix), call(domain, function, std::move(arguments)));
      add("the argument of " + (function + suffix), std::move(seen));
    }
    add("results of pair" + suffix, call(domain, "pair", {fresh()}));
    add("results of chunks" + suffix, call(domain, "chunks", {fresh(), 2}));
    const at::Tensor total = fresh();
    call(domain, "add_to", {total, fresh()});
    add("what add_to wrote" + suffix, {total});
  }
  // An error and its traceback, too.
  auto error = std::make_shared<Error>(call_error(domain, "raises", {at::ones({2})}));
  drops.emplace_back("an error", [error] { *error = Error(); });
  return drops;
}

}  // namespace

TEST_CASE("R18: no tensor that Python saw waits for the GIL to end, wherever it ends") {
  const auto domain = make_domain(standin({"scale", "same", "row", "from_numpy", "sees_storages", "keeps_argument",
                                           "keeps_result", "pair", "chunks", "add_to", "raises"}));
  const Droppers drops = tensors_that_python_saw(*domain);
  const GilScopedAcquire held(GilSite::kCall);  // until all have been dropped
  std::string last;
  auto dropped = std::async(std::launch::async, [&] {
    for (const auto& [name, drop] : drops) {
      last = name;
      drop();
    }
  });
  const bool free_of_the_gil = dropped.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  const GilScopedRelease release;  // a failure ends, too
  dropped.wait();
  INFO(last);
  CHECK(free_of_the_gil);
}

TEST_CASE("and a tensor that Python was given itself would wait: the case above can fail") {
  const auto domain = make_domain({});
  at::Tensor tensor = at::ones({4});
  const GilScopedAcquire held(GilSite::kCall);
  { const PyRef object = PyRef::steal(THPVariable_Wrap(tensor)); }
  auto dropped = std::async(std::launch::async, [&] { tensor.reset(); });
  CHECK(dropped.wait_for(std::chrono::milliseconds(150)) == std::future_status::timeout);
  const GilScopedRelease release;
  dropped.wait();
}

TEST_CASE("what Python keeps is told as held, and ends when Python lets it go") {
  const auto domain = make_domain(standin({"keeps_argument", "spoils_kept"}));
  run_python("KEPT.clear()");
  const auto held = [&] { return conversion_counts().held_blocks.load(); };
  const std::int64_t before = held();
  const at::Tensor x = at::full({50'000}, 2.0);
  call(*domain, "keeps_argument", {x});
  CHECK(held() == before + 1);
  call(*domain, "spoils_kept", {at::ones({2})});
  CHECK(held() == before);
}
