#include "kernels/python_kernel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace callboard::kernels {

namespace {

class PythonKernel final : public Kernel {
 public:
  PythonKernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs, GilDomain& domain,
               const PythonOperator& op)
      : Kernel(std::move(info), std::move(arguments), std::move(outputs)), domain_(domain), op_(op) {}

 private:
  void compute(Stack& stack, KernelFrame& frame) override {
    std::vector<GilDomain::Undeclared> undeclared;
    try {
      domain_.call(op_, stack, undeclared);
    } catch (...) {
      note_damage(undeclared, frame);
      throw;
    }
    if (undeclared.empty()) return;
    note_damage(undeclared, frame);
    const std::string& argument = op_.schema.arguments()[undeclared.front().argument].name();
    throw KernelFailure(Error(ErrorCode::kPythonFailed,
                              "the Python kernel " + op_.target + " wrote to its argument '" + argument +
                                  "', which its schema does not declare as written: " + c10::toString(op_.schema),
                              "declare it, mutates=('" + argument + "',) or Tensor(a!) " + argument +
                                  " in the schema, or compute into a tensor of its own"));
  }

  static void note_damage(const std::vector<GilDomain::Undeclared>& undeclared, KernelFrame& frame) {
    for (const GilDomain::Undeclared& what : undeclared) frame.guard->note_undeclared_write(what.written);
  }

  GilDomain& domain_;
  const PythonOperator& op_;  // the domain's
};

}  // namespace

const PythonOperator* find_python_operator(const GilDomain* domain, const std::string& op) {
  if (domain == nullptr) return nullptr;
  const auto found = std::ranges::find(domain->operators(), op, &PythonOperator::op);
  return found == domain->operators().end() ? nullptr : &*found;
}

Result<PreparedKernel> make_python_kernel(const Node& node, std::shared_ptr<const KernelInfo> info, OutputPlan outputs,
                                          const BindingScope& scope, GilDomain& domain, const PythonOperator& op) {
  CALLBOARD_ASSIGN(ArgumentPlan arguments, bind_arguments(node, op.schema, scope));
  CALLBOARD_TRY(check_declared_outputs(outputs, op.schema));
  PreparedKernel prepared;
  prepared.traits.random = op.random;
  prepared.traits.effects = op.schema.returns().empty() && !arguments.writes;
  prepared.traits.aliases = aliases_of(op.schema, arguments);
  prepared.kernel =
      std::make_unique<PythonKernel>(std::move(info), std::move(arguments), std::move(outputs), domain, op);
  return prepared;
}

}  // namespace callboard::kernels
