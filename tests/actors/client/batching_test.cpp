#include "actors/client/batching.h"

#include <thread>

#include "actors/client/replicas.h"
#include "tests/actors/client/client_fixture.h"
#include "tests/actors/client/scripted_program.h"

using namespace callboard;
using namespace callboard::actors;
using namespace std::chrono_literals;

namespace {

constexpr Duration kLong = 1h;  // a batch that leaves for another reason than its delay

struct Batching {
  std::shared_ptr<ScriptedProgram> inner;
  std::shared_ptr<Program> program;

  explicit Batching(std::int64_t max_batch, Duration max_delay = kLong, std::size_t max_queued = 1024, bool pure = true)
      : inner(std::make_shared<ScriptedProgram>(rows_graph(), "cpu0", pure)) {
    BatchingOptions options;
    options.max_batch = max_batch;
    options.max_delay = max_delay;
    options.max_queued = max_queued;
    auto made = make_batched(allocate_private, inner, options);
    REQUIRE(made);
    program = *made;
  }
  ~Batching() { inner->end_all(); }
  Batching(const Batching&) = delete;
  Batching& operator=(const Batching&) = delete;

  std::shared_ptr<Future> submit(float fill, std::int64_t rows, std::optional<Duration> deadline = {},
                                 std::int64_t width = 2, std::int64_t n = 1) {
    const ClientValue inputs[] = {rows_of(fill, rows, width), n};
    auto future = program->submit(inputs, {.deadline = deadline});
    REQUIRE(future);
    return *future;
  }
};

/// The first column of a request's y.
std::vector<float> result_of(const std::shared_ptr<Future>& future) {
  const FutureValue value = future->get();
  INFO((value ? std::string() : value.error().to_string()));
  REQUIRE(value);
  return column_of((*value)->outputs.at(0));
}

}  // namespace

TEST_CASE("requests that fill a batch run as one, and each gets its own rows", "[batching]") {
  Batching b(4);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 2);
  CHECK(b.inner->calls() == 0);
  const auto third = b.submit(3, 1);
  const ScriptedCall call = b.inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{1, 2, 2, 3});
  CHECK(std::get<std::int64_t>(call.inputs.at(1)) == 1);
  CHECK_FALSE(call.deadline);
  CHECK_FALSE(second->is_ready());
  int told = 0;
  second->on_ready([&] { ++told; });
  call.future->end(negated(call));
  CHECK(told == 1);
  CHECK(result_of(first) == std::vector<float>{-1});
  CHECK(result_of(second) == std::vector<float>{-2, -2});
  CHECK(result_of(third) == std::vector<float>{-3});
  CHECK(b.inner->calls() == 1);
  const auto result = second->get();
  CHECK(result == second->get());
  CHECK(std::get<std::int64_t>((*result)->outputs.at(1)) == 8);  // of its own two rows
  CHECK(std::get<std::int64_t>((*result)->outputs.at(2)) == 3);
  CHECK(std::holds_alternative<std::monostate>((*result)->outputs.at(3)));
}

TEST_CASE("a batch that nobody fills leaves after max_delay, and not before", "[batching]") {
  Batching b(4, 30ms);
  const TimePoint start = Clock::now();
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const ScriptedCall call = b.inner->await();
  CHECK(Clock::now() - start >= 30ms);
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{1, 2});
  call.future->end(negated(call));
  CHECK(result_of(second) == std::vector<float>{-2});
  // The next one starts anew.
  b.inner->answer(negated);
  CHECK(result_of(b.submit(3, 1)) == std::vector<float>{-3});
  CHECK(Clock::now() - start >= 60ms);
}

TEST_CASE("a batch without room leaves as it is, before the request that would not fit", "[batching]") {
  Batching b(4);
  const auto first = b.submit(1, 3);
  const auto second = b.submit(2, 2);
  const ScriptedCall call = b.inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{1, 1, 1});
  const auto third = b.submit(3, 2);
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{2, 2, 3, 3});
}

TEST_CASE("requests that differ outside the batch do not meet", "[batching]") {
  Batching b(2);
  const auto narrow = b.submit(1, 1, {}, 2);
  const auto wide = b.submit(2, 1, {}, 3);
  const auto other = b.submit(3, 1, {}, 2, 9);
  CHECK(b.inner->calls() == 0);
  const auto wide_too = b.submit(4, 1, {}, 3);
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{2, 4});
  const auto other_too = b.submit(5, 1, {}, 2, 9);
  const ScriptedCall call = b.inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{3, 5});
  CHECK(std::get<std::int64_t>(call.inputs.at(1)) == 9);
}

TEST_CASE("a tensor without the batch is part of what must be equal", "[batching]") {
  FragmentBuilder builder("biased");
  const std::vector<Expr> sizes{builder.symbol("batch", 1, 8).value(), Expr::constant(2)};
  const ValueId x = builder.add_tensor_input("x", DType::kFloat32, sizes).value();
  const ValueId bias = builder.add_tensor_input("bias", DType::kFloat32, {{Expr::constant(1), sizes[1]}}).value();
  const ValueId y =
      builder.call("aten::add.Tensor", {ArgValue{x}, ArgValue{bias}}, {"y", ValueKind::kTensor, DType::kFloat32, sizes})
          .value();
  REQUIRE(builder.add_output("y", y));
  const auto inner = std::make_shared<ScriptedProgram>(builder.finish().value());
  BatchingOptions options;
  options.max_batch = 2;
  options.max_delay = kLong;
  const auto program = make_batched(allocate_private, inner, options).value();
  const auto submit = [&](float fill, float shared) {
    const ClientValue inputs[] = {rows_of(fill, 1), rows_of(shared, 1)};
    return program->submit(inputs).value();
  };
  const auto first = submit(1, 10);
  const auto second = submit(2, 20);
  CHECK(inner->calls() == 0);
  const auto third = submit(3, 10);
  const ScriptedCall call = inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{1, 3});
  CHECK(column_of(call.inputs.at(1)) == std::vector<float>{10});
  inner->end_all();
}

TEST_CASE("inputs are the caller's again when submit() has returned", "[batching]") {
  Batching b(2);
  std::vector<float> mine{1, 1};
  const ClientValue inputs[] = {tensor(mine, {1, 2}), std::int64_t{1}};
  const auto first = b.program->submit(inputs).value();
  mine = {7, 7};
  const auto second = b.program->submit(inputs).value();
  mine = {9, 9};
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{1, 7});
}

TEST_CASE("a request that is too large for a batch runs alone, at once", "[batching]") {
  Batching b(2);
  const auto waiting = b.submit(1, 1);
  const auto large = b.submit(2, 3, 5s);
  const ScriptedCall call = b.inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{2, 2, 2});
  CHECK(call.deadline == Duration(5s));
  CHECK(b.inner->calls() == 1);
}

TEST_CASE("wrong inputs are refused alone, by name, and disturb nobody", "[batching]") {
  Batching b(2);
  const auto waiting = b.submit(1, 1);
  TensorRef far = rows_of(1, 1);
  far.bytes = 4;
  const auto refusal = [&](std::vector<ClientValue> inputs) {
    const auto future = b.program->submit(inputs);
    REQUIRE_FALSE(future);
    INFO(future.error().message);
    CHECK(future.error().message.find("'x'") != std::string::npos);
    return future.error().code;
  };
  CHECK(refusal({far, std::int64_t{1}}) == ErrorCode::kBadInput);
  CHECK(refusal({rows_of(1, 65), std::int64_t{1}}) == ErrorCode::kBadInput);
  CHECK(refusal({std::int64_t{1}, std::int64_t{1}}) == ErrorCode::kBadInput);
  CHECK(b.inner->calls() == 0);
  const auto second = b.submit(2, 1);
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{1, 2});
}

TEST_CASE("a request that is cancelled before its batch leaves is taken out", "[batching]") {
  Batching b(3);
  const auto lone = b.submit(1, 1);
  lone->cancel();
  CHECK(code_of_future(*lone) == ErrorCode::kCancelled);
  const auto first = b.submit(2, 1);
  const auto second = b.submit(3, 1);
  first->cancel();
  CHECK(code_of_future(*first) == ErrorCode::kCancelled);
  const auto third = b.submit(4, 1);
  CHECK(b.inner->calls() == 0);  // its row is free again
  const auto fourth = b.submit(5, 1);
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{3, 4, 5});
}

TEST_CASE("a request that is cancelled on its way ends by itself, its batch with the last one", "[batching]") {
  Batching b(2);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const ScriptedCall call = b.inner->await();
  first->cancel();
  CHECK(code_of_future(*first) == ErrorCode::kCancelled);
  CHECK(call.future->cancels == 0);
  SECTION("the others go on") {
    call.future->end(negated(call));
    CHECK(result_of(second) == std::vector<float>{-2});
    CHECK(code_of_future(*first) == ErrorCode::kCancelled);
    CHECK(call.future->cancels == 0);
  }
  SECTION("nobody is left") {
    second->cancel();
    CHECK(call.future->cancels == 1);
    CHECK(code_of_future(*second) == ErrorCode::kCancelled);
  }
}

TEST_CASE("a request that expires ends by itself, before its batch leaves and after", "[batching]") {
  Batching b(2);
  const auto early = b.submit(1, 1, 5ms);
  CHECK(code_of_future(*early) == ErrorCode::kDeadlineExceeded);
  const auto first = b.submit(2, 1, 20ms);
  const auto second = b.submit(3, 1, 10min);
  const ScriptedCall call = b.inner->await();
  CHECK(column_of(call.inputs.at(0)) == std::vector<float>{2, 3});
  REQUIRE(call.deadline);
  CHECK(*call.deadline > 9min);  // the latest
  CHECK(*call.deadline <= 10min);
  CHECK(code_of_future(*first) == ErrorCode::kDeadlineExceeded);
  call.future->end(negated(call));
  CHECK(result_of(second) == std::vector<float>{-3});
  const ClientValue inputs[] = {rows_of(1, 1), std::int64_t{1}};
  static_cast<void>(b.program->submit(inputs, {.deadline = 0s}));  // the program's own matter
  CHECK(b.inner->calls() == 2);
}

TEST_CASE("one request without a deadline leaves its batch without one", "[batching]") {
  Batching b(2);
  const auto first = b.submit(2, 1, 5s);
  const auto second = b.submit(3, 1);
  CHECK_FALSE(b.inner->await().deadline);
}

TEST_CASE("if a batch of a pure program fails, only the guilty request fails", "[batching]") {
  Batching b(3);
  b.inner->answer([](const ScriptedCall& call) -> FutureValue {
    const std::vector<float> values = column_of(call.inputs.at(0));
    if (std::find(values.begin(), values.end(), 2.0f) == values.end()) return negated(call);
    return fail(ErrorCode::kKernelFailed, "a two");
  });
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const auto third = b.submit(3, 1);
  CHECK(result_of(first) == std::vector<float>{-1});
  const FutureValue failed = second->get();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == ErrorCode::kKernelFailed);
  CHECK(failed.error().message == "a two");
  CHECK(result_of(third) == std::vector<float>{-3});
  CHECK(b.inner->calls() == 4);
}

TEST_CASE("what may not run again gives its error to all", "[batching]") {
  const auto errors = [](Batching& b, ErrorCode code) {
    const auto first = b.submit(1, 1);
    const auto second = b.submit(2, 1);
    b.inner->await().future->fail_with(code, "gone");
    const FutureValue one = first->get();
    const FutureValue two = second->get();
    REQUIRE_FALSE(one);
    REQUIRE_FALSE(two);
    CHECK(one.error().code == code);
    CHECK(two.error() == one.error());
    CHECK(b.inner->calls() == 1);
    return one.error().message;
  };
  SECTION("a program that is not pure") {
    Batching b(2, kLong, 1024, false);
    CHECK(errors(b, ErrorCode::kKernelFailed) == "a batch of 2 requests failed as a whole: gone");
  }
  SECTION("a lost device") {
    Batching b(2);
    CHECK(errors(b, ErrorCode::kActorDied) == "gone");
  }
}

TEST_CASE("a batch that cannot be submitted ends all its requests", "[batching]") {
  Batching b(2);
  b.inner->refuse(Error(ErrorCode::kActorUnavailable, "down"));
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  CHECK(code_of_future(*first) == ErrorCode::kActorUnavailable);
  CHECK(code_of_future(*second) == ErrorCode::kActorUnavailable);
  CHECK(b.inner->calls() == 1);
}

TEST_CASE("a full batch without room is sent by the batching thread once there is, in order", "[batching]") {
  Batching b(2);
  b.inner->full(true);
  std::vector<std::shared_ptr<Future>> futures;
  for (int i = 1; i <= 6; ++i) futures.push_back(b.submit(static_cast<float>(i), 1));  // does not wait
  const auto hasty = b.submit(7, 1, 1ms);
  CHECK(code_of_future(*hasty) == ErrorCode::kDeadlineExceeded);  // also while the batching thread waits
  b.inner->full(false);
  for (int i = 0; i < 3; ++i) {
    const ScriptedCall call = b.inner->await();
    const auto fill = static_cast<float>(2 * i + 1);
    CHECK(column_of(call.inputs.at(0)) == std::vector<float>{fill, fill + 1});
    call.future->end(negated(call));
  }
  for (int i = 1; i <= 6; ++i) {
    CHECK(result_of(futures[static_cast<std::size_t>(i) - 1]) == std::vector<float>{static_cast<float>(-i)});
  }
}

TEST_CASE("the end of a batched program ends batches that have no room", "[batching]") {
  Batching b(2);
  b.inner->full(true);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const auto third = b.submit(3, 1);
  const auto fourth = b.submit(4, 1);
  b.inner->await_waiting();
  std::dynamic_pointer_cast<BatchedProgram>(b.program)->close();
  for (const auto& future : {first, second, third, fourth}) {
    const FutureValue value = future->get();
    REQUIRE_FALSE(value);
    CHECK(value.error().code == ErrorCode::kCancelled);
    CHECK(value.error().message.find("batched program ended") != std::string::npos);
  }
}

TEST_CASE("more requests than max_queued wait, or are refused, until one has ended", "[batching]") {
  Batching b(2, kLong, 3);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const auto third = b.submit(3, 1);
  const ClientValue inputs[] = {rows_of(4, 1), std::int64_t{1}};
  const auto refused = b.program->submit(inputs, {.wait = false});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kOverloaded);
  CHECK(refused.error().message.find("3 requests without an outcome, of 3") != std::string::npos);
  const auto late = b.program->submit(inputs, {.deadline = 1ms});
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::kDeadlineExceeded);
  REQUIRE(late.error().causes.size() == 1);
  CHECK(late.error().causes[0].code == ErrorCode::kOverloaded);
  // The batch of the first two ends while a fourth request waits.
  bool asked = false;
  SubmitOptions waits;
  waits.interrupted = [&] {
    if (std::exchange(asked, true)) return false;
    const ScriptedCall call = b.inner->await();
    call.future->end(negated(call));
    return false;
  };
  REQUIRE(b.program->submit(inputs, waits));
  CHECK(asked);
  CHECK(column_of(b.inner->await().inputs.at(0)) == std::vector<float>{3, 4});
}

TEST_CASE("a callback's request beyond max_queued is refused, not waited for", "[batching]") {
  Batching b(1, kLong, 1);
  const auto first = b.submit(1, 1);
  std::optional<Error> refusal;
  bool accepted = false;
  first->on_ready([&] {
    const ClientValue inputs[] = {rows_of(2, 1), std::int64_t{1}};
    const auto room = b.program->submit(inputs);  // the first one has its outcome: there is room for one
    accepted = room.has_value();
    const auto none = b.program->submit(inputs);
    if (!none) refusal = none.error();
  });
  const ScriptedCall call = b.inner->await();
  call.future->end(negated(call));
  CHECK(accepted);
  REQUIRE(refusal);
  CHECK(refusal->code == ErrorCode::kOverloaded);
  CHECK(refusal->message.find("callback") != std::string::npos);
}

TEST_CASE("the end of a batched program cancels what waits, and what has left goes on", "[batching]") {
  Batching b(2);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  const auto waiting = b.submit(3, 1);
  const ScriptedCall call = b.inner->await();
  b.program.reset();
  REQUIRE(waiting->is_ready());
  CHECK(code_of_future(*waiting) == ErrorCode::kCancelled);
  call.future->end(negated(call));
  CHECK(result_of(second) == std::vector<float>{-2});
  waiting->cancel();
}

TEST_CASE("no two requests of a batch share an element", "[batching]") {
  Batching b(2);
  constexpr std::int64_t kWide = 20'000;  // a row is larger than what is copied anyway
  const auto run = [&](std::int64_t width, auto make_y) {
    const auto first = b.submit(1, 1, {}, width);
    const auto second = b.submit(2, 1, {}, width);
    const ScriptedCall call = b.inner->await();
    call.future->end(rows_result(make_y()));
    auto mine = std::get<TensorRef>((*first->get())->outputs.at(0));
    auto other = std::get<TensorRef>((*second->get())->outputs.at(0));
    const float before = element(other, 0);
    auto* to = reinterpret_cast<float*>(mine.data) + mine.meta.storage_offset;
    std::fill_n(to, width, 77.0f);
    CHECK(element(mine, 0, width - 1) == 77);
    CHECK(element(other, 0) == before);
    CHECK(element(other, 0, width - 1) == before);
    return std::pair(mine, other);
  };
  SECTION("large rows are views of one result") {
    const auto [mine, other] = run(kWide, [] { return rows_of(5, 2, kWide); });
    CHECK(mine.keep == other.keep);
    CHECK(other.meta.storage_offset == kWide);
  }
  SECTION("small rows are copies, which do not keep the batch's memory") {
    const auto [mine, other] = run(3, [] { return rows_of(5, 2, 3); });
    CHECK(mine.keep != other.keep);
    CHECK(mine.bytes == 3 * sizeof(float));
  }
  SECTION("rows that lie in one place are copies") {
    const auto [mine, other] = run(kWide, [] {
      TensorRef expanded = rows_of(5, 1, kWide);
      expanded.meta.sizes[0] = 2;
      expanded.meta.strides[0] = 0;
      return expanded;
    });
    CHECK(mine.keep != other.keep);
  }
}

TEST_CASE("a result that does not have the batch's rows is an error", "[batching]") {
  Batching b(2);
  const auto first = b.submit(1, 1);
  const auto second = b.submit(2, 1);
  b.inner->await().future->end(rows_result(rows_of(1, 3)));
  CHECK(code_of_future(*first) == ErrorCode::kOutputMismatch);
}

TEST_CASE("options and programs that cannot be batched are refused", "[batching]") {
  const auto refusal = [](BatchingOptions options, std::int64_t min, std::int64_t max) {
    const auto made = make_batched(allocate_private, std::make_shared<ScriptedProgram>(rows_graph(min, max)), options);
    return made ? Error(ErrorCode::kOk, "") : made.error();
  };
  BatchingOptions options;
  options.max_batch = 8;
  CHECK(refusal(options, 1, 8).code == ErrorCode::kOk);
  CHECK(refusal(options, 0, INT64_MAX).code == ErrorCode::kOk);
  const Error small = refusal(options, 1, 7);
  CHECK(small.code == ErrorCode::kUnsupported);
  CHECK(small.hint.find("max_batch to 7") != std::string::npos);
  const Error many = refusal(options, 2, 8);
  CHECK(many.code == ErrorCode::kUnsupported);
  CHECK(many.hint.find("min=1") != std::string::npos);
  options.max_batch = 0;
  CHECK(refusal(options, 1, 8).code == ErrorCode::kBadArgument);
  options.max_batch = 8;
  options.max_delay = -1ms;
  CHECK(refusal(options, 1, 8).code == ErrorCode::kBadArgument);
  options.max_delay = 1ms;
  options.max_queued = 0;
  CHECK(refusal(options, 1, 8).code == ErrorCode::kBadArgument);
  options.max_queued = 1;
  options.dim.dim = 5;
  CHECK(refusal(options, 1, 8).code == ErrorCode::kUnsupported);
}

TEST_CASE("many threads get their own rows, whatever batches they meet in", "[batching]") {
  Batching b(8, 1ms);
  b.inner->answer(negated);
  constexpr int kThreads = 8;
  constexpr int kRounds = 60;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        const auto fill = static_cast<float>(thread * 1000 + round);
        const std::int64_t rows = 1 + (thread + round) % 4;
        const ClientValue inputs[] = {rows_of(fill, rows, 1 + round % 3), std::int64_t{1}};
        const bool hasty = round % 11 == 5;
        const bool fickle = round % 7 == 3;
        auto future = b.program->submit(inputs, {.deadline = hasty ? std::optional<Duration>(500us) : std::nullopt});
        if (future && fickle) (*future)->cancel();
        const FutureValue value = future ? (*future)->get() : FutureValue(fail(future.error()));
        if (!value && fickle && value.error().code == ErrorCode::kCancelled) continue;
        if (!value && hasty && value.error().code == ErrorCode::kDeadlineExceeded) continue;
        const std::vector<float> want(static_cast<std::size_t>(rows), -fill);
        if (!value || column_of((*value)->outputs.at(0)) != want) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(b.inner->calls() < kThreads * kRounds);  // some did meet
}

TEST_CASE("a batch of a program with replicas is divided over them", "[batching]") {
  std::vector<std::shared_ptr<ScriptedProgram>> devices;
  for (const char* name : {"cpu0", "cpu1"}) devices.push_back(std::make_shared<ScriptedProgram>(rows_graph(), name));
  const auto replicas = make_replicated({devices[0], devices[1]}, {}).value();
  BatchingOptions options;
  options.max_batch = 4;
  options.max_delay = kLong;
  const auto program = make_batched(allocate_private, replicas, options).value();
  std::vector<std::shared_ptr<Future>> futures;
  for (const float fill : {1.0f, 2.0f, 3.0f, 4.0f}) {
    const ClientValue inputs[] = {rows_of(fill, 1), std::int64_t{1}};
    futures.push_back(program->submit(inputs).value());
  }
  const ScriptedCall left = devices[0]->await();
  const ScriptedCall right = devices[1]->await();
  CHECK(column_of(left.inputs.at(0)) == std::vector<float>{1, 2});
  CHECK(column_of(right.inputs.at(0)) == std::vector<float>{3, 4});
  SECTION("whoever comes first") {
    right.future->end(negated(right));
    CHECK_FALSE(futures[3]->is_ready());
    left.future->end(negated(left));
    for (int i = 0; i < 4; ++i) {
      CHECK(result_of(futures[static_cast<std::size_t>(i)]) == std::vector<float>{-1.0f - static_cast<float>(i)});
    }
  }
  SECTION("a failure is found in the half that it was in") {
    for (const auto& device : devices) {
      device->answer([](const ScriptedCall& call) -> FutureValue {
        if (column_of(call.inputs.at(0)).front() == 4) return fail(ErrorCode::kKernelFailed, "a four");
        return negated(call);
      });
    }
    right.future->fail_with(ErrorCode::kKernelFailed, "a four among them");
    CHECK(result_of(futures[0]) == std::vector<float>{-1});
    CHECK(result_of(futures[2]) == std::vector<float>{-3});
    CHECK(code_of_future(*futures[3]) == ErrorCode::kKernelFailed);
    CHECK(left.future->cancels == 1);
  }
}

TEST_CASE("a batch reaches the cluster as one request, large inputs in shared memory", "[batching]") {
  Connected c;
  FakeDevice device(c.cluster);
  auto loaded = c.client->load(rows_graph(1, 64), {}, {});
  REQUIRE(loaded);
  BatchingOptions options;
  options.max_batch = 3;
  options.max_delay = kLong;
  auto program = make_batched(*c.client, *loaded, options).value();
  constexpr std::int64_t kWide = 30'000;
  const auto submit = [&](float fill, std::int64_t rows) {
    const ClientValue inputs[] = {rows_of(fill, rows, kWide), std::int64_t{1}};
    return program->submit(inputs).value();
  };
  const auto first = submit(1, 2);
  const auto second = submit(2, 1);
  const Submit sent = c.cluster.await<Submit>();
  CHECK(sent.symbols == std::vector<std::int64_t>{3, kWide});
  const auto& handle = std::get<TensorHandle>(sent.inputs.at(0));
  CHECK(handle.meta == TensorMeta::contiguous(DType::kFloat32, {3, kWide}));
  const std::string bytes = device.read(handle);
  REQUIRE(bytes.size() >= 3 * kWide * sizeof(float));
  float read = 0;
  std::memcpy(&read, bytes.data() + (2 * kWide - 1) * sizeof read, sizeof read);
  CHECK(read == 1);
  std::memcpy(&read, bytes.data() + 2 * kWide * sizeof read, sizeof read);
  CHECK(read == 2);
  SECTION("its result is read in place, until the last slice goes") {
    TensorHandle result = device.result(c.cluster.client(), 3 * kWide, 4.5f);
    result.meta = TensorMeta::contiguous(DType::kFloat32, {3, kWide});
    c.cluster.send(c.cluster.client(), ok(sent.request, std::move(result)));
    CHECK(result_of(first) == std::vector<float>{4.5f, 4.5f});
    CHECK(result_of(second) == std::vector<float>{4.5f});
  }
  SECTION("the end of the client ends what waits and what is on its way") {
    const auto waiting = submit(3, 1);
    c.client.reset();
    CHECK(code_of_future(*first) == ErrorCode::kCancelled);
    CHECK(code_of_future(*second) == ErrorCode::kCancelled);
    const ClientValue inputs[] = {rows_of(1, 1, kWide), std::int64_t{1}};
    CHECK(program->submit(inputs).error().code == ErrorCode::kCancelled);
    CHECK_FALSE(waiting->is_ready());
    program->close();
    CHECK(code_of_future(*waiting) == ErrorCode::kCancelled);
    CHECK(program->submit(inputs).error().code == ErrorCode::kCancelled);
    program->close();
  }
}
