// A kernel whose Compute is a Python function in a GIL domain. Knows no Python: the domain does.
#pragma once

#include <memory>

#include "kernels/argument_binding.h"
#include "kernels/dispatcher_kernel.h"
#include "kernels/gil_domain.h"
#include "kernels/kernel.h"

namespace callboard::kernels {

/// nullptr: the domain brings no such operator.
const PythonOperator* find_python_operator(const GilDomain* domain, const std::string& op);
/// Whether some of its kernels run in processes of the domain.
bool calls_processes(const GilDomain* domain, const Fragment& fragment);

/// Binds the arguments to the operator's schema and compares the number of outputs, as for an operator of the
/// dispatcher. `domain` outlives the kernel.
Result<PreparedKernel> make_python_kernel(const Node& node, std::shared_ptr<const KernelInfo> info, OutputPlan outputs,
                                          const BindingScope& scope, GilDomain& domain, const PythonOperator& op);

}  // namespace callboard::kernels
