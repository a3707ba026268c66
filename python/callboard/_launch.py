"""Starting a cluster from Python: the node actor as a child that ends when this process does."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callboard import _checked, _native
from callboard._launch_folder import LaunchFolder, remove_forgotten
from callboard._programs import connect_client, find_program
from callboard.cluster import Cluster
from callboard.errors import CallboardError, ConfigError, StartError, from_fields

__all__ = ["NodeProcess", "find_program", "launch"]

_EVENTS_KEPT = 256
# Between the end of the pipe and SIGKILL; above the node actor's own grace time (5 s unless the file says otherwise).
_STOP_WAIT_S = 20.0
_END_WAIT_S = 5.0  # between the end of its reports and its own
_READY_STEP_S = 0.5
_NOT_READY = 605
_EARLY_ENDS_MAX = 2  # of one process, as `callboard up` has it
_UNNAMED = itertools.count(1)


def launch(config: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, timeout: float = 60.0) -> Cluster:
    """Starts a cluster and returns when every device is ready: `with launch("cluster.yaml") as cluster:`.

    config    a cluster file's path or the same as a dict; without one two CPU devices. A dict without a name gets one
              of its own, so that several run side by side
    timeout   seconds, 0.001 to 86400; then, or when a device cannot start, StartError says which and why, and nothing
              is left behind

    The cluster ends with the `with` block, with close(), and with this process, however that ends.
    """
    seconds = _checked.duration(timeout, "timeout")
    text, origin = _config_text(config)
    try:
        normalized = _native.validate_config(text, origin)
    except _native.NativeError as failure:
        raise from_fields(failure.error) from None
    trace_file = _trace_file(normalized)
    if trace_file is not None:
        _check_trace_file(trace_file)
    node = NodeProcess(text, Path(origin).suffix or ".json")
    try:
        client = _connect(node, time.monotonic() + seconds, seconds)
    except BaseException:
        node.stop()
        raise
    cluster = Cluster(client, node)
    if trace_file is not None:
        cluster.record_until_closed(trace_file)
    return cluster


class NodeProcess:
    """The child. Its lifeline is a pipe whose other end only this process holds; a thread reads what it reports."""

    def __init__(self, config: str, suffix: str) -> None:
        program = find_program("callboard")
        remove_forgotten()
        self._folder = LaunchFolder()
        file = self._folder.path / f"cluster{suffix}"
        file.write_text(config, encoding="utf-8")
        self._output = self._folder.path / "node.log"
        self.events: collections.deque[dict[str, Any]] = collections.deque(maxlen=_EVENTS_KEPT)
        self.failure: CallboardError | None = None
        self._early_ends: collections.Counter[str] = collections.Counter()
        self.run_dir = ""
        self._changed = threading.Condition()
        self._ended = False
        lifeline_there, lifeline = os.pipe()
        status, status_there = os.pipe()
        command = [
            program, "node", "--config", str(file), "--lifeline-fd", str(lifeline_there), "--status-fd",
            str(status_there),
        ]  # fmt: skip
        try:
            with self._output.open("wb") as output:
                # A session of its own: Ctrl-C is for this process, which then stops the cluster in order.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                    pass_fds=(lifeline_there, status_there), cwd="/",
                )  # fmt: skip
        except OSError as error:
            os.close(lifeline)
            os.close(status)
            self._folder.remove()
            raise StartError(f"{program} could not be started: {error.strerror}") from error
        finally:
            os.close(lifeline_there)
            os.close(status_there)
        self._lifeline = lifeline
        _LIFELINES.add(lifeline)
        self._end = weakref.finalize(self, _close_lifeline, lifeline)
        # The thread must not keep this object alive: a forgotten cluster stops.
        threading.Thread(
            target=_read_status, args=(weakref.ref(self), status), name="callboard-status", daemon=True
        ).start()

    def take(self, event: dict[str, Any] | None) -> None:
        """From the reading thread; None is the end."""
        with self._changed:
            if event is None:
                self._ended = True
            else:
                self.events.append(event)
                self.run_dir = event.get("run_dir", "") or self.run_dir
                if event.get("event") == "failed":
                    self.failure = self._failed(event)
                elif event.get("event") == "actor_exited" and self.failure is None:
                    self.failure = self._hopeless(event)
            self._changed.notify_all()

    def wait_started(self, until: float) -> str:
        """The run directory, once all processes are spawned."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.run_dir or self.failure or self._ended, max(0.0, until - time.monotonic())
            )
        self.raise_if_failed()
        if not done:
            raise StartError("the node actor did not start its processes in time", detail=self.last_output())
        return self.run_dir

    def wait_told(self, seconds: float) -> None:
        """Until there is an end to tell of: the coordinator's answer may come before the node actor's report."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure or self._ended or self.exits(), seconds)

    def raise_if_failed(self) -> None:
        """StartError if the node actor gave up or ended."""
        with self._changed:
            failure, ended = self.failure, self._ended
        if failure is not None:
            raise failure
        if ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WAIT_S)
            status = self._process.returncode
            raise StartError(
                f"the node actor ended with status {status} before the cluster was ready", detail=self.last_output()
            )

    def _failed(self, event: dict[str, Any]) -> CallboardError:
        error = dict(event.get("error") or {})
        cause = from_fields({"code": 604, "name": "start_failed", "message": "the cluster did not start", **error})
        exits = self.exits()
        if exits and not cause.detail:
            cause.detail = str(exits[-1].get("log_tail", ""))
        if event.get("logs") and not cause.hint:
            cause.hint = f"logs are in {event['logs']}"
        return cause

    def _hopeless(self, event: dict[str, Any]) -> CallboardError | None:
        """A process that ends by its own doing while it starts will do so again: the second time is enough to say why.
        Of no account once the cluster is ready, where nobody asks for a failure any more.
        """
        if event.get("stopped_by_us") or not event.get("by_itself"):
            return None
        name = str(event.get("name"))
        self._early_ends[name] += 1
        if self._early_ends[name] < _EARLY_ENDS_MAX and int(event.get("restart_in_ms", 0)) >= 0:
            return None
        return StartError(
            f"the cluster did not start: {name} ended while it started: {event.get('cause')}", causes=self.ends()
        )

    def exits(self, device: str | None = None) -> list[dict[str, Any]]:
        """Ends of processes that nobody asked for, oldest first."""
        return [
            event
            for event in self.events
            if event.get("event") == "actor_exited"
            and not event.get("stopped_by_us")
            and device in (None, event.get("name"))
        ]

    def ends(self) -> list[StartError]:
        """The last of exits() as errors, with the end of each process's log."""
        return [
            StartError(
                f"{event.get('name')}#{event.get('incarnation')} ended: {event.get('cause')}",
                actor=f"{event.get('name')}#{event.get('incarnation')}",
                detail=str(event.get("log_tail", "")),
            )
            for event in self.exits()[-3:]
        ]

    def last_output(self) -> str:
        """The end of what the node actor wrote."""
        try:
            return self._output.read_text(encoding="utf-8", errors="replace")[-4000:]
        except OSError:
            return ""

    def stop(self) -> None:
        """Ends the cluster and waits for it; kills it if it does not end in time."""
        self._end()
        try:
            self._process.wait(_STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.remove()


# -- start ------------------------------------------------------------------------------------------------------------


def _config_text(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> tuple[str, str]:
    if config is None:
        config = {"devices": [{"kind": "cpu", "count": 2}]}
    if isinstance(config, Mapping):
        named = {"name": f"python-{os.getpid()}-{next(_UNNAMED)}", **config}
        try:
            return json.dumps(named), "launch"
        except (TypeError, ValueError) as error:
            raise ConfigError(f"'config' is {_checked.shown(config)}; allowed: what JSON can say: {error}") from None
    if not isinstance(config, (str, os.PathLike)):
        raise ConfigError(
            f"'config' is {_checked.shown(config)}; allowed: a cluster file's path, a dict as in the file, or None",
            hint='the smallest dict is {"devices": [{"kind": "cpu", "count": 2}]}',
        )
    path = Path(os.fsdecode(config))
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        code, name = (211, "file_not_found") if isinstance(error, FileNotFoundError) else (212, "file_unreadable")
        reason = getattr(error, "strerror", None) or str(error)
        raise from_fields(
            {"code": code, "name": name, "message": f"the cluster file {path} cannot be read: {reason}"}
        ) from error


def _connect(node: NodeProcess, until: float, timeout: float) -> _native.Client:
    run_dir = node.wait_started(until)
    client = None
    try:
        client = connect_client(run_dir, max(0.1, until - time.monotonic()))
        while True:
            left = until - time.monotonic()
            step = max(0.0, min(_READY_STEP_S, left))
            try:
                client.operation("wait_ready", json.dumps({"timeout_ms": int(1000 * step)}), step + 5.0)
                return client
            except _native.NativeError as failure:
                if failure.error["code"] != _NOT_READY or left <= 0:
                    raise
            node.raise_if_failed()
    except _native.NativeError as failure:
        if client is not None:
            client.close()
        if failure.error["code"] != _NOT_READY:
            node.wait_told(_END_WAIT_S)
        node.raise_if_failed()
        raise _start_error(failure, node, timeout) from None
    except BaseException:
        if client is not None:
            client.close()
        raise


def _start_error(failure: _native.NativeError, node: NodeProcess, timeout: float) -> CallboardError:
    """What the coordinator answered, with the last words of the processes that ended: its own account of them or, where
    it gave none, what the node actor has told by now."""
    cause = from_fields(failure.error)
    ends = list(cause.causes) or node.ends()
    message = cause.message if cause.code != _NOT_READY else f"{cause.message} (within {timeout:g} s)"
    return StartError(f"the cluster did not start: {message}", hint=cause.hint, detail=cause.detail, causes=ends)


def _trace_file(normalized: str) -> str | None:
    """Where tracing leaves its file, from the normalized cluster file; None where tracing is off."""
    section, enabled, file = "", False, ""
    for line in normalized.splitlines():
        if line and not line[0].isspace():
            section = line.split(":")[0]
        elif section == "tracing":
            key, _, value = line.strip().partition(":")
            enabled = value.strip() == "true" if key == "enabled" else enabled
            file = value.strip().strip("'\"") if key == "file" else file
    return (file or "trace.json") if enabled else None


def _check_trace_file(path: str) -> None:
    """Before anything starts: at the end it would be too late."""
    try:
        _native.check_output_file(path)
    except _native.NativeError as failure:
        raise ConfigError(
            f"tracing.file: {failure.error['message']}",
            code=204,
            name="config_out_of_range",
            hint=f"{failure.error['hint']}, with tracing.file in the cluster file",
        ) from None


# -- the pipes --------------------------------------------------------------------------------------------------------

# Open lifelines of this process. A forked child has copies of them and must not keep a cluster alive.
_LIFELINES: set[int] = set()


def _close_lifeline(lifeline: int) -> None:
    if lifeline in _LIFELINES:
        _LIFELINES.discard(lifeline)
        os.close(lifeline)


def _forget_lifelines() -> None:
    for lifeline in _LIFELINES:
        with contextlib.suppress(OSError):
            os.close(lifeline)
    _LIFELINES.clear()


os.register_at_fork(after_in_child=_forget_lifelines)


def _read_status(reference: weakref.ref[NodeProcess], status: int) -> None:
    """Until the node actor closes its end; it does when this process lets go of the lifeline."""
    rest = b""
    try:
        while chunk := os.read(status, 65536):
            *lines, rest = (rest + chunk).split(b"\n")
            _deliver(reference, lines)
    finally:
        os.close(status)
        node = reference()
        if node is not None:
            node.take(None)


def _deliver(reference: weakref.ref[NodeProcess], lines: list[bytes]) -> None:
    node = reference()
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if node is not None and isinstance(event, dict):
                node.take(event)
