// ATen's CPU allocator on top of the arena (declared in kernels/runtime.h).
#include <pthread.h>

#include <cstdint>
#include <cstdlib>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "kernels/runtime.h"
#include "messages/base/check.h"
#include "messages/inline_limit.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kBlockAlignment = 64;   // what ATen's vectorised kernels and oneDNN expect
constexpr std::uintptr_t kPageMask = 4095;    // arena blocks start on a page
constexpr std::uint8_t kPriority = 100;       // above whatever LibTorch sets by itself (0)
constexpr std::uint8_t kChildPriority = 101;  // a forked child takes the ordinary allocator back

Arena* installed_arena = nullptr;  // written once, before a second thread exists

/// malloc with the start of its block stored in front: glibc's aligned functions bypass its per-thread cache and cost
/// several times as much.
void* heap_allocate(std::size_t bytes) {
  if (bytes > SIZE_MAX - kBlockAlignment) return nullptr;
  auto* raw = static_cast<char*>(std::malloc(bytes + kBlockAlignment));
  if (raw == nullptr) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  auto* aligned =
      raw + (kBlockAlignment - address % kBlockAlignment);  // malloc aligns to 16: at least 16 bytes lie in front
  reinterpret_cast<void**>(aligned)[-1] = raw;
  return aligned;
}

void heap_free(void* pointer) {
  if (pointer != nullptr) std::free(static_cast<void**>(pointer)[-1]);
}

void arena_free(void* pointer) { installed_arena->deallocate(pointer); }

/// For raw_deallocate(), where nothing but the address tells which of the two it was.
void any_free(void* pointer) {
  const bool may_be_block = (reinterpret_cast<std::uintptr_t>(pointer) & kPageMask) == 0;
  if (pointer != nullptr && may_be_block && installed_arena->find(pointer)) {
    arena_free(pointer);
  } else {
    heap_free(pointer);
  }
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &heap_free, cpu};
    if (bytes <= inline_bytes_max()) {
      void* pointer = heap_allocate(bytes);
      if (pointer == nullptr) refuse("the heap has no " + std::to_string(bytes) + " bytes left");
      return {pointer, pointer, &heap_free, cpu};
    }
    Result<void*> block = installed_arena->allocate(bytes);
    if (!block) refuse(block.error().message + (block.error().hint.empty() ? "" : " (" + block.error().hint + ")"));
    return {*block, *block, &arena_free, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &any_free; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  /// The one way of telling ATen; Kernel::run turns it into kOutOfMemory with the operator's name.
  [[noreturn]] static void refuse(const std::string& why) { C10_THROW_ERROR(OutOfMemoryError, why); }
};

void fork_prepare() { installed_arena->fork_prepare(); }
void fork_parent() { installed_arena->fork_parent(); }
void fork_child() {
  installed_arena->fork_child();
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), kChildPriority);
}

}  // namespace

void install_arena_allocator(Arena* arena) {
  CALLBOARD_CHECK(arena != nullptr, "the allocator needs an arena");
  CALLBOARD_CHECK(installed_arena == nullptr, "the allocator is installed once");
  installed_arena = arena;
  c10::SetCPUAllocator(new ArenaAllocator, kPriority);  // never destroyed: storages are freed from static destructors
  CALLBOARD_CHECK(pthread_atfork(fork_prepare, fork_parent, fork_child) == 0, "the fork handlers must be in place");
}

}  // namespace callboard::kernels
