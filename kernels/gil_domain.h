// GIL domains: where Python kernels run, seen from kernels that know no Python. One implementation per kind; what each
// must hold to is in tests/conformance/gil_domain_suite.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include "kernels/runtime.h"
#include "kernels/stop_signal.h"
#include "messages/base/error.h"

namespace callboard::kernels {

class DeviceBackend;
class DeviceExchange;
class StreamContext;

/// An operator that a Python function brings. Fixed once the domain is there.
struct PythonOperator {
  std::string op;      ///< "ns::name", as nodes name it
  std::string target;  ///< "module:function"
  c10::FunctionSchema schema;
  bool random = false;         ///< draws random numbers: a retry may give others
  std::uint32_t function = 0;  ///< its number in the domain
};

/// One Python interpreter with its GIL, and the operators that it brings. `inline`: this process's interpreter; a call
/// runs on the thread that asks for it. `process`: those of child processes; the thread waits for one, with a deadline.
class GilDomain {
 public:
  virtual ~GilDomain() = default;

  virtual std::string_view kind() const = 0;
  virtual const std::vector<PythonOperator>& operators() const = 0;
  /// Why `op`, which is none of operators(), is not, as far as the domain knows: "my_kernels:scale has it, but it is
  /// not on the list". Empty: it knows nothing of it.
  virtual std::string why_not(std::string_view op) const = 0;

  /// The calls that come before the device is ready, on the thread that will run kernels: a cold torch.compile belongs
  /// here. `threads`: intra-op threads that the thread has and keeps; meanwhile it has one. kPythonFailed.
  virtual Status warm_up(int threads) = 0;

  /// What a call wrote to without its schema saying so.
  struct Undeclared {
    std::size_t argument = 0;
    at::Tensor written;
    bool harmed = true;  ///< false: the write stayed with the domain
  };
  /// The last arguments of `stack`, one for each of the schema, become its results, one for each of its returns. A
  /// KernelStream's thread, in InferenceMode, its device stream current. Throws KernelFailure: kPythonFailed with the
  /// traceback, kOutputMismatch for what is no result of the schema, kOutOfMemory. Where the function wrote to an
  /// argument that is not declared as written, `undeclared` says so and the call has failed. Where `stop` says so, the
  /// running code is interrupted, and the call fails with that reason.
  virtual void call(const PythonOperator& op, torch::jit::Stack& stack, std::vector<Undeclared>& undeclared,
                    const StopSignal* stop = nullptr) = 0;

  /// How many calls may be under way at once. Above 1 begin() is there.
  virtual std::size_t parallel() const { return 1; }
  /// A call that was begun; dropping it ends it.
  class Call {
   public:
    virtual ~Call() = default;
    /// As call(), once it is over.
    virtual void finish(torch::jit::Stack& stack, std::vector<Undeclared>& undeclared) = 0;
    /// Nobody wants its results any more.
    virtual void abandon(const Error& reason) = 0;
  };
  /// Whether begin() would find a process at once.
  virtual bool has_room() const { return true; }
  /// Answers what calls under way have asked, without waiting: between other work of the thread that has begun them.
  virtual void look_after() {}
  /// Begins a call and does not wait for its end. The same thread finishes it. nullptr: call() it is.
  virtual std::unique_ptr<Call> begin(const PythonOperator& /*op*/, const torch::jit::Stack& /*stack*/,
                                      const StopSignal* /*stop*/) {
    return nullptr;
  }

  /// Storage of the size and on the device of `like` that the domain can write to, for arguments that an operator
  /// writes to; what they held is copied there before the call. nullopt: it writes where they lie. Throws KernelFailure
  /// with kOutOfMemory.
  virtual std::optional<c10::Storage> memory_to_write(const c10::Storage& /*like*/) { return std::nullopt; }
  /// Whether it can write where this storage lies.
  virtual bool writes_in_place(const c10::Storage& /*storage*/) const { return true; }

  /// JSON object for status and describe(): versions, operators, ledger. Any thread; takes no GIL.
  virtual std::string describe() const = 0;
};

/// `device`: slot 0 of programs here. The main thread: an interpreter imports torch on the thread that makes it.
using GilDomainFactory =
    std::function<Result<std::unique_ptr<GilDomain>>(const PythonOptions& options, c10::Device device)>;

/// The Python plug-in brings the one for `inline`; before any runtime is made.
void register_gil_domain(GilDomainFactory factory);
/// Opens the plug-in for one that is inline. kEnvironment, kUnsupported, kPythonFailed, naming what to change in the
/// cluster file.
Result<std::unique_ptr<GilDomain>> make_gil_domain(const PythonOptions& options, c10::Device device);
/// Memory of a device's own that a domain in processes works on; by default there is none.
struct DomainDeviceMemory {
  DeviceExchange* exchange = nullptr;
  StreamContext* stream = nullptr;  ///< the one that computes; both outlive all calls
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::string kind = "cpu";  ///< as for make_guest()
};
DomainDeviceMemory memory_of(DeviceBackend& backend, StreamContext& stream);
/// The same for a device, also in processes where options.processes says so: `threads` intra-op threads in each.
Result<std::unique_ptr<GilDomain>> make_gil_domain(const PythonOptions& options, c10::Device device,
                                                   const ActorId& self, int threads, Arena* arena, SegmentMap* segments,
                                                   const DomainDeviceMemory& memory = {});

}  // namespace callboard::kernels
