#include "actors/client/c_api_guard.h"

#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::actors;

namespace {

std::int32_t number_of(ErrorCode code) { return static_cast<std::int32_t>(code); }

}  // namespace

TEST_CASE("nothing that is thrown crosses the C interface, and each kind has its number") {
  CHECK(guarded([]() -> Status { throw std::bad_alloc(); }) == number_of(ErrorCode::kOutOfMemory));
  CHECK(std::string(last_error_text()).find("no memory left") != std::string::npos);
  CHECK(guarded([]() -> Status { throw std::runtime_error("the reason"); }) == number_of(ErrorCode::kInternal));
  CHECK(std::string(last_error_text()).find("the reason") != std::string::npos);
  CHECK(guarded([]() -> Status { throw 7; }) == number_of(ErrorCode::kInternal));
  CHECK(std::string(last_error_text()).find("no std::exception") != std::string::npos);
}

TEST_CASE("an error has its own number and its whole text, and success leaves the text as it was") {
  const Error error(ErrorCode::kBadInput, "what was wrong", "what to do");
  CHECK(guarded([&]() -> Status { return fail(error); }) == 400);
  CHECK(last_error_text() == error.to_string());
  CHECK(guarded([]() -> Status { return {}; }) == 0);
  CHECK(last_error_text() == error.to_string());
}

TEST_CASE("each thread has a last error of its own") {
  guarded([]() -> Status { return fail(ErrorCode::kBadInput, "of the first"); });
  std::string before;
  std::string after;
  std::thread([&] {
    before = last_error_text();
    guarded([]() -> Status { return fail(ErrorCode::kCancelled, "of the second"); });
    after = last_error_text();
  }).join();
  CHECK(before.empty());
  CHECK(after.find("of the second") != std::string::npos);
  CHECK(std::string(last_error_text()).find("of the first") != std::string::npos);
}
