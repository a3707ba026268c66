#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "kernels/runtime.h"
#include "tests/kernels/support/test_device.h"
#include "tests/support/test.h"

using namespace callboard;
using namespace callboard::kernels;
using namespace callboard::testing;

namespace {

c10::Allocator* allocator() {
  test_memory();
  return c10::GetCPUAllocator();
}
bool in_arena(const void* pointer) { return test_memory().arena->find(pointer).has_value(); }
bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 64 == 0; }

}  // namespace

TEST_CASE("blocks above the inline limit come from the arena, smaller ones from the heap, all aligned") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4'096}, limits::kInlineBytesMax}) {
    const c10::DataPtr small = allocator()->allocate(bytes);
    CHECK(aligned(small.get()));
    CHECK_FALSE(in_arena(small.get()));
  }
  const std::uint64_t before = test_memory().arena->stats().in_use_bytes;
  {
    const c10::DataPtr large = allocator()->allocate(limits::kInlineBytesMax + 1);
    CHECK(aligned(large.get()));
    CHECK(in_arena(large.get()));
    CHECK(test_memory().arena->stats().in_use_bytes > before);
  }
  CHECK(test_memory().arena->stats().in_use_bytes == before);
}

TEST_CASE("nothing asked for gives nothing, and nothing can be given back") {
  const c10::DataPtr none = allocator()->allocate(0);
  CHECK(none.get() == nullptr);
  allocator()->raw_deallocate(nullptr);
  CHECK(at::empty({0}).numel() == 0);
}

TEST_CASE("raw blocks of both kinds go back to where they came from") {
  const std::uint64_t before = test_memory().arena->stats().in_use_bytes;
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{200'000}}) {
    void* raw = allocator()->raw_allocate(bytes);
    CHECK(in_arena(raw) == (bytes > limits::kInlineBytesMax));
    allocator()->raw_deallocate(raw);
  }
  CHECK(test_memory().arena->stats().in_use_bytes == before);
}

TEST_CASE("a refused block throws what says sizes and limit, and the next allocation works") {
  try {
    allocator()->allocate(std::size_t{8} << 30);
    FAIL("more than the limit was given");
  } catch (const c10::OutOfMemoryError& error) {
    const std::string what = error.what_without_backtrace();
    CHECK(what.find("cannot allocate 8") != std::string::npos);
    CHECK(what.find("limit") != std::string::npos);
  }
  CHECK(in_arena(at::ones({100'000}).const_data_ptr()));
}

TEST_CASE("tensors may die on any thread") {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 64; ++i) tensors.push_back(at::ones({50'000}));
  const std::uint64_t full = test_memory().arena->stats().in_use_bytes;
  std::thread([moved = std::move(tensors)]() mutable { moved.clear(); }).join();
  CHECK(test_memory().arena->stats().in_use_bytes < full);
}

TEST_CASE("AR-5: a forked child allocates from its own heap and writes nothing that the parent sees") {
  at::Tensor shared = at::ones({100'000});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    at::set_num_threads(1);  // OpenMP's threads do not survive a fork
    const c10::DataPtr own = c10::GetCPUAllocator()->allocate(500'000);
    auto* bytes = static_cast<unsigned char*>(own.get());
    bytes[0] = 1;
    shared.data_ptr<float>()[0] = 7.0f;
    const bool ok = !test_memory().arena->find(own.get()) && shared.const_data_ptr<float>()[0] == 7.0f;
    shared.reset();
    ::_exit(ok ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(shared[0].item<float>() == 1.0f);
  CHECK(in_arena(at::ones({100'000}).const_data_ptr()));
}
