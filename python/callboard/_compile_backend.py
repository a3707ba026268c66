"""torch.compile(model, backend="callboard"): each graph that Dynamo captures becomes a program on a cluster.

    model = torch.compile(model, backend="callboard", options={"placement": "cpu0"})
    with torch.no_grad():
        y = model(x)

Options: cluster (by default the only one that this process is connected to), placement (as Cluster.compile() takes it,
by default "auto"), random ("client" or "device") and timeout (seconds for loading a program).

What a call gives is what eager gives, bit for bit, and it does to its arguments and to the model's buffers what eager
does: a graph break ends one program and begins another, sizes that Dynamo made dynamic are symbols of the program, what
the model writes to is copied back, and results that are views of an argument or of one another are so here.

Where the parts run. A graph is loaded when it is first called. Parameters and buffers that it only reads are constants
of the program: each call compares their addresses and version counters with those that were loaded and loads them anew
after a change (an optimizer's step, load_state_dict, p.data = …). A write through p.data (p.data.add_(1)) leaves no
trace and is not noticed; write under torch.no_grad() instead.

What stays in this process, with one ClientFallbackWarning for each graph that names its operators and the reason:
graphs whose results need gradients (a cluster computes none); operators that torch.export cannot capture or that a
device does not have; random numbers, which come from this process's generator, unless random="device" lets devices
draw their own. Such a graph stays here as a whole. Every other failure is raised as it is by a call of a program.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_leaves

from callboard import _checked
from callboard._graph_inputs import (
    Alias,
    GraphInput,
    GraphOutput,
    InexpressibleAliasError,
    inputs_of,
    outputs_of,
    symbols_of,
)
from callboard.cluster import Cluster, only_cluster
from callboard.errors import ClientFallbackWarning, ExportError, InputError, UnknownOperator, UnsupportedError
from callboard.export import export
from callboard.program import Program

__all__ = ["compile_backend"]

# Programs of one graph that stay loaded: for models that share their code, and for sizes that one program cannot take.
_PROGRAMS_MAX = 8
_NAMED_MAX = 6
_OPTIONS = ("cluster", "placement", "random", "timeout")


def compile_backend(
    graph_module: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What torch.compile calls for each graph. InputError for an option that is none."""
    if mode not in (None, "default"):
        raise InputError(f"'mode' is {_checked.shown(mode)}; the callboard backend has no modes", hint="leave it out")
    graph = CompiledGraph(graph_module, Settings(options or {}))
    compiled: Callable[..., Any] = torch._dynamo.disable(graph, reason="on a cluster")  # type: ignore[no-untyped-call]
    return compiled


class Settings:
    """torch.compile's `options`, checked."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise InputError(
                f"'options' has {_checked.shown(unknown[0])} in it; allowed: {', '.join(_OPTIONS)}",
            )
        cluster = options.get("cluster")
        if cluster is not None and not isinstance(cluster, Cluster):
            raise InputError(f"options['cluster'] is {_checked.shown(cluster)}; allowed: a callboard.Cluster")
        self._cluster: Cluster | None = cluster
        self.placement = _checked.placement_dict(options.get("placement", "auto"))
        self.timeout = _checked.optional_duration(options.get("timeout"), "options['timeout']")
        random = options.get("random", "client")
        if random not in ("client", "device"):
            raise InputError(f"options['random'] is {_checked.shown(random)}; allowed: 'client' or 'device'")
        self.device_draws = random == "device"

    def cluster(self) -> Cluster:
        """InputError where none was named and this process is not connected to exactly one."""
        if self._cluster is not None:
            return self._cluster
        return only_cluster("torch.compile(…, backend=\"callboard\")", "options={\"cluster\": …}")


class StaysHereError(Exception):
    """Why a graph runs in this process."""


class Region(torch.nn.Module):
    """The graph as a module that torch.export takes: the model's tensors are its own, sizes are read from the tensors
    that have them, and what the graph writes to is copied first and returned behind the results.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        inputs: list[GraphInput],
        own: Mapping[int, torch.Tensor],
        written: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.graph = graph_module
        self._inputs = inputs
        self._written = written
        self._names = {position: f"own_{inputs[position].name}" for position in own}
        for position, tensor in own.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(self._names[position], tensor)
            else:
                self.register_buffer(self._names[position], tensor)
        self._autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def positions(self) -> list[int]:
        """Of the graph's inputs that the region takes."""
        return [n for n, item in enumerate(self._inputs) if n not in self._names and item.derived is None]

    def position_of(self, name: str) -> int:
        """Of the model's tensor with this name in the region."""
        return next(position for position, own in self._names.items() if own == name)

    def forward(self, *given: Any) -> Any:
        values: dict[int, Any] = dict(zip(self.positions(), given, strict=True))
        values.update((position, getattr(self, name)) for position, name in self._names.items())
        for position in self._written:
            values[position] = values[position].clone()
        for position, item in enumerate(self._inputs):
            if item.derived is not None:
                source, dim = item.derived
                values[position] = values[source].shape[dim]
        args = [values[position] for position in range(len(self._inputs))]
        if self._autocast is None:
            results = self.graph(*args)
        else:
            with torch.autocast("cpu", dtype=self._autocast):
                results = self.graph(*args)
        return (*tree_leaves(results), *(values[position] for position in self._written))


class Loaded:
    """A program with what it was made for. `own` are the model's tensors in it, `marks` what they were like then."""

    def __init__(self, program: Program, region: Region, own: Mapping[int, torch.Tensor], written: tuple[int, ...],
                 cluster: Cluster) -> None:
        self.program = program
        self.positions = region.positions()
        self.own = dict(own)
        self.marks = _marks(self.own)
        self.written = written
        self.cluster = cluster

    def is_current(self, args: tuple[Any, ...]) -> bool:
        """Is it made of the tensors that this call brings, as they are now?"""
        if self.cluster.closed or any(args[position] is not tensor for position, tensor in self.own.items()):
            return False
        return _marks(self.own) == self.marks


def _marks(own: Mapping[int, torch.Tensor]) -> list[tuple[int, int]]:
    return [(tensor.data_ptr(), tensor._version) for tensor in own.values()]


class CompiledGraph:
    """One graph of Dynamo's: an ordinary function of its flat inputs. Any thread may call it."""

    def __init__(self, graph_module: torch.fx.GraphModule, settings: Settings) -> None:
        self._graph_module = graph_module
        self._settings = settings
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Any, Loaded] = OrderedDict()
        self._here = ""  # why it runs in this process; empty while it does not
        self._inputs: list[GraphInput] = inputs_of(graph_module.graph)
        self._outputs: list[GraphOutput] = []
        self._operators = _operators(graph_module)
        try:
            self._outputs = outputs_of(graph_module.graph)
            if any(output.requires_grad for output in self._outputs):
                raise StaysHereError("its results need gradients, which a cluster does not compute (torch.no_grad())")
        except (InexpressibleAliasError, StaysHereError) as reason:
            self._stay(str(reason))

    def __call__(self, *args: Any) -> Any:
        if not self._here:
            try:
                return self._on_cluster(args)
            except StaysHereError as reason:
                self._stay(str(reason))
        return self._graph_module(*args)

    def _stay(self, reason: str) -> None:
        with self._lock:
            if self._here:
                return
            self._here = reason
        warnings.warn(
            f"torch.compile(backend=\"callboard\"): {self._operators} ran in this process: {reason}",
            ClientFallbackWarning,
            stacklevel=2,
        )

    def _on_cluster(self, args: tuple[Any, ...]) -> list[Any]:
        with torch.no_grad():  # none of the results needs gradients, though an argument may
            loaded = self._program(args, None)
            self._refuse_shared(args, loaded.written)
            try:
                results = loaded.program(*[args[position] for position in loaded.positions])
            except InputError:
                # Sizes that Dynamo takes and the program does not: it was exported with others and fixed some.
                sizes = tuple(tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg for arg in self._given(args))
                loaded = self._program(args, sizes)
                results = loaded.program(*[args[position] for position in loaded.positions])
            count = len(self._outputs)
            for position, value in zip(loaded.written, results[count:], strict=True):
                args[position].copy_(value)
            return self._placed(args, list(results[:count]))

    def _given(self, args: tuple[Any, ...]) -> list[Any]:
        return [arg for arg, item in zip(args, self._inputs, strict=True) if not item.owned]

    # -- programs -----------------------------------------------------------------------------------------------------

    def _program(self, args: tuple[Any, ...], sizes: Any) -> Loaded:
        """For these tensors of the model; with `sizes`, for these alone."""
        owned = tuple(id(arg) for arg, item in zip(args, self._inputs, strict=True) if item.owned)
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        key = (owned, autocast, sizes)
        with self._lock:
            loaded = self._loaded.get(key)
            if loaded is not None and loaded.is_current(args):
                self._loaded.move_to_end(key)
                return loaded
            self._loaded.pop(key, None)
            loaded = self._load(args, free=sizes is None)
            self._loaded[key] = loaded
            if len(self._loaded) > _PROGRAMS_MAX:
                self._loaded.popitem(last=False)
            return loaded

    def _load(self, args: tuple[Any, ...], free: bool) -> Loaded:
        cluster = self._settings.cluster()
        own = {
            position: args[position]
            for position, item in enumerate(self._inputs)
            if item.owned and not args[position].is_inference()  # whose changes leave no trace
        }
        written: tuple[int, ...] = ()
        try:
            region, exported = self._capture(args, own, written, free)
            written = _written(exported, region)
            if written:
                own = {position: tensor for position, tensor in own.items() if position not in written}
                region, exported = self._capture(args, own, written, free)
            program = cluster.load_exported(
                exported,
                placement=self._settings.placement,
                name=f"graph of {len(self._graph_module.graph.nodes)} nodes",
                timeout=self._settings.timeout,
                forward=region.forward,
                dynamic_shapes=None,  # which gives symbols their names; Dynamo's have none for people
            )
        except (ExportError, UnknownOperator, UnsupportedError) as error:
            raise StaysHereError(_reason(error)) from error
        if program.draws_random and not self._settings.device_draws:
            raise StaysHereError("it draws random numbers, which torch.manual_seed() of this process decides "
                                 "(options={\"random\": \"device\"} lets devices draw their own)")
        return Loaded(program, region, own, written, cluster)

    def _capture(
        self, args: tuple[Any, ...], own: Mapping[int, torch.Tensor], written: tuple[int, ...], free: bool
    ) -> tuple[Region, torch.export.ExportedProgram]:
        region = Region(self._graph_module, self._inputs, own, written)
        examples = tuple(args[position] for position in region.positions())
        if len(set(_memories(examples))) < len(_memories(examples)):
            # torch.export does not take arguments that share memory, should the graph write to one of them.
            examples = tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in examples)
        shapes = None
        taken = [self._inputs[position] for position in region.positions()]
        if free and any(item.free or item.symbol is not None for item in taken):
            shapes = (tuple(_shape(item) for item in taken),)
        return region, export(region, examples, dynamic_shapes=shapes)

    def _refuse_shared(self, args: tuple[Any, ...], written: tuple[int, ...]) -> None:
        """A write to an argument must be seen by arguments that lie in the same memory."""
        memories = _memories(args) if written else []
        for position in written:
            memory = _memories(args[position : position + 1])
            if memory and memories.count(memory[0]) > 1:
                raise StaysHereError(
                    f"it writes to '{self._inputs[position].name}', which shares its memory with another input"
                )

    # -- results ------------------------------------------------------------------------------------------------------

    def _placed(self, args: tuple[Any, ...], results: list[Any]) -> list[Any]:
        """Results that are views in eager are views here."""
        if all(output.identical is None and output.alias is None for output in self._outputs):
            return results
        symbols = symbols_of(self._inputs, args)
        memories: dict[int, torch.Tensor] = {}
        for number, output in enumerate(self._outputs):
            if output.identical is not None:
                results[number] = args[output.identical]
            elif output.alias is not None:
                results[number] = self._view(output.alias, args, results[number], symbols, memories)
        return results

    def _view(self, alias: Alias, args: tuple[Any, ...], value: torch.Tensor, symbols: Mapping[Any, int],
              memories: dict[int, torch.Tensor]) -> torch.Tensor:
        if alias.base >= 0:
            return alias.on(args[alias.base], symbols)
        if alias.base not in memories:
            group = [o.alias for o in self._outputs if o.alias is not None and o.alias.base == alias.base]
            length = max(each.extent(symbols) for each in group)
            memories[alias.base] = torch.empty(length, dtype=value.dtype)
        view = alias.on(memories[alias.base], symbols)
        if view.numel():
            view.copy_(value)  # where results overlap, all bring the same values
        return view


# -- helpers without state --------------------------------------------------------------------------------------------


def _written(exported: torch.export.ExportedProgram, region: Region) -> tuple[int, ...]:
    """Positions of the graph's inputs that the graph writes to."""
    signature = exported.graph_signature
    users = [spec.arg.name for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    found = set()
    for spec in signature.output_specs:
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            found.add(region.positions()[users.index(spec.target)])
        elif spec.kind in (OutputKind.BUFFER_MUTATION, getattr(OutputKind, "PARAMETER_MUTATION", None)):
            if not str(spec.target).startswith("own_"):
                raise StaysHereError(f"it writes to '{spec.target}', a tensor of the graph itself")
            found.add(region.position_of(str(spec.target)))
    return tuple(sorted(found))


def _shape(item: GraphInput) -> Any:
    """The input's entry in dynamic_shapes."""
    if item.symbol is not None:
        return Dim.AUTO
    return dict.fromkeys(item.free, Dim.AUTO) or None


def _memories(args: Sequence[Any]) -> list[int]:
    """Of the tensors among them that have any."""
    return [arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor) and arg.numel()]


def _operators(graph_module: torch.fx.GraphModule) -> str:
    """relu, linear and 3 more, for a warning."""
    names = dict.fromkeys(
        str(getattr(node.target, "__name__", node.target))
        for node in graph_module.graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
    )
    listed = ", ".join(list(names)[:_NAMED_MAX])
    return f"{listed} and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else listed or "a graph"


def _reason(error: ExportError | UnknownOperator | UnsupportedError) -> str:
    causes = "; ".join(cause.message for cause in error.causes[:3])
    return f"{error.message}{f': {causes}' if causes else ''}"
