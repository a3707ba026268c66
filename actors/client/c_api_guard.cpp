#include "actors/client/c_api_guard.h"

#include <exception>
#include <new>
#include <string>

namespace callboard::actors {

namespace {

/// Two texts, since that of a failure that has no memory for one must not need any.
struct LastFailure {
  std::string text;
  const char* fixed = "";  ///< nullptr: `text`
};
LastFailure& last_failure() noexcept {
  thread_local LastFailure failure;
  return failure;
}

std::int32_t number(ErrorCode code) { return static_cast<std::int32_t>(code); }

std::int32_t set_fixed(ErrorCode code, const char* text) noexcept {
  last_failure().fixed = text;
  return number(code);
}

}  // namespace

std::int32_t set_last_error(const Error& error) noexcept {
  try {
    last_failure().text = error.to_string();
    last_failure().fixed = nullptr;
    return number(error.code);
  } catch (const std::exception&) {
    return set_fixed(error.code, "out of memory while the text of the error was made");
  }
}

std::int32_t set_last_error_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return set_fixed(ErrorCode::kOutOfMemory, "out_of_memory [E402]: this process has no memory left");
  } catch (const std::exception& thrown) {
    try {
      return set_last_error(Error(ErrorCode::kInternal, std::string("an exception was thrown: ") + thrown.what()));
    } catch (const std::exception&) {
      return set_fixed(ErrorCode::kInternal, "internal [E900]: an exception was thrown, and there is no memory left");
    }
  } catch (...) {
    return set_fixed(ErrorCode::kInternal, "internal [E900]: something that is no std::exception was thrown");
  }
}

const char* last_error_text() noexcept {
  const LastFailure& failure = last_failure();
  return failure.fixed != nullptr ? failure.fixed : failure.text.c_str();
}

}  // namespace callboard::actors
