// One operator call of a fragment, bound to blobs, and the seven steps in which it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "kernels/blob.h"
#include "kernels/device_backend.h"
#include "kernels/expr_table.h"
#include "kernels/kernel_failure.h"
#include "kernels/kernel_hooks.h"
#include "kernels/mutation_guard.h"
#include "kernels/stop_signal.h"
#include "messages/graph.h"

namespace callboard::kernels {

using Stack = torch::jit::Stack;

/// Number of a blob within its fragment's table.
using Slot = std::uint32_t;
constexpr Slot kNoSlot = UINT32_MAX;

/// How one argument gets on the stack.
struct ArgumentStep {
  enum class From : std::uint8_t {
    kStatic,        ///< `constant`
    kStaticCopy,    ///< a fresh copy of the list `constant`: its operator might keep or edit it
    kBlob,          ///< blob `first`
    kLastUse,       ///< likewise, and nobody reads it afterwards: moved
    kBlobAsTensor,  ///< its number, as a 0-dim tensor that promotes as a Python number does
    kBlobAsFloat,   ///< its integer or float
    kBlobAsInt,     ///< its integer or bool
    kExpr,          ///< expression `first`
    kExprAsFloat,
    kExprAsBool,
    kExprAsTensor,
    kIntList,             ///< expressions integers[first, first + count)
    kIntListFromBlobs,    ///< blobs list[first, first + count)
    kTensorList,          ///< likewise
    kOptionalTensorList,  ///< likewise; kNoSlot is a hole
  };
  From from = From::kStatic;
  bool written = false;  ///< the schema says that the operator writes to it
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  c10::IValue constant;
};

/// All arguments of one call, in the schema's order.
struct ArgumentPlan {
  std::vector<ArgumentStep> steps;
  std::vector<std::string> names;  ///< by step; for errors
  std::vector<Slot> list;
  std::vector<ExprTable::Index> integers;
  bool writes = false;  ///< any step is `written`
};

/// What is declared about a value; step 5 holds a kernel to it.
struct ValueCheck {
  Slot slot = kNoSlot;  ///< kNoSlot: nobody reads it, neither kept nor checked
  ValueId value = kNoValue;
  ValueKind kind = ValueKind::kTensor;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< Undefined: any
  bool has_sizes = false;
  bool sizes_later = false;    ///< one of the sizes depends on a value made by a node
  bool read_by_exprs = false;  ///< its integer goes to the expression table
  std::uint32_t rank = 0;
  ExprTable::Index sizes = 0;  ///< first of `rank` in the table's expected()
};

/// One result position of the operator: targets[first, first + count).
struct OutputStep {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool is_list = false;
};

struct OutputPlan {
  std::vector<OutputStep> steps;
  std::vector<ValueCheck> targets;
};

/// What all kernels of a fragment read while they run, in the order in which they run.
struct KernelTables {
  std::vector<ArgumentStep> steps;
  std::vector<OutputStep> output_steps;
  std::vector<ValueCheck> targets;
};

class PendingCompute;
class PendingKernels;

/// What kernels share during one run of a fragment. Belongs to the stream's thread.
struct KernelFrame {
  std::span<Blob> blobs;
  ExprTable* exprs = nullptr;
  StreamContext* stream = nullptr;
  c10::Device device{c10::DeviceType::CPU};
  std::span<KernelHook* const> hooks;
  MutationGuard* guard = nullptr;
  const StopSignal* stop = nullptr;   ///< for kernels that take long; may be nullptr
  PendingKernels* pending = nullptr;  ///< where kernels may go on elsewhere while others run
  bool check_outputs = true;
  RunId run = 0;
  Stack* stack = nullptr;  ///< one for the stream, reused: no allocation per call
};

/// Of the exception being handled: the one place where what kernels throw becomes a value.
Error error_of_exception();

/// What a value is, against what was declared. nullopt if it holds to it; else what was expected and found.
std::optional<std::string> mismatch(const ValueCheck& check, const c10::IValue& value, const ExprTable& exprs,
                                    c10::Device device);
/// "float32[2, 3] on cpu", "3 (int)", "none"; for errors.
std::string describe(const c10::IValue& value);

class Kernel {
 public:
  Kernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs);
  virtual ~Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// 1 hooks before · 2 stream check · 3 inputs · 4 compute · 5 stream and output check · 6 fill the blobs · 7 hooks
  /// after. Whatever fails or throws on the way becomes one root error, with which all outputs are poisoned; nothing is
  /// thrown. A poisoned input is inherited: nothing runs, the outputs and the return value carry its error.
  /// nullptr: all went well.
  std::shared_ptr<const Error> run(KernelFrame& frame) noexcept;

  // -- for PendingKernels
  /// Whether begin() may take it elsewhere.
  virtual bool may_begin() const { return false; }
  /// Whether begin() would find a place at once.
  virtual bool has_room() const { return true; }
  /// Takes what begin() began through steps 5 to 7; returns as run() does.
  std::shared_ptr<const Error> finish(PendingCompute& compute, KernelFrame& frame) noexcept;
  /// It must not run beside any other: it writes to an argument, has effects or takes sizes that others compute.
  bool stands_alone() const;
  bool reads_output_of(const Kernel& other) const;

  /// Two calls that bring the kernel's own data into the cache ahead of run(): a fragment of a thousand kernels does
  /// not fit there, and waiting for memory costs more than all else that run() adds to an operator. The object first,
  /// what it points to once that is there.
  void prefetch_object() const {
    const char* at = reinterpret_cast<const char*>(this);
    for (std::size_t line = 0; line < sizeof(Kernel) + kOwnFields; line += kCacheLine) __builtin_prefetch(at + line);
  }
  void prefetch_plan() const {
    const char* steps = reinterpret_cast<const char*>(steps_.data());
    const std::size_t bytes = std::min(steps_.size_bytes(), kPrefetchMax);
    for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(steps + at);
    __builtin_prefetch(output_steps_.data());
    __builtin_prefetch(targets_.data());
  }

  const KernelInfo& info() const { return *info_; }
  const std::shared_ptr<const KernelInfo>& shared_info() const { return info_; }
  /// While loading; pack() takes steps and targets out of them.
  const ArgumentPlan& arguments() const { return arguments_; }
  const OutputPlan& outputs() const { return outputs_; }
  /// The loader's last step, kernel by kernel in the order in which they run: what run() reads moves into tables of the
  /// fragment, where the next kernel's lies behind this one's. The tables have room and outlive the kernel.
  void pack(KernelTables& tables);
  /// The loader's: this argument step is the last reader of its blob.
  void move_on_last_use(std::size_t step) { arguments_.steps[step].from = ArgumentStep::From::kLastUse; }
  /// The loader's: nobody reads this output. It is then neither kept nor checked.
  void forget_output(ValueId value) {
    for (ValueCheck& target : outputs_.targets) {
      if (target.value == value) target.slot = kNoSlot;
    }
  }
  /// The loader's: sizes are computed from this output.
  void tell_expressions(ValueId value) {
    for (ValueCheck& target : outputs_.targets) {
      if (target.value == value) target.read_by_exprs = true;
    }
  }

 protected:
  /// Takes the arguments from the stack, which is the frame's, and leaves the results there. May throw.
  virtual void compute(Stack& stack, KernelFrame& frame) = 0;
  /// The same, without waiting for its end. nullptr: compute() it is. May throw.
  virtual std::unique_ptr<PendingCompute> begin(Stack& stack, KernelFrame& frame);
  virtual bool has_effects() const { return false; }

 private:
  static constexpr std::size_t kCacheLine = 64;
  static constexpr std::size_t kOwnFields = 16;  // of a derived class, roughly
  static constexpr std::size_t kPrefetchMax = 512;
  using Failure = std::optional<Error>;
  Failure run_steps(KernelFrame& frame, std::shared_ptr<const Error>& inherited);
  Failure take_results(KernelFrame& frame);
  bool push_arguments(KernelFrame& frame, std::shared_ptr<const Error>& inherited);
  void push_converted(KernelFrame& frame, const ArgumentStep& step);
  bool push_list(KernelFrame& frame, const ArgumentStep& step, std::shared_ptr<const Error>& inherited);
  std::int64_t expr_value(const KernelFrame& frame, ExprTable::Index index) const;
  Failure check_results(const KernelFrame& frame) const;
  void fill_blobs(KernelFrame& frame);
  void fill_one(KernelFrame& frame, const ValueCheck& target, c10::IValue&& value);
  Failure hooks_after(KernelFrame& frame);
  Error output_error(const std::string& what) const;
  std::shared_ptr<const Error> fail_outputs(KernelFrame& frame, Error error);
  void poison_outputs(KernelFrame& frame, const std::shared_ptr<const Error>& error);
  std::string describe_list(const KernelFrame& frame, const ArgumentStep& step) const;
  std::string describe_call(const KernelFrame& frame) const;

  std::shared_ptr<const KernelInfo> info_;
  ArgumentPlan arguments_;
  OutputPlan outputs_;
  std::span<ArgumentStep> steps_;  // in arguments_, or in the fragment's tables; likewise the others in outputs_
  std::span<OutputStep> output_steps_;
  std::span<ValueCheck> targets_;
};

}  // namespace callboard::kernels
