// The largest single allocation of a thread, for tests of what hostile bytes may cost.
#pragma once

#include <cstddef>

namespace callboard::test {

/// Begins a new measurement on this thread.
void watch_allocations();
/// The largest request to operator new on this thread since then. 0 under a sanitizer, which brings its own operator
/// new (and refuses what is absurd).
std::size_t largest_allocation();

}  // namespace callboard::test
