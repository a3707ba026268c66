// From a node's tagged arguments to what its operator's schema wants, once, while loading.
#pragma once

#include <map>
#include <string>

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>

#include "kernels/kernel.h"

namespace callboard::kernels {

/// What a fragment's kernels are bound against. Belongs to the loader.
struct BindingScope {
  const Fragment& fragment;
  const std::map<ValueId, Slot>& slots;
  ExprTable& exprs;
  c10::Device device;  ///< device slot 0

  ValueKind kind_of(ValueId value) const;
};

/// Positional and named arguments against the schema: kinds converted as Python's calling convention of torch.ops does
/// (int for float, a number for a Tensor, one int for int[2]), defaults filled in, lists prepared. Refuses by name what
/// is missing, unknown, given twice, too many or of a kind that does not convert (kBadArgument), a literal device
/// (kLiteralDevice), and what cannot travel in a fragment: generators, streams, futures (kUnsupported).
Result<ArgumentPlan> bind_arguments(const Node& node, const c10::FunctionSchema& schema, const BindingScope& scope);

/// For operators without a schema: `names.size()` arguments at most, `required` at least, as they were given.
Result<ArgumentPlan> bind_plain_arguments(const Node& node, const std::vector<std::string>& names, std::size_t required,
                                          const BindingScope& scope);

/// "the int 3", "value 'x' (a tensor)", "a list of 4 ints".
std::string describe_argument(const Argument& argument, const BindingScope& scope);

}  // namespace callboard::kernels
