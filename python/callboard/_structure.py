"""The structure of a program's arguments and results: which leaves are tensors, which were fixed at compile time, and
how the results are put together again. JSON in the program's annotations, so that a saved program has it too.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from callboard.errors import InputError, UnsupportedError

ANNOTATION = "callboard.structure"


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments: input number `index` of the program, or a constant that it was made with."""

    name: str
    index: int | None = None
    constant: Any = None


@dataclass
class Structure:
    """How calls look. `in_spec` is the tree of (args, kwargs), `parameters` the names that args may be given by."""

    leaves: list[Leaf]
    in_spec: Any
    out_spec: Any
    parameters: list[str] = field(default_factory=list)
    unsaved: str = ""  # why it cannot be written down; empty if it can

    def __post_init__(self) -> None:
        args_spec, kwargs_spec = self.in_spec.children()
        self._positional = args_spec.num_children
        self._keywords: list[str] = list(kwargs_spec.context or ())
        # The common case: positional tensors only, nothing nested. Then the arguments are the inputs.
        self.plain = (
            not self._keywords
            and all(leaf.index == number for number, leaf in enumerate(self.leaves))
            and len(self.leaves) == self._positional
            and all(child.is_leaf() for child in args_spec.children())
        )
        self.unflatten = _unflattener(self.out_spec)

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The values of the program's inputs, in order; InputError names what does not fit."""
        if self.plain and not kwargs and len(args) == self._positional:
            return args
        args, kwargs = self._arranged(args, kwargs)
        try:
            # Takes the keys of dicts in the program's order, whatever order they are given in.
            leaves = self.in_spec.flatten_up_to((args, kwargs))
        except ValueError:
            self._explain_mismatch((args, kwargs))
        inputs = []
        for leaf, value in zip(self.leaves, leaves, strict=True):
            if leaf.index is not None:
                inputs.append(value)
            elif not _same_constant(leaf.constant, value):
                raise InputError(
                    f"argument '{leaf.name}' is {_short(value)}, the program was compiled for {_short(leaf.constant)}",
                    hint="numbers, strings and None are part of the program: compile it again for another value",
                )
        return inputs

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in the form in which the program was compiled, whichever of them are given by name."""
        if len(args) == self._positional and list(kwargs) == self._keywords:
            return args, kwargs
        expected = [*self._names(), *self._keywords]
        named: dict[str, Any] = {}
        by_position = self.parameters or self._names()
        for number, value in enumerate(args):
            name = by_position[number] if number < len(by_position) else f"argument {number}"
            named[name] = value
        for name, value in kwargs.items():
            if name in named:
                raise InputError(f"argument '{name}' is given twice, by position and by name")
            named[name] = value
        missing = [name for name in expected if name not in named]
        surplus = [name for name in named if name not in expected]
        if missing or surplus:
            parts = [f"missing: {', '.join(missing)}"] if missing else []
            parts += [f"not expected: {', '.join(surplus)}"] if surplus else []
            raise InputError(
                f"the program takes {_count(len(expected), 'argument')} ({', '.join(expected) or 'none'}), "
                f"{len(args) + len(kwargs)} given; {'; '.join(parts)}"
            )
        return (
            tuple(named[name] for name in expected[: self._positional]),
            {name: named[name] for name in self._keywords},
        )

    def _names(self) -> list[str]:
        known = self.parameters[: self._positional]
        return known + [f"argument {number}" for number in range(len(known), self._positional)]

    def _explain_mismatch(self, given: Any) -> NoReturn:
        names = [*self._names(), *self._keywords]
        want_args, want_kwargs = self.in_spec.children()
        values = [*given[0], *given[1].values()]
        for name, want, value in zip(names, [*want_args.children(), *want_kwargs.children()], values, strict=True):
            have = pytree.tree_structure(value)
            if have != want:
                raise InputError(
                    f"argument '{name}' has another structure than the program was compiled with: "
                    f"{_describe_spec(have)} instead of {_describe_spec(want)}"
                )
        raise InputError("the arguments have another structure than the program was compiled with")

    def dumps(self) -> str:
        """As JSON for the annotations; sets `unsaved` where an output's class has no name to be saved under."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                specs = [pytree.treespec_dumps(spec) for spec in (self.in_spec, self.out_spec)]
                constants = [_constant_to_json(leaf.constant) for leaf in self.leaves]
            except (NotImplementedError, TypeError, ValueError) as error:
                self.unsaved = str(error)
                return json.dumps({"unsaved": self.unsaved})
        return json.dumps(
            {
                "in": specs[0],
                "out": specs[1],
                "parameters": self.parameters,
                "leaves": [
                    {"name": leaf.name, "index": leaf.index, "constant": constant}
                    for leaf, constant in zip(self.leaves, constants, strict=True)
                ],
            }
        )

    @staticmethod
    def loads(text: str) -> Structure:
        """The inverse of dumps(); UnsupportedError if that could not write it, or a class is not known here."""
        content = json.loads(text)
        if content.get("unsaved"):
            raise UnsupportedError(f"the structure of the program's arguments was not saved: {content['unsaved']}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                in_spec, out_spec = (pytree.treespec_loads(content[key]) for key in ("in", "out"))
        except (NotImplementedError, KeyError, ValueError) as error:
            raise UnsupportedError(
                f"the structure of the program's arguments or results is not known here: {error}",
                hint="import the module that registers these classes with torch.utils._pytree, then load again",
            ) from error
        leaves = [
            Leaf(leaf["name"], leaf["index"], _constant_from_json(leaf["constant"])) for leaf in content["leaves"]
        ]
        return Structure(leaves, in_spec, out_spec, content["parameters"])


def flat_structure(input_names: Sequence[str], result: Any) -> Structure:
    """For programs that were not made from a module: positional inputs, and results in the structure of `result`."""
    leaves = [Leaf(name, number) for number, name in enumerate(input_names)]
    in_spec = pytree.tree_structure((tuple(input_names), {}))
    return Structure(leaves, in_spec, pytree.tree_structure(result), list(input_names))


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names under which the first positional parameters may be given; shorter where a *args takes over."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    names = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            break
        names.append(parameter.name)
    return names if len(names) >= count else names[:count]


def _unflattener(spec: Any) -> Callable[[list[Any]], Any]:
    if spec.is_leaf():
        return lambda leaves: leaves[0]
    if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
        return tuple
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def _same_constant(fixed: Any, value: Any) -> bool:
    if isinstance(value, torch.Tensor) or type(fixed) is not type(value):
        return False
    return bool(fixed == value) or (fixed != fixed and value != value)


def _constant_to_json(value: Any) -> Any:
    """[kind, text], so that 1, 1.0, True and the infinities stay what they are."""
    if value is None:
        return None
    if isinstance(value, (bool, int, str)):
        return [type(value).__name__, value]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return [type(value).__name__, str(value)]
    raise TypeError(f"an argument of the type {type(value).__name__} cannot be saved")


def _constant_from_json(value: Any) -> Any:
    if value is None:
        return None
    kind, content = value
    if kind == "float":
        return float.fromhex(content)
    if kind == "device":
        return torch.device(content)
    if kind in ("dtype", "layout", "memory_format"):
        return getattr(torch, content.removeprefix("torch."))
    return content


def _describe_spec(spec: Any) -> str:
    if spec.is_leaf():
        return "a single value"
    children = spec.children()
    if spec.type is dict:
        return f"a dict with the keys {', '.join(map(str, spec.context)) or '(none)'}"
    return f"a {spec.type.__name__} of {len(children)}"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {list(value.shape)}"
    return f"{value!r:.80}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
