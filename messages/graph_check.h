// What a valid program or fragment is. Pure; no LibTorch.
#pragma once

#include <span>

#include "messages/graph.h"

namespace callboard {

/// All structural faults of a program at once (as causes of one kBadGraph, or the single fault itself): unknown or
/// doubly defined values, use before definition (kUseBeforeDefinition; kCycle if the value is defined by a node that
/// itself depends on the user), literal devices (kLiteralDevice), malformed operator names, bad expressions, symbols
/// that no input binds, states without a constant, empty or duplicate names of inputs, limits of limits.h. Each names
/// the node.
Status check_program(const ProgramGraph& program);

/// The same for a fragment that came over the wire, including its edges and frees.
Status check_fragment(const Fragment& fragment);

/// For each node the values whose last reader it is and that are not outputs of the fragment, nor `after` of a state.
/// A value that nobody reads is freed by the node that defines it.
std::vector<std::vector<ValueId>> compute_frees(const Fragment& fragment);

/// What a client knows of one program input when it submits.
struct InputDescription {
  ValueKind kind = ValueKind::kTensor;
  TensorMeta meta;  ///< for a tensor
  std::int64_t integer = 0;
};

/// Binds the symbols of `symbols` from the inputs' sizes and checks kind, dtype, rank, fixed sizes, derived sizes and
/// symbol ranges. `inputs[i]` belongs to `specs[i]`, whose names are used in the errors (kBadInput), for example:
/// "input 'ids': size 1 is 600, the program allows 2…512 (symbol s1)". Sizes such as 2*s0 solve for s0 where no input
/// binds it alone.
Result<std::vector<std::int64_t>> bind_symbols(std::span<const SymbolSpec> symbols, std::span<const ValueSpec> specs,
                                               std::span<const InputDescription> inputs);

}  // namespace callboard
