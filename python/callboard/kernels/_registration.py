"""`@callboard.kernel`: a Python function becomes an operator, for torch.export and for devices alike.

Two things come of one decoration. Here, the function is an operator of torch.library with its fake implementation:
eager calls work, torch.export keeps a call as one node. In a device's process, the same module is imported, the device
finds the attribute `__callboard_kernel__` (a KernelSpec) and calls the function itself, without torch's dispatcher.

An operator lives as long as its process. Importing the module again (importlib.reload) puts the new function in place
of the old one; another schema needs another process, since graphs may hold the operator.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import torch

from callboard.errors import KernelError, OutputMismatch
from callboard.kernels import _schema
from callboard.kernels._schema import refuse

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class KernelSpec:
    """What a device needs to know of a decorated function, as its attribute `__callboard_kernel__`. Does not change.

    op             "ns::name", as graphs and the cluster file call it
    schema         the whole schema, "ns::name(Tensor x, float eps) -> Tensor", as torch prints it
    mutates        names of the arguments that the function writes, in the schema's order
    deterministic  whether the same arguments give the same bits
    target         "module:function", where another process finds it
    fn             the function without the decorator; takes the schema's arguments, defaults may be left out
    fake           gives results without data, or None for a kernel without results
    warm_up        None, or what a device runs once, after the import and before it is ready, with its torch.device:
                   compilations and first allocations, so that they do not count against a call's time limit
    """

    op: str
    schema: str
    mutates: tuple[str, ...]
    deterministic: bool
    target: str
    fn: Callable[..., Any]
    fake: Callable[..., Any] | None = None
    warm_up: Callable[[torch.device], None] | None = None


class _Operator:
    """An operator of this process, for its whole life; `spec` is replaced when its module is imported again."""

    def __init__(self, spec: KernelSpec, parsed: Any) -> None:
        self.spec = spec
        self.returns = [str(value.type) for value in parsed.returns]
        self.names = [argument.name for argument in parsed.arguments]
        tags = () if spec.deterministic else (torch.Tag.nondeterministic_seeded,)
        schema = str(parsed)[len(spec.op) :]
        # custom_op brings what autograd needs: a call with gradients on works, a backward pass says that there is none.
        self.definition = torch.library.custom_op(
            spec.op, self._run, mutates_args=spec.mutates, schema=schema, tags=tags
        )
        self.definition.register_fake(self._run_fake)
        self.overload = self.definition._opoverload

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        spec = self.spec
        before = self._versions(args)
        result = self._checked(spec.fn(*args, **kwargs), "")
        self._check_sharing(args, result)
        for name, tensor, version in before:
            if tensor._version != version:
                raise KernelError(
                    f"the kernel writes to its argument '{name}' and does not say so",
                    operator=spec.op,
                    hint=f"mutates=('{name}',), or Tensor(a!) {name} in its schema; or write to {name}.clone()",
                )
        return result

    def _run_fake(self, *args: Any, **kwargs: Any) -> Any:
        spec = self.spec
        if spec.fake is None:
            return None
        # The dispatcher leaves out what has its default; a fake need not repeat the kernel's defaults.
        bound = inspect.signature(spec.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return self._checked(spec.fake(*bound.args, **bound.kwargs), "'s fake implementation")

    def _versions(self, args: tuple[Any, ...]) -> list[tuple[str, torch.Tensor, int]]:
        """Of the tensors that must stay as they are. Inference tensors have no version, so of them nothing is known."""
        watched = []
        for name, value in zip(self.names, args, strict=False):
            if name not in self.spec.mutates:
                tensors = value if isinstance(value, (list, tuple)) else (value,)
                watched += [
                    (name, t, t._version) for t in tensors if isinstance(t, torch.Tensor) and not t.is_inference()
                ]
        return watched

    def _check_sharing(self, args: tuple[Any, ...], result: Any) -> None:
        """OutputMismatch for a result that shares memory with an argument or another result: graphs do not know it."""
        owners = {}
        for name, value in zip(self.names, args, strict=False):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                owners[_memory_of(tensor)] = f"the argument '{name}'"
        results = result if isinstance(result, (list, tuple)) else () if result is None else (result,)
        for number, tensor in enumerate(results):
            owner = owners.setdefault(_memory_of(tensor), f"result {number}")
            if owner != f"result {number}":
                raise OutputMismatch(
                    f"result {number} of the kernel shares its memory with {owner}",
                    operator=self.spec.op,
                    hint="return a tensor of its own: y.clone()",
                )

    def _checked(self, result: Any, whose: str) -> Any:
        """The result in the form that the schema has, or OutputMismatch."""
        if self.returns == ["Tensor"]:
            good = isinstance(result, torch.Tensor)
        elif not self.returns:
            good = result is None
        else:
            good = isinstance(result, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in result)
            if self.returns != ["List[Tensor]"]:
                good = good and len(result) == len(self.returns)
                result = tuple(result) if good else result
            elif good:
                result = list(result)
        if not good:
            said = self.spec.schema.rpartition(" -> ")[2]
            raise OutputMismatch(
                f"the kernel{whose} gives {_described(result)}; its schema says {said}",
                operator=self.spec.op,
                hint="return the tensors, in the schema's order, or change the schema",
            )
        return result


_OPERATORS: dict[str, _Operator] = {}
_LOCK = threading.Lock()  # modules may be imported by several threads


def kernel(
    *,
    schema: str | None = None,
    mutates: Sequence[str] | None = None,
    deterministic: bool = True,
    op: str | None = None,
    fake: Callable[..., Any] | None = None,
    warm_up: Callable[[torch.device], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function an operator that devices can run and torch.export keeps as one node.

        @callboard.kernel(fake=lambda x, factor: torch.empty_like(x))
        def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
            return x * factor

    The function stands at the top of a module that devices can import. It gets ordinary tensors, of any strides,
    without gradients, and gives new ones: no result may share memory with an argument or another result. Called
    directly it runs here, checked as on a device; no gradient goes through it.

    schema         "(Tensor x, float factor) -> Tensor", with or without the operator's name before it; None: as the
                   annotations say. Results are Tensor, (Tensor, …) or Tensor[]; none: -> ()
    mutates        the arguments that the function writes to. In a schema they are marked, Tensor(a!) x, and mutates=
                   may be left out; with annotations it is the only way to say it. Nothing else may be written to
    deterministic  whether the same arguments give the same bits
    op             "namespace::name"; None: as in the schema, or the module's first name and the function's
    fake           takes the same arguments, without data, and gives results of the right shape, strides, dtype and
                   device, without data: torch.empty_like(x). Needed unless there is no result
    warm_up        run by a device with its torch.device once, before it is ready

    InputError where a rule is broken or another function has the operator's name.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        target = _target(fn)
        name = _schema.operator_of(op, schema, target)
        parsed = _schema.schema_of(fn, name, schema, mutates)
        _schema.check_fake(name, parsed, fake)
        written = _schema.mutated_arguments(parsed)
        spec = KernelSpec(name, str(parsed), written, deterministic, target, fn, fake, warm_up)
        with _LOCK:
            overload = _register(spec, parsed).overload

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return cast(R, overload(*args, **kwargs))

        call.__callboard_kernel__ = spec  # type: ignore[attr-defined]
        return call

    return decorate


def _register(spec: KernelSpec, parsed: Any) -> _Operator:
    known = _OPERATORS.get(spec.op)
    if known is None:
        if torch._C._jit_get_schemas_for_operator(spec.op):
            raise refuse(spec.op, "has the name of an operator that is there already", "choose another name: op=")
        known = _OPERATORS[spec.op] = _Operator(spec, parsed)
        return known
    if known.spec.target != spec.target:
        raise refuse(
            spec.op,
            f"is {known.spec.target} already, so it cannot be {spec.target}",
            "choose another name, op=; a function that is imported by two names is two functions",
        )
    if (known.spec.schema, known.spec.deterministic) != (spec.schema, spec.deterministic):
        raise refuse(
            spec.op,
            "is known by another schema in this process",
            "start the process anew: graphs may hold the operator as it was",
            f"was: {known.spec.schema}\nis:  {spec.schema}",
        )
    known.spec = spec
    return known


def _target(fn: Callable[..., Any]) -> str:
    """Where another process finds the function, "module:function"; InputError if it could not."""
    if not inspect.isfunction(fn):
        raise refuse(
            getattr(fn, "__qualname__", type(fn).__name__),
            "is no function",
            "decorate a function made by def, last of all",
        )
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise refuse(
            fn.__qualname__, "is a coroutine or a generator", "a kernel is a function that returns its results"
        )
    if not fn.__qualname__.isidentifier():
        raise refuse(
            f"{fn.__module__}.{fn.__qualname__}",
            "cannot be found by its name",
            "define it by def, at the top of a module",
        )
    module = fn.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise refuse(
                fn.__qualname__,
                "is defined in the script that runs, which devices cannot import",
                "move it into a module of its own and import that",
            )
        module = str(spec.name)
    return f"{module}:{fn.__qualname__}"


def _memory_of(value: Any) -> int:
    """What tells one tensor's memory from another's; one of its own for what has none (None, a sparse tensor)."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return int(value.untyped_storage()._cdata)
    return id(value)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "one tensor"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(_described(item) for item in value[:4]) or 'nothing'}" + (
            ", …" if len(value) > 4 else ""
        )
    return "None" if value is None else f"a {type(value).__name__}"
