#include "kernels/dispatcher_kernel.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include "kernels/dying_operand.h"
#include "kernels/own_operators.h"
#include "messages/base/names.h"

namespace callboard::kernels {

namespace {

constexpr std::size_t kSuggestionsMax = 3;

class DispatcherKernel final : public Kernel {
 public:
  DispatcherKernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs,
                   c10::OperatorHandle handle)
      : Kernel(std::move(info), std::move(arguments), std::move(outputs)), handle_(std::move(handle)) {}

 private:
  void compute(Stack& stack, KernelFrame&) override { handle_.callBoxed(stack); }
  c10::OperatorHandle handle_;
};

class OverwritingKernel final : public Kernel {
 public:
  OverwritingKernel(std::shared_ptr<const KernelInfo> info, ArgumentPlan arguments, OutputPlan outputs,
                    c10::OperatorHandle handle, c10::OperatorHandle in_place)
      : Kernel(std::move(info), std::move(arguments), std::move(outputs)),
        handle_(std::move(handle)),
        in_place_(std::move(in_place)),
        result_(this->outputs().targets.front().dtype) {}

 private:
  void compute(Stack& stack, KernelFrame&) override {
    (may_overwrite_first(stack, stack.size(), result_) ? in_place_ : handle_).callBoxed(stack);
  }
  c10::OperatorHandle handle_;
  c10::OperatorHandle in_place_;
  at::ScalarType result_;
};

/// One tensor of a known dtype, as in_place_form() gives it.
bool gives_known_tensor(const OutputPlan& outputs) {
  return outputs.targets.size() == 1 && !outputs.steps.front().is_list &&
         outputs.targets.front().kind == ValueKind::kTensor &&
         outputs.targets.front().dtype != at::ScalarType::Undefined;
}

/// "aten::add.Tensor" → {"aten::add", "Tensor"}.
c10::OperatorName split_name(const std::string& op) {
  const std::size_t space = op.find("::");
  const std::size_t dot = op.find('.', space == std::string::npos ? 0 : space);
  if (dot == std::string::npos) return {op, ""};
  return {op.substr(0, dot), op.substr(dot + 1)};
}

std::string joined_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

Error unknown_operator(const std::string& op) {
  const std::string space = op.substr(0, op.find("::") + 2);
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with(space)) names.push_back(joined_name(name));
  }
  Error error(ErrorCode::kUnknownOperator, "there is no operator '" + op + "' on this device");
  if (names.empty()) {
    error.hint = "no operator of '" + space +
                 "' is registered here: name the library that brings them in the cluster file: operators: "
                 "[{path: /path/of/its/library.so}];";
    return error;
  }
  for (const std::string& near : nearest_names(op, names, kSuggestionsMax)) {
    error.hint += (error.hint.empty() ? "did you mean " : ", ") + near;
  }
  if (!error.hint.empty()) error.hint += "?";
  return error;
}

/// Callboard's own library is opened when the first program names what may be one of its operators.
Result<c10::OperatorHandle> find_operator(const c10::OperatorName& name, const std::string& op) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  if (auto handle = dispatcher.findSchema(name)) return *handle;
  if (!op.starts_with(kOwnNamespace)) return fail(unknown_operator(op));
  const Status loaded = load_own_operators();
  if (auto handle = dispatcher.findSchema(name)) return *handle;
  Error unknown = unknown_operator(op);
  if (!loaded) unknown.detail = loaded.error().to_string();
  return fail(std::move(unknown));
}

/// nullptr unless the argument of that name is a constant.
const c10::IValue* constant_argument(const ArgumentPlan& plan, std::string_view name) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.names[i] == name && plan.steps[i].from == ArgumentStep::From::kStatic) return &plan.steps[i].constant;
  }
  return nullptr;
}

bool is_random(const c10::OperatorHandle& handle, const ArgumentPlan& plan) {
  const bool takes_generator = std::ranges::any_of(handle.schema().arguments(), [](const c10::Argument& formal) {
    return formal.real_type()->str().find("Generator") != std::string::npos;
  });
  if (!takes_generator && !handle.hasTag(at::Tag::nondeterministic_seeded)) return false;
  // Exported models keep their dropouts, switched off: those repeat exactly.
  for (const char* name : {"train", "training"}) {
    const c10::IValue* on = constant_argument(plan, name);
    if (on != nullptr && on->isBool() && !on->toBool()) return false;
  }
  const c10::IValue* probability = constant_argument(plan, "dropout_p");
  return probability == nullptr || !probability->isDouble() || probability->toDouble() != 0.0;
}

}  // namespace

std::vector<std::pair<std::size_t, Slot>> aliases_of(const c10::FunctionSchema& schema, const ArgumentPlan& plan) {
  using From = ArgumentStep::From;
  std::vector<std::pair<std::size_t, Slot>> aliases;
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::AliasInfo* returned = schema.returns()[i].alias_info();
    if (returned == nullptr) continue;
    for (std::size_t k = 0; k < plan.steps.size(); ++k) {
      const c10::AliasInfo* given = schema.arguments()[k].alias_info();
      if (given == nullptr || plan.steps[k].from != From::kBlob) continue;
      const bool shared = std::ranges::any_of(
          returned->beforeSets(), [&](const c10::Symbol& set) { return given->beforeSets().contains(set); });
      if (shared) aliases.emplace_back(i, plan.steps[k].first);
    }
  }
  return aliases;
}

Status check_declared_outputs(const OutputPlan& outputs, const c10::FunctionSchema& schema) {
  if (outputs.steps.size() != schema.returns().size()) {
    return fail(ErrorCode::kOutputMismatch, "the node declares " + std::to_string(outputs.steps.size()) +
                                                " outputs, the operator gives " +
                                                std::to_string(schema.returns().size()));
  }
  for (std::size_t i = 0; i < outputs.steps.size(); ++i) {
    const bool is_list = schema.returns()[i].type()->kind() == c10::TypeKind::ListType;
    if (outputs.steps[i].is_list == is_list || schema.returns()[i].type()->kind() == c10::TypeKind::AnyType) continue;
    const bool unused = !outputs.steps[i].is_list && outputs.targets[outputs.steps[i].first].slot == kNoSlot;
    if (!unused) {
      return fail(ErrorCode::kOutputMismatch,
                  "output " + std::to_string(i) + " is declared as " +
                      (is_list ? "one value, the operator gives a list" : "a list, the operator gives one value"));
    }
  }
  return {};
}

Result<PreparedKernel> make_dispatcher_kernel(const Node& node, std::shared_ptr<const KernelInfo> info,
                                              OutputPlan outputs, const BindingScope& scope,
                                              const DeviceBackend& backend) {
  const c10::OperatorName name = split_name(node.op);
  CALLBOARD_ASSIGN(const c10::OperatorHandle handle, find_operator(name, node.op));
  if (!backend.can_run(name.name, name.overload_name)) {
    return fail(ErrorCode::kUnsupported,
                "the operator '" + node.op + "' has no kernel for " + std::string(backend.kind()),
                "place the node on a device of another kind");
  }
  const c10::FunctionSchema& schema = handle.schema();
  CALLBOARD_ASSIGN(ArgumentPlan arguments, bind_arguments(node, schema, scope));
  CALLBOARD_TRY(check_declared_outputs(outputs, schema));
  PreparedKernel prepared;
  const bool ours = node.op.starts_with("aten::") || node.op.starts_with("prims::");
  prepared.traits.random = is_random(handle, arguments);
  prepared.traits.effects = !ours && schema.returns().empty() && !arguments.writes;
  prepared.traits.aliases = aliases_of(schema, arguments);
  const auto in_place = backend.device().is_cpu() && gives_known_tensor(outputs) ? in_place_form(handle) : std::nullopt;
  if (in_place) {
    prepared.kernel = std::make_unique<OverwritingKernel>(std::move(info), std::move(arguments), std::move(outputs),
                                                          handle, *in_place);
  } else {
    prepared.kernel =
        std::make_unique<DispatcherKernel>(std::move(info), std::move(arguments), std::move(outputs), handle);
  }
  return prepared;
}

}  // namespace callboard::kernels
