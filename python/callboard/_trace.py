"""Recording what the devices do, as a Chrome trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from callboard import _native
from callboard.errors import CallboardError, MachineError, from_fields

# Devices keep a bounded number of spans and an answer has a size limit: take them before either matters.
_TAKE_EVERY_S = 0.5
_PARTS_MAX = 200  # of half a MiB each; a device that records faster than this reads must not hold the end up


class TraceRecorder:
    """`with cluster.trace("run.json"):` records what happens inside. The file is written at the end."""

    def __init__(self, operation: Callable[..., Any], devices: list[str], path: str | os.PathLike[str]) -> None:
        self._operation = operation
        self._devices = devices
        self.path = Path(path).absolute()  # the working directory may be another one at the end
        self._events: list[Any] = []
        self._stop = threading.Event()
        self._taker = threading.Thread(target=self._take_until_stopped, name="callboard-trace", daemon=True)

    def __enter__(self) -> TraceRecorder:
        self._operation("trace", action="on")
        self.start()
        return self

    def start(self) -> None:
        """Collects from now on; whether devices record is not touched."""
        self._taker.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._operation("trace", action="off")
        except CallboardError:
            if kind is None:
                raise
        finally:
            self.finish()

    def finish(self) -> None:
        """Takes what is left and writes the file, even if a device does not answer any more."""
        self._stop.set()
        self._taker.join()
        with contextlib.suppress(CallboardError):
            self._take()
        _write_whole(self.path, json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}))

    def _take_until_stopped(self) -> None:
        while not self._stop.wait(_TAKE_EVERY_S):
            try:
                self._take()
            except CallboardError:
                continue  # a device that is down at the moment; its spans are gone with it

    def _take(self) -> None:
        for device in self._devices:
            for _ in range(_PARTS_MAX):
                part = self._operation("trace", action="take", device=device)
                self._events.extend(part.get("traceEvents", ()))
                if not part.get("more"):
                    break


def _write_whole(path: Path, text: str) -> None:
    """Beside its place and renamed there, as the native module writes files."""
    try:
        _native.check_output_file(str(path))  # it was, at the start
    except _native.NativeError as failure:
        raise from_fields(failure.error) from None
    target = path.resolve()
    temporary = target.with_name(f"{target.name}.tmp.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise MachineError(
            f"the trace cannot be written to {path}: {error.strerror}", hint="check the space and the permissions there"
        ) from error
