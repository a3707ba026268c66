// A kernel for whatever LibTorch's dispatcher knows: ATen, and every library's own operators.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/argument_binding.h"
#include "kernels/kernel.h"

namespace callboard::kernels {

/// What a schema tells about an operator.
struct OperatorTraits {
  bool random = false;   ///< draws random numbers with the arguments that it has here
  bool effects = false;  ///< gives nothing back and writes to nothing that we see: it can only be there for an effect
  std::vector<std::pair<std::size_t, Slot>> aliases;  ///< output position, and a blob whose memory it may share
};

struct PreparedKernel {
  std::unique_ptr<Kernel> kernel;
  OperatorTraits traits;
};

/// kOutputMismatch where a node declares other outputs than the schema has: their count, a list in place of one value.
Status check_declared_outputs(const OutputPlan& outputs, const c10::FunctionSchema& schema);
/// Which results may share memory with which blobs, as the schema's annotations say.
std::vector<std::pair<std::size_t, Slot>> aliases_of(const c10::FunctionSchema& schema, const ArgumentPlan& plan);

/// Resolves the operator, binds the arguments, compares the number of outputs. kUnknownOperator names the nearest ones.
Result<PreparedKernel> make_dispatcher_kernel(const Node& node, std::shared_ptr<const KernelInfo> info,
                                              OutputPlan outputs, const BindingScope& scope,
                                              const DeviceBackend& backend);

}  // namespace callboard::kernels
