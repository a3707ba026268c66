"""A connection to a cluster: programs are compiled here and run there."""

from __future__ import annotations

import collections
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from callboard import _checked, _native
from callboard._programs import connect_client
from callboard.errors import InputError, from_fields

if TYPE_CHECKING:
    import torch

    from callboard._launch import NodeProcess
    from callboard._native import PlacementDict
    from callboard._trace import TraceRecorder
    from callboard.future import CompletionHub
    from callboard.program import Program

__all__ = ["Cluster", "connect", "empty"]

# Programs of cluster.op() that stay loaded; the coordinator keeps 256 in all.
_EAGER_PROGRAMS_MAX = 64
_EVENTS_MAX = 1024


# For empty() and torch.compile(), which take the only one.
_open_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


class Cluster:
    """Made by launch() or connect(). Any thread may use it. Leaving a `with` block closes it, and stops the cluster if
    launch() started it.
    """

    def __init__(self, client: _native.Client, node: NodeProcess | None = None) -> None:
        self._client = client
        self._node = node
        self._lock = threading.Lock()
        self._eager: collections.OrderedDict[Any, Program] = collections.OrderedDict()
        self._events: collections.deque[dict[str, Any]] = collections.deque(maxlen=_EVENTS_MAX)
        self._hub_made: CompletionHub | None = None
        self._recorder: TraceRecorder | None = None
        _open_clusters.add(self)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def empty(self, *size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialised tensor in memory that the devices can read: as an argument it is not copied. Otherwise an
        ordinary CPU tensor; views of it share the advantage, as long as they are not enlarged.

        Do not write to it while a call that was given it is on its way. The memory goes back with the last tensor that
        uses it, whether or not the cluster is still there.
        """
        import torch

        from callboard._tensors import dtype_name, from_native

        kind = torch.get_default_dtype() if dtype is None else dtype
        sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
        with _native_errors():
            made = self._client.allocate(dtype_name(kind), _checked.sizes(sizes))
        result: torch.Tensor = from_native(made)
        return result

    # -- programs -----------------------------------------------------------------------------------------------------

    def compile(
        self,
        module: torch.nn.Module | Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        dynamic_shapes: Any = None,
        placement: Any = "auto",
        *,
        replicas: int | Sequence[str] | None = None,
        batch_dim: int | Mapping[str, int] = 0,
        scatter: bool = True,
        profile: bool = False,
        name: str | None = None,
        timeout: float | None = None,
    ) -> Program:
        """Exports the module with torch.export and loads it on the devices.

        args, kwargs     example arguments; sizes are fixed to theirs but for those that dynamic_shapes frees
        dynamic_shapes   as torch.export takes it: ({0: Dim("batch", max=64)}, None), or by argument name
        placement        "auto" balances over all devices; "cpu0" puts everything there; ["cpu0", "cpu1"] balances over
                         these; {"cpu0": ["embeddings", "encoder.layer.0"], "cpu1": ["encoder.layer.1"]} places by
                         module prefix, (first, last) node numbers are allowed too
        replicas         instead of a placement: the whole program on each of so many devices, or of these. Each call is
                         divided along the batch over the replicas (7 rows on 3: 3, 2, 2) and its results are gathered
                         in order, so row i of every result must depend on row i of the arguments alone. Sizes must
                         show the batch: free it with dynamic_shapes. A program with buffers that it changes is refused
        batch_dim        the batch dimension of every argument whose size there is free; where these are several sizes,
                         {"ids": 0} names the arguments
        scatter          False: each call goes as a whole to the replica with the fewest calls on their way; it needs no
                         batch dimension
        profile          True: first loads the whole module on one device, runs it a few times with the example
                         arguments and times every operator; "auto" then balances by these times in place of estimates,
                         and plan() shows them. What else the cluster does meanwhile is in the times. Buffers keep their
                         initial values. A module that fits no device whole is balanced by estimates, and plan() says
                         so. Not with replicas, which are not divided
        timeout          seconds for loading (and as many for profiling), 0.001 to 86400; by default two minutes
        """
        # Imports of what needs torch are made where it is needed: a client that only asks for the status is quick.
        from callboard import export as exporter
        from callboard._tensors import to_native
        from callboard.program import Program

        copies = None if replicas is None else _checked.replica_devices(replicas, placement, lambda: self.devices)
        dim = _checked.batch_dim(batch_dim, "batch_dim")
        divided = _checked.flag(scatter, "scatter")
        where = _checked.placement_dict(placement)
        measured = _checked.flag(profile, "profile")
        if measured and copies is not None:
            raise InputError(
                "'profile' is True together with 'replicas'; a replica is a whole program, there is nothing to balance",
                hint="leave one of the two out",
            )
        until = _checked.optional_duration(timeout, "timeout")
        called = str(getattr(module, "__name__", type(module).__name__))
        builder = _native.FragmentBuilder(called if name is None else _checked.text(name, "name", "a str or None"))
        exported = exporter.export(module, args, kwargs, dynamic_shapes)
        forward = getattr(module, "forward", module)
        with _native_errors():
            structure = exporter.build_program(exported, builder, forward=forward, dynamic_shapes=dynamic_shapes)
            if measured:
                names = [leaf.name for leaf in structure.leaves if leaf.index is not None]
                values = structure.flatten(args, dict(kwargs or {}))
                inputs = [to_native(value, label) for value, label in zip(values, names, strict=True)]
                self._client.profile(builder, inputs, where, timeout=until)
            if copies is None:
                native = self._client.load(builder, where, until)
            else:
                each = [_checked.placement_dict(device) for device in copies]
                native = self._client.load_replicas(builder, each, divided, dim, until)
        return Program(native, structure, self._hub, builder=builder, placement=where)

    def load_exported(
        self,
        exported: torch.export.ExportedProgram,
        *,
        placement: PlacementDict,
        name: str,
        forward: Callable[..., Any],
        dynamic_shapes: Any,
        timeout: float | None,
    ) -> Program:
        """What compile() does with a module once it is captured; arguments are checked already."""
        from callboard import export as exporter
        from callboard.program import Program

        builder = _native.FragmentBuilder(name)
        with _native_errors():
            structure = exporter.build_program(exported, builder, forward=forward, dynamic_shapes=dynamic_shapes)
            native = self._client.load(builder, placement, timeout)
        return Program(native, structure, self._hub, builder=builder, placement=placement)

    def load(self, path: str | os.PathLike[str], placement: Any = None, *, timeout: float | None = None) -> Program:
        """A program that program.save() wrote; without a placement it goes where it was."""
        from callboard._structure import ANNOTATION, Structure, flat_structure
        from callboard.program import Program

        file = _checked.path(path, "path")
        where = None if placement is None else _checked.placement_dict(placement)
        until = _checked.optional_duration(timeout, "timeout")
        with _native_errors():
            native = self._client.load_file(file, where, until)
        saved = native.annotations.get(ANNOTATION)
        if saved is not None:
            structure = Structure.loads(saved)
        else:
            names, count = [info["name"] for info in native.inputs], len(native.output_names)
            structure = flat_structure(names, 0 if count == 1 else tuple(range(count)))
        return Program(native, structure, self._hub)

    def op(self, name: str, *args: Any, placement: Any = "auto", **kwargs: Any) -> Any:
        """Runs one operator on a device and gives its result: cluster.op("aten::add.Tensor", a, b, alpha=2)."""
        from callboard._eager import EagerCall

        where = _checked.placement_dict(placement)
        call = EagerCall(name, args, kwargs)
        return self._eager_program(call, where)(*call.tensors)

    def _eager_program(self, call: Any, where: PlacementDict) -> Program:
        from callboard.program import Program

        key = (call.key, repr(where))
        with self._lock:
            program = self._eager.get(key)
            if program is not None:
                self._eager.move_to_end(key)
                return program
        builder = _native.FragmentBuilder(call.name)
        with _native_errors():
            structure = call.build(builder)
            native = self._client.load(builder, where)
        program = Program(native, structure, self._hub)
        with self._lock:
            self._eager[key] = program
            if len(self._eager) > _EAGER_PROGRAMS_MAX:
                self._eager.popitem(last=False)
        return program

    # -- the cluster --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """As in the cluster file."""
        return self._client.cluster["name"]

    @property
    def run_dir(self) -> str:
        """Where its sockets and logs are."""
        return self._client.cluster["run_dir"]

    @property
    def record(self) -> dict[str, Any]:
        """What clients need to find it: name, run_dir, node_pid, coordinator_pid, version and more."""
        return dict(self._client.cluster)

    @property
    def devices(self) -> list[str]:
        """Names of its devices, as placements use them."""
        return [actor["name"] for actor in self.status()["actors"] if actor["role"] == "device"]

    def operation(self, operation: str, *, timeout: float | None = None, **arguments: Any) -> dict[str, Any]:
        """An entry of the coordinator's table, as the command line has it: operation("restart_actor", name="cpu0")."""
        name = _checked.text(operation, "operation", "the name of an entry, such as \"status\"")
        until = _checked.optional_duration(timeout, "timeout")
        try:
            encoded = json.dumps(arguments)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the arguments of operation '{name}' are {_checked.shown(arguments)}; allowed: what JSON can say "
                f"({error})"
            ) from None
        with _native_errors():
            answer = self._client.operation(name, encoded, until)
        result: dict[str, Any] = json.loads(answer)
        return result

    def status(self) -> dict[str, Any]:
        """Actors with their states, process ids and load; programs, requests, counters."""
        return self.operation("status")

    def trace(self, path: str | os.PathLike[str]) -> TraceRecorder:
        """`with cluster.trace("run.json"): …` records what the devices do, for ui.perfetto.dev. The file is replaced
        whole, in a folder that is there.
        """
        from callboard._trace import TraceRecorder

        file = _checked.path(path, "path")
        with _native_errors():
            _native.check_output_file(file)
        return TraceRecorder(self.operation, self.devices, file)

    def record_until_closed(self, path: str | os.PathLike[str]) -> None:
        """What `tracing: {enabled: true}` in the cluster file asks of launch(): the file is written by close()."""
        self._recorder = self.trace(path)
        self._recorder.start()

    def events(self) -> list[dict[str, Any]]:
        """What happened to actors since the last call: dicts with actor, name, event ("ready", "down", "restarting",
        "failed") and error.
        """
        self._collect_events()
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def _collect_events(self) -> None:
        for event in self._client.drain_events():
            error = event["error"]
            self._events.append({**event, "error": None if error is None else from_fields(error)})

    @property
    def _hub(self) -> CompletionHub:
        from callboard.future import CompletionHub

        with self._lock:
            if self._hub_made is None:
                self._hub_made = CompletionHub(self._client, self._collect_events)
            return self._hub_made

    def close(self) -> None:
        """Ends the connection, and the cluster if launch() started it. What runs ends with Cancelled. Idempotent."""
        recorder, self._recorder = self._recorder, None
        try:
            if recorder is not None:
                recorder.finish()
            self._client.close()
            with self._lock:
                self._eager.clear()  # programs hold what is left of the client
                hub = self._hub_made
                if hub is None:
                    self._client.close_completion_fd()
            if hub is not None:
                hub.close()
        finally:
            if self._node is not None:
                self._node.stop()

    @property
    def closed(self) -> bool:
        """After close(), or when the process was forked off its owner's."""
        return self._client.closed

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.run_dir
        return f"<Cluster {self.name}, {state}>"


def connect(
    cluster: str | os.PathLike[str] = "", *, timeout: float = 10.0, memory_limit: int | None = None
) -> Cluster:
    """To a running cluster by its name or run directory; without one, to the only one that runs on this host.

    memory_limit     bytes of shared memory for large arguments and empty(); where calls in flight hold it all, submit()
                     waits. By default what the machine has left
    """
    address = _checked.path(cluster, "cluster", "a cluster's name or its run directory")
    seconds = _checked.duration(timeout, "timeout")
    limit = 0 if memory_limit is None else _checked.integer(memory_limit, "memory_limit", 1, 2**63 - 1)
    with _native_errors():
        return Cluster(connect_client(address, seconds, limit))


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, cluster: Cluster | None = None
) -> torch.Tensor:
    """cluster.empty() of the cluster that this process is connected to; with several, say which."""
    return (only_cluster("empty()", "cluster=…") if cluster is None else cluster).empty(*size, dtype=dtype)


def only_cluster(who: str, how: str) -> Cluster:
    """The cluster that this process is connected to. InputError with none or several: `who` needs one, and `how` says
    which.
    """
    known = [each for each in _open_clusters if not each.closed]
    if len(known) != 1:
        names = ", ".join(sorted(each.name for each in known)) or "none"
        raise InputError(
            f"this process is connected to {len(known)} clusters ({names}), {who} needs exactly one",
            hint=f"say {how}" if known else "launch() or connect() first",
        )
    return known[0]


class _native_errors:  # noqa: N801 (a context manager that reads like a function)
    """Failures of the native module as exceptions of ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, _native.NativeError):
            from callboard._kernel_hint import named

            raise named(from_fields(error.error)) from None
