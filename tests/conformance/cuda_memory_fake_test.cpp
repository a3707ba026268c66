#include "tests/conformance/cuda_memory_suite.h"
#include "tests/kernels/cuda/fake_runtime.h"

namespace callboard::kernels::cuda::conformance {

static std::optional<World> make_world() {
  struct Kept {
    std::shared_ptr<testing::FakeMachine> machine = testing::FakeMachine::create(1, 64u << 20);
    testing::FakeRuntime runtime{machine};
  };
  const auto kept = std::make_shared<Kept>();
  return World{&kept->runtime,
               {CALLBOARD_CUDA_PEER, kept->machine->path()},
               [kept](int process) { kept->machine->end_process(static_cast<std::size_t>(process)); },
               kept};
}

}  // namespace callboard::kernels::cuda::conformance

CALLBOARD_CUDA_MEMORY_SUITE()
