"""Arguments of operators: from Python values to the tagged tuples of the native module, by the operator's schema.

The schema decides, not the value: 1 for a `Scalar` stays an int, 1 for a `float` becomes 1.0, 3 for an `int[2]` becomes
[3, 3]. That is what torch's own argument parser does before an operator sees its arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from callboard._symbols import Expr

Argument = tuple[Any, ...]


@dataclass(frozen=True)
class Ref:
    """A value of the program: a tensor, or a number that a node makes."""

    id: int


@dataclass(frozen=True)
class Sym:
    """An integer that depends on sizes."""

    expr: Expr


class ArgumentProblem(Exception):
    """An argument that cannot be written down; the text says why."""


def operator_name(schema: Any) -> str:
    """aten::add.Tensor; without the dot where the overload has no name."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def dtype_name(dtype: torch.dtype) -> str:
    """float32."""
    return str(dtype).removeprefix("torch.")


def bind(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Argument], dict[str, Argument]]:
    """Positional arguments in the schema's order and the rest by name, converted. Defaults stay out: the device fills
    them in from the same schema.
    """
    parameters = list(schema.arguments)
    if len(args) > len(parameters):
        raise ArgumentProblem(f"it takes {len(parameters)} arguments, {len(args)} are given")
    by_name = {parameter.name: parameter for parameter in parameters}
    positional = [_converted(value, parameter) for value, parameter in zip(args, parameters, strict=False)]
    named: dict[str, Argument] = {}
    for name, value in kwargs.items():
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            raise ArgumentProblem(f"it has no argument '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
        named[name] = _converted(value, by_name[name])
    given = {parameter.name for parameter in parameters[: len(args)]} | set(named)
    missing = [p.name for p in parameters if p.name not in given and not p.has_default_value()]
    if missing:
        raise ArgumentProblem(f"it lacks its argument '{missing[0]}'")
    return positional, named


def _converted(value: Any, parameter: Any) -> Argument:
    try:
        return convert(value, str(parameter.real_type), parameter.N)
    except ArgumentProblem as problem:
        raise ArgumentProblem(f"argument '{parameter.name}': {problem}") from None


def convert(value: Any, kind: str, length: int | None = None) -> Argument:
    """One value for a parameter of the type `kind` (as schemas print it); `length` is the 2 of int[2]."""
    if kind.startswith("Optional["):
        return ("none",) if value is None else convert(value, kind[len("Optional[") : -1], length)
    if kind.startswith("List["):
        return _convert_list(value, kind[len("List[") : -1], length)
    rule = _SCALAR_RULES.get(kind)
    if rule is None:
        raise ArgumentProblem(f"arguments of the type {kind} are not supported")
    if isinstance(value, Ref):
        return ("tensor", value.id)
    if isinstance(value, Sym):
        return ("expr", value.expr)
    argument: Argument = rule(value)
    return argument


def _convert_list(value: Any, kind: str, length: int | None) -> Argument:
    if kind in ("int", "SymInt", "number") and isinstance(value, (int, Ref, Sym)) and not isinstance(value, bool):
        value = [value] * (length or 1)
    elif kind in ("float", "bool") and isinstance(value, (int, float, bool)):
        value = [value] * (length or 1)
    if not isinstance(value, (list, tuple)):
        raise ArgumentProblem(f"a list is expected, {_describe(value)} is given")
    if kind == "Tensor":
        return ("tensors", [_tensor_id(item) for item in value])
    if kind == "Optional[Tensor]":
        return ("optional_tensors", [None if item is None else _tensor_id(item) for item in value])
    if kind in ("int", "SymInt") or (kind == "number" and all(isinstance(i, (int, Ref, Sym)) for i in value)):
        return ("ints", [_integer(item) for item in value])
    if kind in ("float", "number"):
        return ("floats", [_float(item)[1] for item in value])
    if kind == "bool":
        return ("bools", [_bool(item)[1] for item in value])
    if kind == "str":
        return ("strs", [_str(item)[1] for item in value])
    raise ArgumentProblem(f"lists of {kind} are not supported")


def _tensor_id(value: Any) -> int:
    if not isinstance(value, Ref):
        raise ArgumentProblem(f"a list of tensors is expected, it holds {_describe(value)}")
    return value.id


def _integer(value: Any) -> Expr:
    if isinstance(value, Sym):
        return value.expr
    if isinstance(value, Ref):
        return ("value", value.id)
    return int(_int(value)[1])


def _tensor(value: Any) -> Argument:
    # A number where a tensor is expected: torch wraps it in a 0-dim tensor that does not widen the other's dtype.
    if isinstance(value, (bool, int, float, complex)):
        return ("scalar", value)
    raise ArgumentProblem(f"a tensor is expected, {_describe(value)} is given")


def _int(value: Any) -> Argument:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentProblem(f"an int is expected, {_describe(value)} is given")
    return ("int", value)


def _float(value: Any) -> Argument:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentProblem(f"a float is expected, {_describe(value)} is given")
    return ("float", float(value))


def _complex(value: Any) -> Argument:
    if not isinstance(value, (int, float, complex)):
        raise ArgumentProblem(f"a complex number is expected, {_describe(value)} is given")
    return ("complex", complex(value))


def _bool(value: Any) -> Argument:
    if not isinstance(value, bool):
        raise ArgumentProblem(f"a bool is expected, {_describe(value)} is given")
    return ("bool", value)


def _str(value: Any) -> Argument:
    if not isinstance(value, str):
        raise ArgumentProblem(f"a string is expected, {_describe(value)} is given")
    return ("str", value)


def _number(value: Any) -> Argument:
    if not isinstance(value, (bool, int, float, complex)):
        raise ArgumentProblem(f"a number is expected, {_describe(value)} is given")
    return ("scalar", value)


def _named(tag: str, kind: type) -> Any:
    def rule(value: Any) -> Argument:
        if not isinstance(value, kind):
            raise ArgumentProblem(f"a {kind.__name__} is expected, {_describe(value)} is given")
        return (tag, str(value).removeprefix("torch."))

    return rule


def _device(value: Any) -> Argument:
    """The cluster decides where a node runs: the CPU that the module was exported on stands for the node's device."""
    device = torch.device(value)
    if device.type == "cpu":
        return ("device_slot", 0)
    return ("device", str(device))


def _generator(value: Any) -> Argument:
    if value is not None:
        raise ArgumentProblem("a torch.Generator cannot go to another process; leave it out")
    return ("none",)


def _describe(value: Any) -> str:
    if isinstance(value, Ref):
        return "a tensor"
    if isinstance(value, Sym):
        return "a size"
    return f"{type(value).__name__} {value!r:.60}"


_SCALAR_RULES: dict[str, Any] = {
    "Tensor": _tensor,
    "int": _int,
    "SymInt": _int,
    "float": _float,
    "complex": _complex,
    "bool": _bool,
    "str": _str,
    "number": _number,
    "ScalarType": _named("dtype", torch.dtype),
    "Layout": _named("layout", torch.layout),
    "MemoryFormat": _named("memory_format", torch.memory_format),
    "Device": _device,
    "Generator": _generator,
}
