#include "kernels/python_kernel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/pending_kernels.h"

namespace callboard::kernels {

namespace {

class PythonKernel final : public Kernel {
  /// A call in one of the domain's processes.
  class Elsewhere final : public PendingCompute {
   public:
    Elsewhere(const PythonKernel& kernel, std::unique_ptr<GilDomain::Call> call)
        : kernel_(kernel), call_(std::move(call)) {}
    void finish(Stack& stack, KernelFrame& frame) override {
      std::vector<GilDomain::Undeclared> undeclared;
      kernel_.complete(undeclared, frame, [&] { call_->finish(stack, undeclared); });
    }

    void look() override { kernel_.domain_.look_after(); }
    void abandon(const Error& reason) override { call_->abandon(reason); }

   private:
    const PythonKernel& kernel_;
    const std::unique_ptr<GilDomain::Call> call_;
  };

 public:
  PythonKernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs, GilDomain& domain,
               const PythonOperator& op, std::vector<std::size_t> moved)
      : Kernel(std::move(info), std::move(arguments), std::move(outputs)),
        domain_(domain),
        op_(op),
        moved_(std::move(moved)) {}

 private:
  void compute(Stack& stack, KernelFrame& frame) override {
    for (const std::size_t argument : moved_) move_to_domain(argument, stack, frame);
    std::vector<GilDomain::Undeclared> undeclared;
    complete(undeclared, frame, [&] { domain_.call(op_, stack, undeclared, frame.stop); });
  }

  std::unique_ptr<PendingCompute> begin(Stack& stack, KernelFrame& frame) override {
    auto call = domain_.begin(op_, stack, frame.stop);
    return call ? std::make_unique<Elsewhere>(*this, std::move(call)) : nullptr;
  }
  bool may_begin() const override { return moved_.empty() && !has_effects() && domain_.parallel() > 1; }
  bool has_room() const override { return domain_.has_room(); }
  bool has_effects() const override { return op_.schema.returns().empty(); }

  template <class Work>
  void complete(std::vector<GilDomain::Undeclared>& undeclared, KernelFrame& frame, const Work& work) const {
    try {
      work();
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
    for (const GilDomain::Undeclared& what : undeclared) {
      if (what.harmed) frame.guard->note_undeclared_write(what.written);
    }
  }

  /// A declared write is made on a copy that becomes the argument's new value, so that a domain that ends in its midst
  /// has spoilt nothing.
  void move_to_domain(std::size_t argument, Stack& stack, KernelFrame& frame) {
    const auto move = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      if (domain_.writes_in_place(tensor.storage()) && !frame.guard->is_protected(tensor)) return;
      const auto fresh = domain_.memory_to_write(tensor.storage());
      if (fresh) MutationGuard::move_to(*fresh, tensor, stack, frame.blobs);
    };
    if (stack[argument].isTensor()) {
      move(stack[argument].toTensor());
    } else if (stack[argument].isTensorList()) {
      const std::vector<at::Tensor> tensors = stack[argument].toTensorVector();
      for (std::size_t i = 0; i < tensors.size(); ++i) move(stack[argument].toTensorList().get(i));
    }
  }

  GilDomain& domain_;
  const PythonOperator& op_;              // the domain's
  const std::vector<std::size_t> moved_;  // arguments that are written to in memory of the domain
};

}  // namespace

const PythonOperator* find_python_operator(const GilDomain* domain, const std::string& op) {
  if (domain == nullptr) return nullptr;
  const auto found = std::ranges::find(domain->operators(), op, &PythonOperator::op);
  return found == domain->operators().end() ? nullptr : &*found;
}

bool calls_processes(const GilDomain* domain, const Fragment& fragment) {
  return domain != nullptr && domain->kind() == "process" && std::ranges::any_of(fragment.nodes, [&](const Node& node) {
           return find_python_operator(domain, node.op) != nullptr;
         });
}

Result<PreparedKernel> make_python_kernel(const Node& node, std::shared_ptr<const KernelInfo> info, OutputPlan outputs,
                                          const BindingScope& scope, GilDomain& domain, const PythonOperator& op) {
  CALLBOARD_ASSIGN(ArgumentPlan arguments, bind_arguments(node, op.schema, scope));
  CALLBOARD_TRY(check_declared_outputs(outputs, op.schema));
  PreparedKernel prepared;
  prepared.traits.random = op.random;
  prepared.traits.effects = op.schema.returns().empty() && !arguments.writes;
  prepared.traits.aliases = aliases_of(op.schema, arguments);
  std::vector<std::size_t> moved;
  if (domain.kind() == "process") {
    for (std::size_t i = 0; i < arguments.steps.size(); ++i) {
      if (arguments.steps[i].written) moved.push_back(i);
    }
    arguments.writes = false;  // this kernel copies by itself
  }
  prepared.kernel = std::make_unique<PythonKernel>(std::move(info), std::move(arguments), std::move(outputs), domain,
                                                   op, std::move(moved));
  return prepared;
}

}  // namespace callboard::kernels
