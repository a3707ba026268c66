#include "messages/base/error.h"

#include <set>

#include "tests/support/test.h"

namespace callboard {
namespace {

constexpr ErrorCode kSome[] = {ErrorCode::kTruncated, ErrorCode::kUsage,     ErrorCode::kBadGraph,
                               ErrorCode::kBadInput,  ErrorCode::kActorDied, ErrorCode::kEnvironment};

Status first_step(bool works) {
  if (!works) return fail(ErrorCode::kUsage, "the step failed");
  return {};
}
Result<int> number(bool works) {
  if (!works) return fail(ErrorCode::kBadInput, "no number");
  return 20;
}
Result<int> two_steps(bool first, bool second) {
  CALLBOARD_TRY(first_step(first));
  CALLBOARD_ASSIGN(const int a, number(second));
  CALLBOARD_ASSIGN(const int b, number(true));
  return a + b + 2;
}

TEST_CASE("every known code has a name of its own in snake case") {
  std::set<std::string> names;
  int known = 0;
  for (int code = 0; code < 1000; ++code) {
    const std::string name(error_name(static_cast<ErrorCode>(code)));
    if (name == "unknown_error") continue;
    ++known;
    CHECK(names.insert(name).second);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos);
  }
  CHECK(known == 59);  // as many as the enumeration has
  CHECK(error_name(ErrorCode::kUnknownOperator) == "unknown_operator");
  CHECK(error_name(static_cast<ErrorCode>(65535)) == "unknown_error");
}

TEST_CASE("the hundred of a code decides its class") {
  CHECK(error_class(kSome[0]) == ErrorClass::kMessage);
  CHECK(error_class(kSome[1]) == ErrorClass::kConfig);
  CHECK(error_class(kSome[2]) == ErrorClass::kProgram);
  CHECK(error_class(kSome[3]) == ErrorClass::kRequest);
  CHECK(error_class(kSome[4]) == ErrorClass::kActor);
  CHECK(error_class(kSome[5]) == ErrorClass::kEnvironment);
  CHECK(error_class(ErrorCode::kInternal) == ErrorClass::kInternal);
  CHECK(error_class(static_cast<ErrorCode>(12345)) == ErrorClass::kInternal);
}

TEST_CASE("an error's text says what, where, and what to do") {
  Error error(ErrorCode::kUnknownOperator, "there is no such operator", "did you mean aten::add.Tensor?");
  CHECK(error.to_string() ==
        "unknown_operator [E301]: there is no such operator\n  hint: did you mean aten::add.Tensor?");
  error.actor = "cpu0#1";
  error.op = "aten::ad.Tensor";
  error.node = 3;
  error.hint.clear();
  CHECK(error.to_string() == "unknown_operator [E301]: there is no such operator (cpu0#1, aten::ad.Tensor, node 3)");
  error.detail = "float32[2]\nfloat32[3]\n";
  CHECK(error.to_string() ==
        "unknown_operator [E301]: there is no such operator (cpu0#1, aten::ad.Tensor, node 3)\n  float32[2]\n  "
        "float32[3]");
}

TEST_CASE("causes are listed below their error, each further in") {
  Error error(ErrorCode::kBadGraph, "2 faults");
  error.causes = {Error(ErrorCode::kCycle, "one"), Error(ErrorCode::kLiteralDevice, "two", "place it")};
  error.causes[0].causes = {Error(ErrorCode::kInternal, "deep")};
  CHECK(error.to_string() ==
        "bad_graph [E300]: 2 faults\n  - cycle [E304]: one\n      - internal [E900]: deep\n"
        "  - literal_device [E303]: two\n      hint: place it");
}

TEST_CASE("the text of an error that is nested without end is bounded") {
  Error error(ErrorCode::kInternal, "bottom");
  for (int i = 0; i < 100; ++i) {
    Error outer(ErrorCode::kInternal, "level");
    outer.causes.push_back(std::move(error));
    error = std::move(outer);
  }
  CHECK(error.to_string().size() < 1000);
}

TEST_CASE("errors are equal if all their parts are") {
  Error a(ErrorCode::kBadInput, "m", "h");
  a.causes = {Error(ErrorCode::kCycle, "one")};
  Error b = a;
  CHECK(a == b);
  b.causes[0].node = 4;
  CHECK_FALSE(a == b);
}

TEST_CASE("TRY and ASSIGN return the first failure and go on without one") {
  CHECK(two_steps(true, true).value() == 42);
  CHECK(two_steps(false, true).error().code == ErrorCode::kUsage);
  CHECK(two_steps(true, false).error() == Error(ErrorCode::kBadInput, "no number"));
}

}  // namespace
}  // namespace callboard
