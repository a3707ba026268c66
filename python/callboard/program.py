"""A program that a cluster has loaded: call it like the module it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from callboard import _checked, _native
from callboard._structure import Structure
from callboard._tensors import from_native, to_native
from callboard.errors import UnsupportedError, from_fields
from callboard.future import CompletionHub, TensorFuture

if TYPE_CHECKING:
    from callboard._native import EdgeInfo, NativeFuture, NativeProgram, PlacementDict, StageInfo, StageReport

__all__ = ["Plan", "Program"]


class Program:
    """`y = program(*args)` waits; `program.submit(*args)` gives a future. Any thread may call. The cluster keeps the
    program loaded as long as this object lives.
    """

    def __init__(
        self,
        native: NativeProgram,
        structure: Structure,
        hub: CompletionHub,
        builder: _native.FragmentBuilder | None = None,
        placement: PlacementDict | None = None,
    ) -> None:
        self._native = native
        self._structure = structure
        self._hub = hub
        self._builder = builder  # keeps the constants for save()
        self._placement = placement
        self._names = [info["name"] for info in native.inputs]
        self._unflatten = structure.unflatten

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it and gives the result in the module's own structure.

        Whose memory the results are. A result never shares memory with an argument, with a weight or buffer of the
        program, or with another call's results, also where the module returns its argument, or a view of it, itself: a
        write into a result stays in it. Among the results of one call, those that are the same tensor in the module, or
        views of one another, share memory exactly if one device made them and each is above 32 KiB; smaller ones, and
        ones that went through another device, are copies of their own. So clone() a result before writing into it where
        another one of the same call overlaps it and must not change.

        Results of a device with output_device: cuda are CUDA tensors where this process sees its GPU (empty ones come
        on the CPU). They lie where the device made them and are not to be written to: others read the same memory, so
        clone() first. They are ordered behind their maker on the stream that is current here; another stream has to
        wait for that one. They end with their device actor: clone() what must outlive it.
        """
        future = self._submit(args, kwargs, None, True)
        try:
            results = future.result()
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None
        except BaseException:
            # Ctrl-C: nobody has the future, so nobody else can stop the call.
            future.cancel()
            raise
        return self._finish(results)

    def submit(self, *args: Any, deadline: float | None = None, wait: bool = True, **kwargs: Any) -> TensorFuture:
        """Starts it and returns without waiting for its result. After `deadline` seconds (0.001 to 86400; without one:
        the cluster file's) the call ends with DeadlineExceeded, whatever holds it up. Keep the future: without it the
        call is cancelled.

        Back-pressure: where as many calls are in flight as the cluster allows (limits.requests_per_client), or calls
        in flight hold the memory that large arguments need, submit() waits for room, first come, first served over all
        threads; Ctrl-C interrupts the wait. Without room by the deadline it raises DeadlineExceeded (without a deadline
        after two minutes Overloaded or OutOfMemory), which says what was full. `wait=False` raises Overloaded or
        OutOfMemory at once instead: in an asyncio event loop, which submit() would hold up. There, bound the calls in
        flight yourself (asyncio.Semaphore), or wait in a thread: `await asyncio.to_thread(program.submit, x)`.
        """
        return TensorFuture(
            self._submit(args, kwargs, deadline, _checked.flag(wait, "wait")), self._finish, self._hub
        )

    def batched(
        self,
        max_batch: int = 32,
        max_delay: float = 0.002,
        dim: int | Mapping[str, int] = 0,
        *,
        max_queued: int = 1024,
    ) -> Program:
        """The same program for many callers at once: calls that come at about the same time, from any threads or tasks,
        run as one, and each gets its own rows of the result.

        max_batch    rows of one run. A call with more runs alone, if the program allows so many
        max_delay    seconds that the first call of a batch waits for company, 0 to 3600
        dim          the batch dimension of every argument whose size there is free (dynamic_shapes, with 1 to max_batch
                     rows); where these are several sizes, {"ids": 0} names the arguments
        max_queued   calls without an outcome; one more waits in submit(), as calls beyond the cluster's limit do

        Calls share a run if their dtypes and other sizes are equal, and so are arguments without the batch. Row i of
        every result must depend on row i of the arguments alone; results of another form are refused here, as is a
        program with buffers that it changes. Arguments are the caller's again when submit() has returned. Results up to
        32 KiB are copies, larger ones are parts of the batch's result and keep all of it in memory; no two calls share
        an element. A batch's numbers may differ from a lone call's in the last bits, as those of PyTorch do.

        Each call has its own deadline and may be cancelled; the others go on. If a call's data make the run fail, the
        calls run again one by one, and the guilty one alone fails, provided the program is pure (print(program.plan())
        says so); otherwise all of them get the error.
        """
        rows = _checked.integer(max_batch, "max_batch", 1, 2**63 - 1)
        seconds = _checked.delay(max_delay, "max_delay")
        where = _checked.batch_dim(dim, "dim")
        queued = _checked.integer(max_queued, "max_queued", 1, 2**31 - 1)
        try:
            native = self._native.batched(rows, seconds, where, queued)
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None
        self._hub.close_with_client(native)
        return Program(native, self._structure, self._hub, self._builder, self._placement)

    def _submit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], deadline: float | None, wait: bool
    ) -> NativeFuture:
        until = _checked.optional_duration(deadline, "deadline")
        values = self._structure.flatten(args, kwargs)
        inputs = [to_native(value, name) for value, name in zip(values, self._names, strict=True)]
        try:
            return self._native.submit(inputs, until, wait)
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None

    def _finish(self, results: list[Any]) -> Any:
        return self._unflatten([from_native(value) for value in results])

    @property
    def id(self) -> str:
        """Content hash of program and placement; the same program has the same id everywhere."""
        return self._native.id

    @property
    def name(self) -> str:
        """Class of the module, or what compile() was told."""
        return self._native.name

    @property
    def draws_random(self) -> bool:
        """Does some operator draw random numbers with the arguments that it has? Each device has its own generator."""
        return any(fragment["random"] for fragment in self._native.plan)

    def plan(self) -> Plan:
        """What runs where, and how long each part takes; print() it. Asks the cluster for what it measured so far; once
        the connection has ended, the plan is without that.
        """
        fragments = self._native.plan
        try:
            reports = self._native.stages()
        except _native.NativeError as failure:
            if failure.error["name"] not in ("cancelled", "coordinator_lost"):
                raise from_fields(failure.error) from None
            nothing: StageReport = {"edges": [], "runs": 0, "mean_run_ns": None}
            reports = [nothing] * len(fragments)
        merged: list[StageInfo] = [{**part, **report} for part, report in zip(fragments, reports, strict=True)]
        return Plan(merged, self._native.name, self._native.costs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Program, placement and constants as one safetensors file, for cluster.load(path) and `callboard run`. The
        file is replaced whole; what is no regular file is refused. A loaded program is saved as it was loaded, whatever
        lies at that path now.
        """
        target = _checked.path(path, "path")
        if self._structure.unsaved:
            raise UnsupportedError(
                f"the structure of the program's arguments or results cannot be saved: {self._structure.unsaved}",
                hint="register the class with a serialized_type_name (torch.export.register_dataclass), or return a "
                "dict or a tuple",
            )
        try:
            if self._builder is not None:
                self._builder.save(target, self._placement)
            else:
                self._native.save(target)
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None

    def __repr__(self) -> str:
        devices = ", ".join(dict.fromkeys(fragment["device"] for fragment in self._native.plan))
        nodes = "1 node" if self._native.node_count == 1 else f"{self._native.node_count} nodes"
        return f"<Program {self.name} {self.id[:12]}, {nodes} on {devices}>"


class Plan(Sequence["StageInfo"]):
    """The fragments of a program, each a part for one device, as dicts: what was planned (device, node_ranges, cost,
    time_ns, peak_bytes, …) and what the cluster reports (edges: bytes to each other fragment; runs, mean_run_ns). str()
    is a table.

    times    "measured": by a profile run, compile(profile=True); "estimated": from the operators' work, for a device of
             10,000 million operations a second. The column "mean run" is of real runs, as the devices measured them
    note     where the times come from, for a person
    """

    def __init__(self, fragments: list[StageInfo], program: str, costs: str = "") -> None:
        self._fragments = fragments
        self.program = program
        self.times = fragments[0]["time_source"] if fragments else "estimated"
        self.note = costs or "estimated from the operators' work"

    def __len__(self) -> int:
        return len(self._fragments)

    def __iter__(self) -> Iterator[StageInfo]:
        return iter(self._fragments)

    def __getitem__(self, index: Any) -> Any:
        return self._fragments[index]

    def rows(self) -> list[dict[str, str]]:
        """The table's cells, by column."""
        total = sum(fragment["cost"] for fragment in self._fragments) or 1.0
        return [
            {
                "fragment": str(fragment["index"]),
                "device": fragment["device"],
                "nodes": ", ".join(_range(first, last) for first, last in fragment["node_ranges"]),
                "modules": _shortened(fragment["modules"]),
                "cost": f"{100 * fragment['cost'] / total:.0f} %",
                "time": _time(fragment["time_ns"]),
                "mean run": _time(fragment["mean_run_ns"]),
                "constants": _bytes(fragment["constant_bytes"]),
                "sends": ", ".join(_edge(edge) for edge in fragment["edges"]) or "-",
                "peak": _bytes(fragment["peak_bytes"]),
                "kind": "pure" if fragment["pure"] else "random" if fragment["random"] else "stateful",
            }
            for fragment in self._fragments
        ]

    def __str__(self) -> str:
        rows = self.rows()
        if not rows:
            return f"{self.program}: nothing to run"
        columns = list(rows[0])
        widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}
        lines = ["  ".join(column.ljust(widths[column]) for column in columns)]
        lines.append("  ".join("-" * widths[column] for column in columns))
        lines.extend("  ".join(row[column].ljust(widths[column]) for column in columns) for row in rows)
        lines.append(f"times are {self.note}")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def _time(ns: float | None) -> str:
    if ns is None:
        return "-"
    value = float(ns)
    for unit in ("ns", "us", "ms"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "ns" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} s"


def _edge(edge: EdgeInfo) -> str:
    """With a sign where the size is only known from below."""
    return f"{'' if edge['exact'] else '>= '}{_bytes(edge['bytes'])} to {edge['to']}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _shortened(modules: list[str], count_max: int = 3) -> str:
    named = [module or "(top)" for module in modules]
    if len(named) <= count_max:
        return ", ".join(named)
    return f"{named[0]}, {named[1]}, … {named[-1]} ({len(named)})"


def _bytes(count: int) -> str:
    if count == 0:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""
