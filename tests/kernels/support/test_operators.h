// Operators of the library "cbtest", whose behaviour tests choose.
#pragma once

#include <atomic>
#include <functional>
#include <string>

namespace callboard::testing {

/// cbtest::count(Tensor) -> Tensor counts its calls here.
extern std::atomic<int> count_calls;
/// cbtest::hook(Tensor) -> Tensor calls this first.
extern std::function<void()> hook_body;
/// cbtest::echo(…) writes what it was given here.
extern std::string echoed;
/// cbtest::effect(Tensor) -> () counts here.
extern std::atomic<int> effects_done;

}  // namespace callboard::testing
