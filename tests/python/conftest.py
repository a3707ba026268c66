"""Clusters for tests: real processes, on the CPU, in a run directory of their own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_support import FAKE, Lab

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

TWO_CPU = {"devices": [{"kind": "cpu", "count": 2, "threads": 1}]}


@pytest.fixture(scope="session", autouse=True)
def run_root() -> Iterator[Path]:
    """Short, since socket paths have a limit, and ours alone, since other clusters may run on this machine."""
    folder = tempfile.mkdtemp(prefix="cb-", dir="/tmp")
    os.environ["CALLBOARD_RUN_DIR"] = folder
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As many intra-op threads as the devices have: sums may depend on it."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_cluster(run_root: Path) -> Iterator[Any]:
    """Two CPU devices, for tests that leave them as they were."""
    import callboard

    with callboard.launch(TWO_CPU) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Any) -> Any:
    """The same; every device is ready again before the next test."""
    shared_cluster.operation("wait_ready", timeout_ms=30_000, timeout=35)
    return shared_cluster


@pytest.fixture
def unforgiving_cluster(run_root: Path) -> Iterator[Any]:
    """Two CPU devices of its own, where a death ends the calls that it meets."""
    import callboard

    with callboard.launch({**TWO_CPU, "retry": "never"}) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(run_root: Path) -> Iterator[Any]:
    """For tests that kill something."""
    import callboard

    with callboard.launch(TWO_CPU) as cluster:
        yield cluster


@pytest.fixture
def lab() -> Iterator[Lab]:
    assert os.access(FAKE, os.X_OK), f"{FAKE} is not there: build it"
    # Short: a socket's path ends at 107 bytes, and pytest's own folders are long.
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:
        made = Lab(folder)
        yield made
        for name in made.clusters():
            made("down", name, "--force")


def eventually(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """The first true answer; fails after `seconds`."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:g} s: {what}")
        pause.wait(0.02)


def device_pid(cluster: Any, name: str) -> int:
    """Process id of a device actor."""
    return next(int(a["pid"]) for a in cluster.status()["actors"] if a["name"] == name and a["role"] == "device")


def kill_device(cluster: Any, name: str) -> None:
    """SIGKILL; returns once its next incarnation is ready."""

    def state() -> tuple[int, str]:
        actor = next(a for a in cluster.status()["actors"] if a["name"] == name)
        return int(actor["incarnation"]), str(actor["state"])

    before = state()[0]
    os.kill(device_pid(cluster, name), signal.SIGKILL)
    eventually(lambda: state()[0] > before and state()[1] == "ready", f"{name} is ready again", 60)


def slow_steps(x: Any) -> Any:
    """Takes half a minute, in steps of a quarter of a second."""
    import torch

    for _ in range(120):
        x = torch.tanh(x @ x)
    return x


SLOW_SIZE = 1600


def python_command(code: str, *arguments: str) -> list[str]:
    """A client in a process of its own."""
    return [sys.executable, "-c", code, *arguments]


def client_environment() -> dict[str, str]:
    """With the package that this process uses."""
    import callboard

    package = str(Path(callboard.__file__).parent.parent)
    tests = str(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, tests])}
