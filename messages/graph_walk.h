// Internal to messages: which values a node reads and writes.
#pragma once

#include "messages/graph.h"

namespace callboard {

/// Calls `visit(value)` for every value that an argument reads, holes aside.
template <class Visit>
void for_each_read(const Expr& expr, Visit& visit) {
  for (const Expr::Term& term : expr.terms) {
    if (term.op == ExprOp::kValue && term.value >= 0 && term.value < kNoValue) visit(static_cast<ValueId>(term.value));
  }
}

template <class Visit>
void for_each_read(const Argument& argument, Visit& visit) {
  if (const auto* value = std::get_if<ArgValue>(&argument)) {
    visit(value->value);
  } else if (const auto* list = std::get_if<ArgValueList>(&argument)) {
    for (const ValueId id : list->values) visit(id);
  } else if (const auto* holes = std::get_if<ArgOptionalValueList>(&argument)) {
    for (const ValueId id : holes->values) {
      if (id != kNoValue) visit(id);
    }
  } else if (const auto* symbol = std::get_if<ArgSymbol>(&argument)) {
    for_each_read(symbol->expr, visit);
  } else if (const auto* ints = std::get_if<ArgIntList>(&argument)) {
    for (const Expr& expr : ints->items) for_each_read(expr, visit);
  }
}

template <class Visit>
void for_each_read(const Node& node, Visit visit) {
  for (const Argument& argument : node.args) for_each_read(argument, visit);
  for (const auto& [name, argument] : node.kwargs) for_each_read(argument, visit);
}

template <class Visit>
void for_each_written(const Node& node, Visit visit) {
  for (const NodeOutput& output : node.outputs) {
    for (const ValueId id : output.values) {
      if (id != kNoValue) visit(id);
    }
  }
}

}  // namespace callboard
