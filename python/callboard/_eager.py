"""cluster.op(): one operator as a program of one node."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from callboard import _native
from callboard._arguments import ArgumentProblem, Ref, bind, operator_name
from callboard._checked import shown
from callboard._structure import Structure, flat_structure
from callboard.errors import InputError, UnknownOperator, UnsupportedError


def find_schema(name: str) -> Any:
    """The schema of "namespace::name.overload"; "default" is what has no overload, as torch shows it. UnknownOperator
    gives the overloads or names that there are. Asked before anything is sent.
    """
    if not isinstance(name, str):
        raise InputError(f"the operator is {shown(name)}; allowed: its name and overload, such as \"aten::add.Tensor\"")
    base, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(base) if "::" in base else []
    for schema in schemas:
        if schema.overload_name == ("" if overload == "default" else overload) and _is_dispatched(schema):
            return schema
    known = [schema for schema in schemas if _is_dispatched(schema)]
    if known:
        raise UnknownOperator(
            f"the operator '{base}' has no overload '{overload}'" if overload else f"'{name}' names no overload",
            operator=name,
            hint=f"there are: {', '.join(_names_to_call(known) or sorted(map(operator_name, known)))}",
        )
    if schemas:
        raise UnknownOperator(
            f"'{base}' is TorchScript's own, no device has it", operator=name, hint="compute it in Python"
        )
    near = difflib.get_close_matches(name, torch._C._dispatch_get_all_op_names(), n=3)
    raise UnknownOperator(
        f"there is no operator '{name}'",
        operator=name,
        hint=f"did you mean {', '.join(near)}?" if near else "names look like aten::add.Tensor",
    )


def _is_dispatched(schema: Any) -> bool:
    """Does the dispatcher have it, as devices do? TorchScript has more: aten::mul without an overload takes numbers."""
    return bool(torch._C._dispatch_has_kernel(operator_name(schema)))


def _names_to_call(schemas: Iterable[Any]) -> list[str]:
    return sorted(operator_name(schema) for schema in schemas if not schema.is_mutable)


def _instead_of(schema: Any) -> str:
    """What to do instead of an operator that writes to its arguments."""
    if schema.name == "aten::record_stream":
        return "leave it out: a device orders the reuse of its memory itself"
    base = str(schema.name).removesuffix("_")
    known = [item for item in torch._C._jit_get_schemas_for_operator(base) if _is_dispatched(item)]
    overload = str(schema.overload_name).removesuffix("out").removesuffix("_")
    same = [item for item in known if item.overload_name == overload]
    names = _names_to_call(same) or _names_to_call(known)
    if not names:
        return "cluster.compile() a module that calls it on a tensor of its own and returns that"
    return f"call {' or '.join(names)}, which returns a new tensor"


class EagerCall:
    """One call of an operator, taken apart: what identifies its program, and the tensors that it gets."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.schema = find_schema(name)
        self.name = operator_name(self.schema)
        if self.schema.is_mutable:
            raise UnsupportedError(
                f"{self.name} writes to its arguments, which stay in this process",
                operator=self.name,
                hint=_instead_of(self.schema),
            )
        self._leaves, self._spec = pytree.tree_flatten((args, dict(kwargs)))
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        self._returns_list = any("[]" in str(item.type) or "List" in str(item.type) for item in self.schema.returns)
        self._returns_number = any(str(item.type) == "number" for item in self.schema.returns)

    @property
    def key(self) -> Any:
        """Equal for calls that one program serves. A constant counts with its kind: 1, 1.0 and True differ."""
        return self.name, str(self._spec), tuple(self._leaf_key(leaf) for leaf in self._leaves)

    def _leaf_key(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return type(leaf).__name__, repr(leaf)
        shape = tuple(leaf.shape) if self._returns_list else leaf.dim()
        return "tensor", str(leaf.dtype), shape

    def build(self, builder: _native.FragmentBuilder) -> Structure:
        """The program of one node."""
        inputs = [
            builder.add_input(self._argument_name(number), dtype=str(tensor.dtype).removeprefix("torch."))
            for number, tensor in enumerate(self.tensors)
        ]
        refs = iter(inputs)
        replaced = [Ref(next(refs)) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(replaced, self._spec)
        try:
            positional, named = bind(self.schema, args, kwargs)
        except ArgumentProblem as problem:
            raise InputError(f"{self.name}: {problem}", operator=self.name) from None
        specs = self._output_specs()
        ids = builder.add_node(self.name, positional, named, specs, name=self.schema.name.rpartition(":")[2], cost=1.0)
        flat = [value for value in pytree.tree_leaves(ids) if value is not None]
        for number, value in enumerate(flat):
            builder.add_output(f"output {number}", ("tensor", value))
        names = [self._argument_name(number) for number in range(len(inputs))]
        return flat_structure(names, ids[0] if len(ids) == 1 else tuple(ids))

    def _argument_name(self, number: int) -> str:
        return f"tensor {number}"

    def _output_specs(self) -> list[Any]:
        lists = self._list_lengths() if self._returns_list else {}
        specs: list[Any] = []
        for number, item in enumerate(self.schema.returns):
            name, kind = f"output {number}", str(item.type)
            if number in lists:
                specs.append([("tensor", f"{name}[{index}]", None, None) for index in range(lists[number])])
            elif kind in ("Tensor", "Optional[Tensor]"):
                specs.append(("tensor", name, None, None))
            elif kind in ("int", "float", "bool"):
                specs.append((kind, name))
            elif kind == "number":
                specs.append((self._number_kind(), name))
            else:
                raise UnsupportedError(f"{self.name} returns a {kind}", operator=self.name)
        return specs

    def _number_kind(self) -> str:
        dtype = self.tensors[0].dtype if self.tensors else torch.float32
        if dtype == torch.bool:
            return "bool"
        return "float" if dtype.is_floating_point else "int"

    def _list_lengths(self) -> dict[int, int]:
        """How many tensors come back depends on the sizes: torch's own shape inference counts them."""
        function = _overload(self.schema)
        with warnings.catch_warnings(), FakeTensorMode() as mode:
            warnings.simplefilter("ignore")
            leaves = [mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
            args, kwargs = pytree.tree_unflatten(leaves, self._spec)
            try:
                made = function(*args, **kwargs)
            except Exception as error:
                first = str(error).strip().splitlines() or [type(error).__name__]
                raise InputError(
                    f"{self.name} does not take these arguments: {first[0]}", operator=self.name
                ) from error
        values = [made] if len(self.schema.returns) == 1 else made
        return {number: len(value) for number, value in enumerate(values) if isinstance(value, (list, tuple))}


def _overload(schema: Any) -> Any:
    namespace, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, schema.overload_name or "default")
