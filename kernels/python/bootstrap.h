// What the domain does in Python rather than in C++, as a module of its own that no path leads to.
#pragma once

#include "kernels/python/py_ref.h"

namespace callboard::kernels {

/// A function of the module; nullptr with an exception set where it could not be made. The GIL is held.
///   explain(error) -> (type, text, traceback, "memory" or the name of a CallboardError's code, its hint); clears
///   frames Stopped: the exception that interrupts a call watch_crashes(fd): stacks of all threads go there at a crash,
///   and at SIGUSR1 torch_version() -> str; raises PackageNotFoundError accepts(function, positional, keywords) ->
///   None; raises TypeError declared(module) -> [(operator, target)] of the functions with @callboard.kernel
PyRef bootstrap_function(const char* name);

}  // namespace callboard::kernels
