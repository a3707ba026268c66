"""Sizes as integer expressions: from sympy, as torch.export has them, to the tuples of the native module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

Expr = int | tuple[Any, ...]
Rule = Callable[[list[Expr], Any], Expr]

# What the exporter writes where sizes have no upper bound: numbers above it mean infinity in torch's ranges.
_INT64_MAX = 2**63 - 1


class InexpressibleError(Exception):
    """A size that is no integer expression over symbols; the text says which part."""


def to_expr(value: Any, symbols: Mapping[Any, Expr]) -> Expr:
    """`value`: a Python int or bool, a torch.SymInt or SymBool, or a sympy expression. `symbols` maps sympy symbols."""
    if isinstance(value, (bool, int)):
        return int(value)
    node = getattr(value, "node", None)
    return _convert(value if node is None else node.expr, symbols)


def free_symbols(value: Any) -> frozenset[Any]:
    """The sympy symbols of a SymInt, SymBool or SymFloat; empty for plain numbers."""
    node = getattr(value, "node", None)
    return frozenset() if node is None else frozenset(node.expr.free_symbols)


def bounds(value_range: Any) -> tuple[int, int | None]:
    """(lowest, highest) of a torch ValueRanges; None is no upper bound."""
    return max(0, _bound(value_range.lower, 0)), _upper(value_range.upper)


def _upper(limit: Any) -> int | None:
    highest = _bound(limit, _INT64_MAX)
    # torch writes "no bound" as infinity or as a number just below 2**63, depending on the path an export took.
    return None if highest >= _INT64_MAX - 1 else highest


def _bound(limit: Any, infinite: int) -> int:
    try:
        return int(limit)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return infinite


def _convert(expr: Any, symbols: Mapping[Any, Expr]) -> Expr:
    if expr in symbols:
        return symbols[expr]
    name = type(expr).__name__
    if getattr(expr, "is_Symbol", False):
        raise InexpressibleError(f"the symbol {expr} does not come from an input's size")
    if name in ("BooleanTrue", "BooleanFalse"):
        return int(bool(expr))
    if getattr(expr, "is_Integer", False):
        return int(expr)
    rule: Rule | None = _RULES.get(name)
    if rule is None:
        raise InexpressibleError(f"{expr} uses {name}, which is no integer arithmetic")
    return rule([_convert(operand, symbols) for operand in expr.args], expr)


def _fold(operator: str) -> Rule:
    def rule(operands: list[Expr], _expr: Any) -> Expr:
        return functools.reduce(lambda left, right: (operator, left, right), operands)

    return rule


def _binary(operator: str) -> Rule:
    def rule(operands: list[Expr], expr: Any) -> Expr:
        if len(operands) != 2:
            raise InexpressibleError(f"{expr} has {len(operands)} operands")
        return (operator, operands[0], operands[1])

    return rule


def _power(operands: list[Expr], expr: Any) -> Expr:
    base, exponent = operands
    if isinstance(exponent, int) and exponent < 0:
        raise InexpressibleError(f"{expr} has a negative exponent")
    return ("**", base, exponent)


def _ceil_div(operands: list[Expr], _expr: Any) -> Expr:
    return ("*", -1, ("//", ("*", -1, operands[0]), operands[1]))


def _modular_indexing(operands: list[Expr], _expr: Any) -> Expr:
    return ("%", ("//", operands[0], operands[1]), operands[2])


_RULES: dict[str, Rule] = {
    "Add": _fold("+"),
    "Mul": _fold("*"),
    "Max": _fold("max"),
    "Min": _fold("min"),
    "And": _fold("and"),
    "Or": _fold("or"),
    "Not": lambda operands, _expr: ("not", operands[0]),
    "FloorDiv": _binary("//"),
    "CleanDiv": _binary("//"),
    "CeilDiv": _ceil_div,
    "Mod": _binary("%"),
    "PythonMod": _binary("%"),
    "ModularIndexing": _modular_indexing,
    "Pow": _power,
    "PowByNatural": _power,
    "Identity": lambda operands, _expr: operands[0],
    "Equality": _binary("=="),
    "Unequality": _binary("!="),
    "StrictLessThan": _binary("<"),
    "LessThan": _binary("<="),
    "StrictGreaterThan": _binary(">"),
    "GreaterThan": _binary(">="),
}
