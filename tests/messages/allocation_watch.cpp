#include "tests/messages/allocation_watch.h"

#include <cstdlib>
#include <new>

namespace {
thread_local std::size_t largest = 0;
}  // namespace

#ifndef CALLBOARD_SANITIZED
// Not inlined: the compiler would take the pair for a mismatch of new and free.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (size > largest) largest = size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace callboard::test {

void watch_allocations() { largest = 0; }
std::size_t largest_allocation() { return largest; }

}  // namespace callboard::test
