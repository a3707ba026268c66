#include "kernels/own_operators.h"

#include <dlfcn.h>

#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include "messages/base/own_program.h"

namespace callboard::kernels {

namespace {

/// All are registered together, so one tells of all.
constexpr const char* kOneOfThem = "callboard::rms_norm";

bool are_registered() { return c10::Dispatcher::singleton().findSchema({kOneOfThem, ""}).has_value(); }

}  // namespace

Status load_own_operators(const std::string& folder) {
  // Two threads that find nothing registered must not both register.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (are_registered()) return {};
  const std::string file = (folder.empty() ? own_program_folder() : folder) + "/callboard_ops.so";
  if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* why = ::dlerror();
    return fail(
        ErrorCode::kEnvironment,
        "Callboard's operators cannot be loaded: " + std::string(why == nullptr ? file.c_str() : why),
        "callboard_ops.so of the same build must lie beside this program, and the libraries of torch " TORCH_VERSION
        " where they were when it was built");
  }
  if (are_registered()) return {};
  return fail(ErrorCode::kEnvironment, file + " was opened and brings no " + kOneOfThem,
              "it is of another build of Callboard than this program: build and install both together");
}

}  // namespace callboard::kernels
