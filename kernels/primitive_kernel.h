// The operators of our own (callboard_sym::*): sizes, and arithmetic on plain numbers.
#pragma once

#include "kernels/dispatcher_kernel.h"

namespace callboard::kernels {

/// Is it one of ours? Besides callboard_sym:: also under the names that torch.export leaves in graphs: Python's
/// operator and math modules and torch.sym_* ("_operator::floordiv", "math::ceil", "torch::sym_max").
bool is_primitive(std::string_view op);

/// Arithmetic is Python's: floor division and modulo round towards minus infinity, true division gives a float, an int
/// that does not fit 64 bits is kBadInput. kUnknownOperator, kBadArgument, kOutputMismatch.
Result<PreparedKernel> make_primitive_kernel(const Node& node, std::shared_ptr<const KernelInfo> info,
                                             OutputPlan outputs, const BindingScope& scope);

}  // namespace callboard::kernels
