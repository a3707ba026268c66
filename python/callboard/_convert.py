"""The walk over an exported graph that fills a program builder. See export.py for what is kept and what is left out."""

from __future__ import annotations

import contextlib
import json
import operator
import platform
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)

from callboard import _structure
from callboard._arguments import Argument, ArgumentProblem, Ref, Sym, bind, dtype_name, operator_name
from callboard._constants import ConstantTable, UnsupportedTensorError
from callboard._cost import node_cost
from callboard._functionalized import add_written, is_functionalized
from callboard._inferred import Inferred
from callboard._names import dimension_names, input_names
from callboard._origin import module_path, source_line
from callboard._structure import Leaf, Structure
from callboard._symbols import Expr, InexpressibleError, bounds, free_symbols, to_expr
from callboard.errors import ExportError, UnsupportedError

if TYPE_CHECKING:
    from callboard.export import Builder

_SIZE_OPERATORS = frozenset(("aten::sym_size", "aten::sym_numel", "aten::sym_stride", "aten::sym_storage_offset"))
_RANGE_OPERATORS = frozenset(("aten::sym_constrain_range", "aten::sym_constrain_range_for_size"))
_SYMBOL_TYPES = (torch.SymInt, torch.SymBool, torch.SymFloat)


# Python's operators, math's and torch.sym_*, by their names → primitives of ours.
_PRIMITIVES = {
    **{name: name for name in "add sub mul floordiv truediv mod pow min max eq ne lt le gt ge neg abs".split()},
    **{name: name for name in "floor ceil trunc round sqrt int float ite and or not".split()},
    "and_": "and",
    "or_": "or",
    "not_": "not",
    "fmod": "mod",
}


class _Problem(Exception):
    """Something of one graph node that no program can say; collected, so that all are reported together."""


class Converter:
    """One conversion; used once, by one thread."""

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        builder: Builder,
        forward: Callable[..., Any] | None,
        dynamic_shapes: Any,
    ) -> None:
        self._exported = exported
        self._builder = builder
        self._forward = forward
        self._dynamic_shapes = dynamic_shapes
        self._values: dict[torch.fx.Node, Any] = {}  # Ref, Sym, number, None, or lists of them
        self._symbols: dict[Any, Expr] = {}  # sympy symbol → expression
        self._needed: set[Any] = set()  # symbols that some argument or output is made of
        self._specs = {
            spec.arg.name: spec for spec in exported.graph_signature.input_specs if hasattr(spec.arg, "name")
        }
        self._constants = ConstantTable(exported, builder)
        self._problems: list[UnsupportedError] = []
        self._taken_names: set[str] = set()
        self._input_names = input_names(exported, forward)  # placeholder's name → for people

    def convert(self) -> Structure:
        graph = self._exported.graph_module.graph
        self._needed = _needed_symbols(self._exported.graph_module)
        self._inferred = Inferred()
        self._declare_symbols()
        leaves = self._declare_inputs(graph)
        for node in graph.nodes:
            if node.op == "call_function":
                self._guarded(node, self._call, node)
        structure = self._structure(leaves)
        self._declare_outputs(graph)
        self._builder.set_annotation(_structure.ANNOTATION, structure.dumps())
        self._builder.set_annotation(
            "callboard.exporter", json.dumps({"torch": torch.__version__, "python": platform.python_version()})
        )
        if self._problems:
            raise self._summary()
        return structure

    # -- failures -----------------------------------------------------------------------------------------------------

    def _guarded(self, node: torch.fx.Node, step: Callable[..., None], *args: Any) -> None:
        try:
            step(*args)
        except (_Problem, ArgumentProblem, InexpressibleError, UnsupportedTensorError) as problem:
            self._report(node, str(problem))
        except KeyError as missing:
            if not isinstance(missing.args[0], torch.fx.Node):
                raise
            # Reads what a node gives that was reported itself: one finding is enough.

    def _report(self, node: torch.fx.Node, text: str) -> None:
        where = module_path(node)
        source = source_line(node)
        self._problems.append(
            UnsupportedError(
                f"{node.name}{f' in {where}' if where else ''}: {text}", operator=_target_name(node), detail=source
            )
        )

    def _summary(self) -> ExportError:
        count = len(self._problems)
        return ExportError(
            f"the module uses {count} thing{'s' if count > 1 else ''} that a program cannot express",
            hint="each finding names the operator and the line; change the module there, or run that part outside",
            causes=self._problems,
        )

    # -- inputs and symbols -------------------------------------------------------------------------------------------

    def _declare_symbols(self) -> None:
        """A symbol for each free dimension of the inputs, named as in dynamic_shapes where that is simple to tell."""
        found: dict[Any, None] = {}
        user_inputs = set(self._exported.graph_signature.user_inputs)
        for node in self._exported.graph_module.graph.nodes:
            if node.op == "placeholder" and node.name in user_inputs and isinstance(node.meta.get("val"), torch.Tensor):
                for size in node.meta["val"].shape:
                    found.update(dict.fromkeys(sorted(free_symbols(size), key=str)))
        names = dimension_names(self._exported, self._dynamic_shapes, self._input_names)
        for number, symbol in enumerate(found):
            low, high = bounds(self._exported.range_constraints[symbol]) if self._is_ranged(symbol) else (0, None)
            name = self._fresh(names.get(symbol, f"s{number}"))
            self._symbols[symbol] = ("sym", self._builder.add_symbol(name, low, high))

    def _is_ranged(self, symbol: Any) -> bool:
        return symbol in self._exported.range_constraints

    def _fresh(self, name: str) -> str:
        unique, number = name, 2
        while unique in self._taken_names:
            unique, number = f"{name}_{number}", number + 1
        self._taken_names.add(unique)
        return unique

    def _declare_inputs(self, graph: torch.fx.Graph) -> list[Leaf]:
        leaves = []
        count = 0
        for node in graph.nodes:
            if node.op != "placeholder":
                continue
            spec = self._specs[node.name]
            if spec.kind != InputKind.USER_INPUT:
                self._values[node] = None
                if node.users:
                    self._guarded(node, self._constant_input, node, spec)
            elif isinstance(spec.arg, ConstantArgument):
                self._values[node] = spec.arg.value
                leaves.append(Leaf(self._input_names[node.name], constant=spec.arg.value))
            else:
                self._guarded(node, self._tensor_input, node, spec)
                leaves.append(Leaf(self._input_names[node.name], index=count))
                count += 1
        return leaves

    def _constant_input(self, node: torch.fx.Node, spec: Any) -> None:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise _Problem(f"a {spec.kind.name.lower().replace('_', ' ')} ({spec.target}) cannot go to another process")
        self._values[node] = Ref(self._constants.add(spec.target))

    def _tensor_input(self, node: torch.fx.Node, spec: Any) -> None:
        value, name = node.meta["val"], self._input_names[node.name]
        if isinstance(spec.arg, SymIntArgument):
            self._values[node] = Ref(self._builder.add_input(name, kind="int"))
            self._bind_number(value, self._values[node].id)
        elif isinstance(value, torch.Tensor):
            sizes = [to_expr(size, self._symbols) for size in value.shape]
            self._values[node] = Ref(self._builder.add_input(name, dtype_name(value.dtype), sizes))
        else:
            raise _Problem(f"an argument of the type {type(value).__name__} is not supported")

    def _bind_number(self, value: Any, value_id: int) -> None:
        symbol = getattr(getattr(value, "node", None), "expr", None)
        if symbol is not None and symbol.is_Symbol:
            self._symbols[symbol] = ("value", value_id)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            sequence, index = node.args
            self._values[node] = self._resolve(sequence)[index]
        elif isinstance(target, torch._ops.HigherOrderOperator):
            self._higher_order(node)
        elif not isinstance(target, torch._ops.OpOverload):
            self._values[node] = self._arithmetic(node)
        elif target._schema.name in _SIZE_OPERATORS:
            self._values[node] = self._number(node.meta.get("val"))
        elif target._schema.name == "aten::_assert_tensor_metadata":
            self._values[node] = None
        elif target._schema.name == "aten::_assert_scalar":
            self._assertion(node, node.args[0], str(node.args[1]))
        elif target._schema.name in _RANGE_OPERATORS:
            self._range_assertion(node)
        else:
            self._operator(node)

    def _resolve(self, argument: Any) -> Any:
        """The argument with graph nodes replaced by what they stand for."""
        if isinstance(argument, torch.fx.Node):
            return self._values[argument]
        if isinstance(argument, (list, tuple)):
            return [self._resolve(item) for item in argument]
        if isinstance(argument, _SYMBOL_TYPES):
            return self._number(argument)
        return argument

    def _number(self, value: Any) -> Any:
        """A size: a plain number, or an expression that is evaluated where it is used."""
        if not isinstance(value, _SYMBOL_TYPES):
            return value
        expr = to_expr(value, self._symbols)
        return expr if isinstance(expr, int) else Sym(expr)

    def _arithmetic(self, node: torch.fx.Node) -> Any:
        """Python's operators on sizes. Integers are expressions; what is none (floats above all) becomes a node."""
        value = node.meta.get("val")
        if isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            with contextlib.suppress(InexpressibleError):
                return self._number(value)
        primitive = _PRIMITIVES.get(_target_name(node).removeprefix("_").removeprefix("sym_"))
        if primitive is None or not isinstance(value, _SYMBOL_TYPES):
            raise _Problem(f"{_target_name(node)} is no operator that devices have")
        args = [_number_argument(self._resolve(argument)) for argument in node.args]
        return self._primitive(node, primitive, args, _kind(value))

    def _primitive(self, node: torch.fx.Node, name: str, args: list[Argument], kind: str) -> Ref:
        return Ref(self._add_node(node, f"callboard_sym::{name}", args, outputs=[(kind, node.name)])[0])

    def _operator(self, node: torch.fx.Node) -> None:
        schema = node.target._schema  # type: ignore[union-attr]
        args, kwargs = bind(
            schema,
            [self._resolve(value) for value in node.args],
            {name: self._resolve(value) for name, value in node.kwargs.items()},
        )
        value = node.meta.get("val")
        values = _as_outputs(schema, value)
        wanted = _wanted_outputs(node, schema) | self._outputs_with_sizes(node, schema)
        specs = [
            self._output_spec(f"{node.name}" if len(values) == 1 else f"{node.name}.{number}", item, number, wanted)
            for number, item in enumerate(values)
        ]
        name = operator_name(schema)
        inputs = [item.meta.get("val") for item in node.all_input_nodes]
        specs = self._inferred.believable(node, schema.name, specs)
        ids = self._add_node(node, name, args, kwargs, specs, node_cost(name, inputs, _flat(values)))
        made = [_refs(item, spec) for item, spec in zip(ids, specs, strict=True)]
        self._values[node] = None if not made else made[0] if len(schema.returns) == 1 else made
        self._bind_results(node)

    def _add_node(
        self,
        node: torch.fx.Node,
        op: str,
        args: list[Argument],
        kwargs: dict[str, Argument] | None = None,
        outputs: Iterable[Any] = (),
        cost: float = 1.0,
    ) -> list[Any]:
        return self._builder.add_node(
            op,
            args,
            kwargs or {},
            list(outputs),
            name=node.name,
            module_path=module_path(node),
            source=source_line(node),
            cost=cost,
        )

    def _output_spec(self, name: str, value: Any, number: int, wanted: set[tuple[int, ...]]) -> Any:
        if isinstance(value, (list, tuple)):
            return [
                self._single_spec(f"{name}[{index}]", item) if _is_wanted((number, index), wanted) else None
                for index, item in enumerate(value)
            ]
        return self._single_spec(name, value) if _is_wanted((number,), wanted) else None

    def _single_spec(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                raise _Problem(f"it makes a tensor of the layout {value.layout}; only strided ones are supported")
            return ("tensor", name, dtype_name(value.dtype), self._declared_sizes(value))
        return (_kind(value), name)

    def _declared_sizes(self, value: torch.Tensor) -> list[Expr] | None:
        """None where a size is only known once the operator ran: there is nothing to check it against."""
        try:
            sizes = [to_expr(size, self._symbols) for size in value.shape]
        except InexpressibleError:
            return None
        return None if any(_mentions_value(size) for size in sizes) else sizes

    # -- numbers that depend on data ----------------------------------------------------------------------------------

    def _outputs_with_sizes(self, node: torch.fx.Node, schema: Any) -> set[tuple[int, ...]]:
        """Outputs whose size or value something needs, though the tensor itself may have no reader."""
        paths = set()
        for symbol, keypath in (node.meta.get("unbacked_bindings") or {}).items():
            if symbol in self._needed:
                paths.add(_leading_indices(keypath, len(schema.returns) == 1))
        return paths

    def _bind_results(self, node: torch.fx.Node) -> None:
        """Makes each data-dependent symbol that this node defines an expression over a program value."""
        for symbol, keypath in (node.meta.get("unbacked_bindings") or {}).items():
            if symbol in self._needed and symbol not in self._symbols:
                self._symbols[symbol] = self._follow(node, keypath)

    def _follow(self, node: torch.fx.Node, keypath: tuple[Any, ...]) -> Expr:
        current = self._values[node]
        keys = list(keypath)
        while keys and type(keys[0]).__name__ == "SequenceKey":
            current = current[keys.pop(0).idx]
        if not isinstance(current, Ref):
            raise _Problem("a size that depends on data cannot be read from its result")
        expr: Expr = ("value", current.id)
        if keys and type(keys[0]).__name__ == "CallMethodKey":
            method = keys.pop(0).name
            if method != "size" or not keys:
                raise _Problem(f"a {method} that depends on data is not supported")
            ids = self._add_node(
                node,
                "callboard_sym::size",
                [("tensor", current.id), ("int", keys.pop(0).idx)],
                outputs=[("int", f"{node.name}.size")],
            )
            expr = ("value", ids[0])
        for key in keys:
            if type(key).__name__ == "DivideByKey":
                expr = ("//", expr, to_expr(key.divisor, self._symbols))
            elif type(key).__name__ != "ConvertIntKey":
                raise _Problem(f"a size that depends on data by {type(key).__name__} is not supported")
        return expr

    def _assertion(self, node: torch.fx.Node, condition: Any, message: str) -> None:
        self._values[node] = None
        if isinstance(condition, torch.fx.Node) and _always_true(condition.meta.get("val"), self._exported):
            return
        resolved = self._resolve(condition)
        if isinstance(resolved, Sym):
            checked: Argument = ("expr", resolved.expr)
        elif isinstance(resolved, Ref):
            checked = ("tensor", resolved.id)
        elif resolved:
            return
        else:
            raise _Problem(f"this assertion never holds: {message}")
        self._add_node(node, "callboard_sym::assert", [checked, ("str", message)])

    def _range_assertion(self, node: torch.fx.Node) -> None:
        self._values[node] = None
        subject = self._resolve(node.args[0])
        limits = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
        expr = (
            subject.expr if isinstance(subject, Sym) else ("value", subject.id) if isinstance(subject, Ref) else subject
        )
        for name, comparison in (("min", ">="), ("max", "<=")):
            limit = limits.get(name)
            if isinstance(limit, int) and not isinstance(expr, int):
                text = f"{node.args[0]} must be {comparison} {limit}"
                self._add_node(node, "callboard_sym::assert", [("expr", (comparison, expr, limit)), ("str", text)])

    # -- operators that hold graphs -----------------------------------------------------------------------------------

    def _higher_order(self, node: torch.fx.Node) -> None:
        """Devices run without gradients anyway, so the body of a no_grad region is run as it stands."""
        name = getattr(node.target, "__name__", str(node.target))
        if name == "wrap_with_set_grad_enabled":
            self._values[node] = self._inline(node, node.args[1], node.args[2:])
        elif is_functionalized(node):
            self._values[node] = add_written(node, self._resolve, partial(self._add_node, node), self._single_spec)
            self._bind_results(node)
        elif name == "wrap_with_autocast" and node.args[2] is False:
            self._values[node] = self._inline(node, node.args[4], node.args[5:])
        else:
            hint = "export the branches as programs of their own, or use torch.where"
            raise _Problem(f"the control operator {name} is not supported: {hint}")

    def _inline(self, node: torch.fx.Node, body: Any, args: Iterable[Any]) -> Any:
        graph_module = self._graph_module(body)
        placeholders = [item for item in graph_module.graph.nodes if item.op == "placeholder"]
        for placeholder, argument in zip(placeholders, args, strict=True):
            self._values[placeholder] = self._resolve(argument)
        for item in graph_module.graph.nodes:
            if item.op == "call_function":
                self._guarded(item, self._call, item)
            elif item.op == "output":
                return self._resolve(item.args[0])
        return None

    def _graph_module(self, attribute: Any) -> torch.fx.GraphModule:
        owner = attribute.graph.owning_module or self._exported.graph_module
        body = operator.attrgetter(str(attribute.target))(owner)
        if not isinstance(body, torch.fx.GraphModule):
            raise _Problem(f"{attribute.target} is no graph")
        return body

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _declare_outputs(self, graph: torch.fx.Graph) -> None:
        output = next(node for node in graph.nodes if node.op == "output")
        specs = self._exported.graph_signature.output_specs
        for number, (spec, value) in enumerate(zip(specs, output.args[0], strict=True)):
            step = self._user_output if spec.kind == OutputKind.USER_OUTPUT else self._written
            origin = value if isinstance(value, torch.fx.Node) else output
            self._guarded(origin, step, spec, value, f"output {number}", origin)

    def _user_output(self, spec: Any, value: Any, name: str, origin: torch.fx.Node) -> None:
        resolved = self._resolve(value)
        if isinstance(spec.arg, ConstantArgument):
            resolved = spec.arg.value
        elif not isinstance(spec.arg, (TensorArgument, SymIntArgument, SymFloatArgument, SymBoolArgument)):
            raise _Problem(f"an output of the kind {type(spec.arg).__name__} is not supported")
        if isinstance(resolved, Sym):
            # Only a device knows what depends on data, and an expression alone does not say that it is a bool.
            if isinstance(spec.arg, SymBoolArgument):
                resolved = self._primitive(origin, "ne", [("expr", resolved.expr), ("int", 0)], "bool")
            elif _mentions_value(resolved.expr):
                resolved = self._primitive(origin, "add", [("expr", resolved.expr), ("int", 0)], "int")
        self._builder.add_output(name, _output_source(resolved))

    def _written(self, spec: Any, value: torch.fx.Node, _name: str, origin: torch.fx.Node) -> None:
        """A buffer that the program writes becomes a state: the next run reads what this one leaves."""
        if spec.kind not in (OutputKind.BUFFER_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                raise _Problem(
                    f"the module writes to its argument '{spec.target}', which stays in the caller's process: clone it "
                    "first in forward (x = x.clone()) and return the new tensor"
                )
            raise _Problem(f"an output of the kind {spec.kind.name} is not supported")
        after = self._resolve(value)
        before = self._constants.add(spec.target)
        if value.op == "placeholder":
            # A state needs a value of its own: an input or a constant is not the program's to keep.
            fake = value.meta["val"]
            spec_out = ("tensor", f"{spec.target}.new", dtype_name(fake.dtype), self._declared_sizes(fake))
            after = Ref(self._add_node(origin, "aten::clone", [("tensor", after.id)], outputs=[spec_out])[0])
        self._builder.add_state(spec.target, before, after.id)

    def _structure(self, leaves: list[Leaf]) -> Structure:
        in_spec, out_spec = self._exported.call_spec.in_spec, self._exported.call_spec.out_spec
        positional = in_spec.children()[0].num_children
        names = _structure.parameter_names(self._forward, positional) if self._forward is not None else []
        return Structure(leaves, in_spec, out_spec, names)


# -- helpers without state --------------------------------------------------------------------------------------------


def _target_name(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return operator_name(target._schema)
    return str(getattr(target, "__name__", target))


def _needed_symbols(graph_module: torch.fx.GraphModule) -> set[Any]:
    """Symbols of every size that an operator or an output takes. Sizes of tensors do not count: nobody computes with
    them.
    """
    needed: set[Any] = set()
    for child in graph_module.children():
        if isinstance(child, torch.fx.GraphModule):
            needed |= _needed_symbols(child)
    for node in graph_module.graph.nodes:
        if node.op in ("call_function", "output"):
            for argument in node.all_input_nodes:
                value = argument.meta.get("val")
                if isinstance(value, _SYMBOL_TYPES):
                    needed |= free_symbols(value)
    return needed


def _as_outputs(schema: Any, value: Any) -> list[Any]:
    if not schema.returns:
        return []
    return [value] if len(schema.returns) == 1 else list(value)


def _wanted_outputs(node: torch.fx.Node, schema: Any) -> set[tuple[int, ...]]:
    """Paths of the results that someone reads; (2,) includes (2, 0). The empty path is everything."""
    single = len(schema.returns) == 1
    is_list = single and isinstance(node.meta.get("val"), (list, tuple))
    if single and not is_list:
        return {()} if node.users else set()
    wanted: set[tuple[int, ...]] = set()
    for user in node.users:
        if user.target is not operator.getitem:
            return {()}
        index = int(user.args[1])  # type: ignore[arg-type]
        wanted.add((0, index) if single else (index,))
        if not single and isinstance(user.meta.get("val"), (list, tuple)):
            wanted.discard((index,))
            inner = [other for other in user.users if other.target is operator.getitem]
            whole = len(inner) != len(user.users)
            wanted |= {(index,)} if whole else {(index, other.args[1]) for other in inner}  # type: ignore[misc]
    return wanted


def _is_wanted(path: tuple[int, ...], wanted: set[tuple[int, ...]]) -> bool:
    return any(path[: len(prefix)] == prefix for prefix in wanted)


def _leading_indices(keypath: tuple[Any, ...], single: bool) -> tuple[int, ...]:
    indices = []
    for key in keypath:
        if type(key).__name__ != "SequenceKey":
            break
        indices.append(int(key.idx))
    return (0, *indices) if single else tuple(indices)


def _refs(made: Any, spec: Any) -> Any:
    if isinstance(spec, list):
        return [None if item is None else Ref(item) for item in made]
    return None if made is None else Ref(made)


def _flat(values: Iterable[Any]) -> list[Any]:
    result: list[Any] = []
    for value in values:
        result.extend(_flat(value) if isinstance(value, (list, tuple)) else [value])
    return result


def _mentions_value(expr: Expr) -> bool:
    if not isinstance(expr, tuple):
        return False
    return expr[0] == "value" or any(_mentions_value(operand) for operand in expr[1:])


def _kind(value: Any) -> str:
    for kinds, name in (
        ((bool, torch.SymBool), "bool"),
        ((int, torch.SymInt), "int"),
        ((float, torch.SymFloat), "float"),
    ):
        if isinstance(value, kinds):
            return name
    raise _Problem(f"it makes a {type(value).__name__}")


def _number_argument(value: Any) -> Argument:
    return _output_source(value)


def _output_source(value: Any) -> Argument:
    if isinstance(value, Ref):
        return ("tensor", value.id)
    if isinstance(value, Sym):
        return ("expr", value.expr)
    if value is None:
        return ("none",)
    for kind, tag in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(value, kind):
            return (tag, value)
    raise _Problem(f"an output of the type {type(value).__name__} is not supported")


def _always_true(value: Any, exported: torch.export.ExportedProgram) -> bool:
    """Is `size >= 0` (or another bound) true for every value in the symbol's range? Then no run can fail it. Ranges of
    data-dependent numbers that are no sizes are themselves claims of the module, so only sizes count."""
    if not isinstance(value, torch.SymBool):
        return value is True
    expr = value.node.expr
    symbols = list(expr.free_symbols)
    if len(symbols) != 1 or type(expr).__name__ != "GreaterThan" or expr.args[1] != 0:
        return False
    shape_env = getattr(value.node, "shape_env", None)
    return expr.args[0] == symbols[0] and symbols[0] in getattr(shape_env, "size_like", ())
