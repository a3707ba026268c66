"""A program that a cluster has loaded: call it like the module it was made from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard import _checked, _native
from callboard._structure import Structure
from callboard._tensors import from_native, to_native
from callboard.errors import UnsupportedError, from_fields
from callboard.future import CompletionHub, TensorFuture

if TYPE_CHECKING:
    from callboard._native import FragmentInfo, NativeFuture, NativeProgram, PlacementDict

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
        builder: _native.GraphBuilder | None = None,
        placement: PlacementDict | None = None,
        source: Path | None = None,
    ) -> None:
        self._native = native
        self._structure = structure
        self._hub = hub
        self._builder = builder  # keeps the constants for save()
        self._placement = placement
        self._source = source
        self._names = [info["name"] for info in native.inputs]
        self._unflatten = structure.unflatten

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it and gives the result in the module's own structure.

        Whose memory the results are. A result never shares memory with an argument, with a weight or buffer of the
        program, or with another call's results, also where the module returns its argument, or a view of it, itself: a
        write into a result stays in it. Among the results of one call, those that are the same tensor in the module, or
        views of one another, share memory exactly if one device made them and each is above 64 KiB; smaller ones, and
        ones that went through another device, are copies of their own. So clone() a result before writing into it where
        another one of the same call overlaps it and must not change.
        """
        future = self._submit(args, kwargs, None)
        try:
            results = future.result()
        except _native.NativeError as failure:
            raise from_fields(failure.error) from None
        except BaseException:
            # Ctrl-C: nobody has the future, so nobody else can stop the call.
            future.cancel()
            raise
        return self._finish(results)

    def submit(self, *args: Any, deadline: float | None = None, **kwargs: Any) -> TensorFuture:
        """Starts it and returns at once. After `deadline` seconds (0.001 to 86400; without one: the cluster file's) the
        call ends with DeadlineExceeded, whatever holds it up. Keep the future: without it the call is cancelled.
        """
        return TensorFuture(self._submit(args, kwargs, deadline), self._finish, self._hub)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any], deadline: float | None) -> NativeFuture:
        until = _checked.optional_duration(deadline, "deadline")
        values = self._structure.flatten(args, kwargs)
        inputs = [to_native(value, name) for value, name in zip(values, self._names, strict=True)]
        try:
            return self._native.submit(inputs, until)
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

    def plan(self) -> Plan:
        """What runs where; print() it."""
        return Plan(self._native.plan, self._native.name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Program, placement and constants as one safetensors file, for cluster.load(path) and `callboard run`."""
        target = _checked.path(path, "path")
        if self._structure.unsaved:
            raise UnsupportedError(
                f"the structure of the program's arguments or results cannot be saved: {self._structure.unsaved}",
                hint="register the class with a serialized_type_name (torch.export.register_dataclass), or return a "
                "dict or a tuple",
            )
        if self._builder is not None:
            try:
                self._builder.save(target, self._placement)
            except _native.NativeError as failure:
                raise from_fields(failure.error) from None
        elif self._source is not None:
            Path(target).write_bytes(self._source.read_bytes())
        else:
            raise UnsupportedError("this program was not made from a module or a file")

    def __repr__(self) -> str:
        devices = ", ".join(dict.fromkeys(fragment["device"] for fragment in self._native.plan))
        return f"<Program {self.name} {self.id[:12]}, {self._native.node_count} nodes on {devices}>"


class Plan(Sequence["FragmentInfo"]):
    """The fragments of a program, each a part for one device; str() is a table."""

    def __init__(self, fragments: list[FragmentInfo], program: str) -> None:
        self._fragments = fragments
        self.program = program

    def __len__(self) -> int:
        return len(self._fragments)

    def __iter__(self) -> Iterator[FragmentInfo]:
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
                "constants": _bytes(fragment["constant_bytes"]),
                "sends": _bytes(fragment["edge_bytes"]),
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
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


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
