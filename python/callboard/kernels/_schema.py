"""What a kernel's schema must be, and that the function fits it. Each finding is an InputError that names it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from callboard.errors import InputError

# Namespaces that belong to PyTorch or to the program format; "callboard" is for the kernels that come with the package.
_RESERVED = frozenset(("aten", "prim", "prims", "callboard_sym"))
_OWN_NAMESPACE, _OWN_PACKAGE = "callboard", "callboard."
_RETURNS = frozenset(("Tensor", "List[Tensor]"))
_PLAIN = (bool, int, float, str, list, type(None))


def refuse(who: str, problem: str, hint: str, detail: str = "") -> InputError:
    """The error for a kernel that cannot be registered."""
    return InputError(f"the kernel {who} {problem}", hint=hint, detail=detail)


def operator_of(op: str | None, schema: str | None, target: str) -> str:
    """The operator's name, "ns::name": as given, or as the schema says, or the function's package and name."""
    module, _, function = target.partition(":")
    written = schema.partition("(")[0].strip() if schema and "(" in schema else ""
    if op and written and op != written:
        raise refuse(
            target, f"has two names: op='{op}' and '{written}' in its schema", "give one of them, or the same in both"
        )
    name = op or written or f"{module.partition('.')[0]}::{function}"
    namespace, _, base = name.partition("::")
    if not (namespace.isidentifier() and base.isidentifier()):
        raise refuse(
            target, f"has the operator name '{name}'", "an operator is called namespace::name, without an overload"
        )
    foreign = namespace in _RESERVED or (namespace == _OWN_NAMESPACE and not module.startswith(_OWN_PACKAGE))
    if foreign:
        raise refuse(
            target, f"takes the operator name '{name}', whose namespace is not free", "use your project's name there"
        )
    return name


def schema_of(fn: Callable[..., Any], op: str, schema: str | None, mutates: Sequence[str] | None) -> Any:
    """The checked torch schema, from the text or from the function's annotations."""
    named = _named_mutations(fn, op, mutates)
    text = op + schema[schema.index("(") :] if schema and "(" in schema else schema
    if text is None:
        try:
            text = torch.library.infer_schema(fn, op_name=op, mutates_args=named or ())
        except ValueError as problem:
            raise refuse(
                op,
                "has annotations from which no schema follows",
                "annotate each parameter and the result (torch.Tensor, torch.Tensor | None, int, float, bool, str, "
                "lists of them), or give schema=",
                str(problem),
            ) from None
    try:
        parsed = torch._C.parse_schema(text)
    except RuntimeError as problem:
        raise refuse(
            op,
            f"has a schema that cannot be read: {text}",
            'for example "(Tensor x, Tensor(a!) total, float eps=1e-5) -> Tensor"',
            str(problem).partition("\nException raised from")[0],
        ) from None
    _check_returns(op, parsed)
    _check_mutations(op, parsed, named)
    _check_parameters(op, parsed, fn)
    return parsed


def mutated_arguments(parsed: Any) -> tuple[str, ...]:
    """Names of the arguments that the schema marks as written, (a!)."""
    return tuple(argument.name for argument in parsed.arguments if argument.is_write)


def check_fake(op: str, parsed: Any, fake: Callable[..., Any] | None) -> None:
    """torch.export asks the fake for shapes and dtypes; without one a kernel cannot be in a graph."""
    if fake is None:
        if not parsed.returns:
            return  # nothing to describe
        raise refuse(
            op,
            "has no fake implementation",
            "fake=lambda x, …: torch.empty_like(x), or a function that gives empty results of the right shape",
        )
    if not callable(fake):
        raise refuse(op, f"has a fake that is no function but {type(fake).__name__}", "fake=lambda x: x.new_empty(…)")
    positional = [a.name for a in parsed.arguments if not a.kwarg_only]
    keywords = {a.name: None for a in parsed.arguments if a.kwarg_only}
    try:
        inspect.signature(fake).bind(*positional, **keywords)
    except TypeError as problem:
        raise refuse(op, "has a fake with other parameters than its own", f"schema: {parsed}", str(problem)) from None
    except ValueError:
        return  # torch.empty_like and the like do not tell their parameters


def _named_mutations(fn: Callable[..., Any], op: str, mutates: Sequence[str] | None) -> tuple[str, ...] | None:
    if mutates is None:
        return None
    if isinstance(mutates, str) or not all(isinstance(name, str) for name in mutates):
        raise refuse(op, f"has mutates={mutates!r}", "give the names of the written arguments: mutates=('total',)")
    parameters = inspect.signature(fn).parameters
    for name in mutates:
        if name not in parameters:
            raise refuse(
                op, f"has no argument '{name}' to write to", f"its arguments: {', '.join(parameters) or 'none'}"
            )
    return tuple(mutates)


def _check_returns(op: str, parsed: Any) -> None:
    for number, value in enumerate(parsed.returns):
        if str(value.type) not in _RETURNS:
            raise refuse(
                op,
                f"gives {value.type} as result {number}",
                "results are tensors: Tensor, (Tensor, Tensor), or Tensor[]",
            )
        if value.alias_info is not None:
            raise refuse(
                op,
                f"says that result {number} is one of its arguments",
                "return nothing for an argument written in place",
            )
    if len(parsed.returns) > 1 and any(str(value.type) != "Tensor" for value in parsed.returns):
        raise refuse(op, "gives a list beside other results", "return one list, or a fixed number of tensors")
    if re.search(r"[(,] ?\.\.\.", str(parsed)):
        raise refuse(op, "has a schema with '...'", "name each argument")


def _check_mutations(op: str, parsed: Any, named: tuple[str, ...] | None) -> None:
    for argument in parsed.arguments:
        if argument.kwarg_only and "Tensor" in str(argument.type):
            raise refuse(
                op,
                f"takes the tensor '{argument.name}' by keyword only",
                "PyTorch's operators take tensors by position",
            )
        if argument.alias_info is not None and not argument.is_write:
            raise refuse(
                op,
                f"marks '{argument.name}' as an alias that nothing writes",
                "write Tensor, or Tensor(a!) if it is written",
            )
    marked = mutated_arguments(parsed)
    if named is None or set(named) == set(marked):
        return
    unmarked = [name for name in named if name not in marked]
    if unmarked:
        raise refuse(
            op,
            f"writes to '{unmarked[0]}', which its schema does not say",
            f"mark it there: Tensor(a!) {unmarked[0]}",
            str(parsed),
        )
    silent = next(name for name in marked if name not in named)
    raise refuse(
        op, f"writes to '{silent}' by its schema, not by mutates=", "leave mutates= out, or name all", str(parsed)
    )


def _check_parameters(op: str, parsed: Any, fn: Callable[..., Any]) -> None:
    """Devices pass arguments as the schema has them and leave out what has its default: both must mean the same."""
    parameters = list(inspect.signature(fn).parameters.values())
    hint = f"schema: {parsed}"
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise refuse(
                op, f"has a parameter '{parameter}' that no schema can say", "name each parameter; no *args, / or **"
            )
    names = [parameter.name for parameter in parameters]
    if names != [argument.name for argument in parsed.arguments]:
        raise refuse(op, f"has the parameters ({', '.join(names)}), its schema has others", hint)
    for parameter, argument in zip(parameters, parsed.arguments, strict=True):
        if (parameter.kind == parameter.KEYWORD_ONLY) != argument.kwarg_only:
            raise refuse(op, f"and its schema differ in whether '{parameter.name}' is by keyword only", hint)
        has_default = parameter.default is not parameter.empty
        if has_default != argument.has_default_value():
            raise refuse(op, f"and its schema differ in whether '{parameter.name}' has a default", hint)
        comparable = (
            has_default and isinstance(parameter.default, _PLAIN) and isinstance(argument.default_value, _PLAIN)
        )
        if comparable and parameter.default != argument.default_value:
            raise refuse(op, f"has {parameter.name}={parameter.default!r}, its schema {argument.default_value!r}", hint)
