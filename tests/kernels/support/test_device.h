// A DeviceRuntime with memory and helpers, for tests. One arena per process serves LibTorch, as in a device actor; a
// second one stands for another process.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/runtime.h"
#include "tests/kernels/support/fragment_maker.h"

namespace callboard::testing {

inline const ActorId kSelf{"cpu0", 1};
inline const ActorId kPeer{"cpu1", 1};
inline const ActorId kClient{"client", 7};

/// Created on first use; ATen allocates from `arena` from then on.
struct TestMemory {
  kernels::Arena* arena = nullptr;                ///< of kSelf
  kernels::Arena* peer = nullptr;                 ///< of kPeer
  std::unique_ptr<kernels::SegmentMap> segments;  ///< sees both; releases go to the owner at once
};
TestMemory& test_memory();

/// Opens callboard_ops.so of this build, so that callboard::rms_norm and its kin are there.
Status load_callboard_operators();

/// Inline, or in the peer's arena under a lease of kSelf where it is large. Keeps strides and offset.
WireValue to_wire(const at::Tensor& tensor);
/// As a client reads it: the bytes, or the owner's segment mapped. A copy; the handle's lease is released.
at::Tensor from_wire(const WireValue& value);

/// Same dtype, sizes and bits, NaNs and signed zeros included.
bool identical(const at::Tensor& a, const at::Tensor& b);

/// The content-addressed storages that the runtime under test can open.
ContentHash add_constant(const at::Tensor& whole_storage);
ValueId add_constant(FragmentMaker& maker, const at::Tensor& tensor);
/// The bytes as the store has them now.
std::string constant_bytes(const ContentHash& hash);

/// A flag with a deadline; what tests hand to kernels and callbacks to wait on.
class Signal {
 public:
  void set();
  /// False after 20 seconds: then the test fails instead of hanging.
  bool wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

class TestDevice {
 public:
  explicit TestDevice(kernels::RuntimeOptions options = {});

  Result<kernels::LoadedInfo> load(const Fragment& fragment);
  /// Loads (unless it is) and runs.
  kernels::RunResult run(const Fragment& fragment, std::vector<WireValue> inputs,
                         std::vector<std::int64_t> symbols = {});
  kernels::RunResult run(kernels::RunOrder order);
  /// The one output to the client of a run that must succeed.
  at::Tensor result(const Fragment& fragment, const std::vector<at::Tensor>& inputs,
                    std::vector<std::int64_t> symbols = {});

  static kernels::RunOrder order(const Fragment& fragment, std::vector<WireValue> inputs,
                                 std::vector<std::int64_t> symbols = {});
  kernels::DeviceRuntime& runtime() { return *runtime_; }

 private:
  std::unique_ptr<kernels::DeviceRuntime> runtime_;
};

}  // namespace callboard::testing
