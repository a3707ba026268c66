"""One line of the result, and what the benchmarks measure with."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import callboard

BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", "build/release/bin")).resolve()
MIB = 1 << 20


@dataclass
class Figure:
    """`ok` compares `ratio` (with a yardstick) or `value` (without) with `target`, which is an upper bound unless
    `at_least`.
    """

    name: str
    value: float
    unit: str
    yardstick: float | None
    ratio: float | None
    target: float
    ok: bool
    rounds: int
    min: float
    max: float
    what: str = ""
    at_least: bool = False


Pairs = list[tuple[float, float]]


def with_yardstick(name: str, pairs: Pairs, unit: str, target: float, what: str, *, at_least: bool = False) -> Figure:
    """pairs: (ours, yardstick) of each round."""
    ratios = [ours / yardstick for ours, yardstick in pairs]
    ratio = statistics.median(ratios)
    ok = ratio >= target if at_least else ratio <= target
    return Figure(name, statistics.median(p[0] for p in pairs), unit, statistics.median(p[1] for p in pairs), ratio,
                  target, ok, len(pairs), min(ratios), max(ratios), what, at_least)


def absolute(name: str, values: list[float], unit: str, target: float, what: str, *, at_least: bool = False) -> Figure:
    value = statistics.median(values)
    ok = value >= target if at_least else value <= target
    return Figure(name, value, unit, None, None, target, ok, len(values), min(values), max(values), what, at_least)


def timed(call: Callable[[], Any]) -> float:
    """Microseconds of one call; its result dies outside the measured time."""
    begin = time.perf_counter()
    result = call()
    took = (time.perf_counter() - begin) * 1e6
    del result
    return took


def alternating(rounds: int, inner: int, ours: Callable[[], Any], yardstick: Callable[[], Any]) -> Pairs:
    """Medians of `inner` calls of each, one after the other, in every round. Both are warmed up first."""
    for _ in range(3):
        timed(ours)
        timed(yardstick)
    pairs = []
    for _ in range(rounds):
        mine, theirs = [], []
        for _ in range(inner):
            mine.append(timed(ours))
            theirs.append(timed(yardstick))
        pairs.append((statistics.median(mine), statistics.median(theirs)))
    return pairs


@contextmanager
def ping_pong_server() -> Iterator[str]:
    """The echoing process of the ZeroMQ yardstick; yields its endpoint."""
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        endpoint = f"ipc://{folder}/ping"
        server = subprocess.Popen([BIN / "bench-ping-pong", "serve", endpoint], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise RuntimeError("the ping-pong server did not start")
            yield endpoint
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(timeout=5)


def json_of(*command: str | pathlib.Path) -> dict[str, float]:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def cpus(count: int, threads: int = 1) -> dict[str, Any]:
    """A cluster of CPU devices."""
    return {"devices": [{"kind": "cpu", "count": count, "threads": threads}]}


def pids_of(cluster: callboard.Cluster) -> dict[str, int]:
    """Processes of a cluster by the names of their actors."""
    record = cluster.record
    pids = {"node": int(record["node_pid"]), "coordinator": int(record["coordinator_pid"])}
    for entry in cluster.status()["actors"]:
        if entry["role"] == "device":
            pids[entry["name"]] = int(entry["pid"])
    return pids
