"""What becomes of calls whose device dies under them: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import callboard
from callboard import errors
from cli_support import callboard as callboard_command
from conftest import SLOW_SIZE, TWO_CPU, device_pid, eventually, kill_device, slow_steps
from models import rand


@pytest.fixture
def launch(run_root: Any) -> Iterator[Any]:
    opened: list[Any] = []

    def start(**more: Any) -> Any:
        opened.append(callboard.launch({**TWO_CPU, **more}))
        return opened[-1]

    yield start
    for cluster in opened:
        cluster.close()


def kill_while_pending(cluster: Any, device: str, submit: Any) -> Any:
    """Stops the device, submits, and kills the device with the call at it."""
    pid = device_pid(cluster, device)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all_threads_stopped(pid), "the device stands still")
    future = submit()
    eventually(lambda: running(cluster), "the call is at its devices")
    os.kill(pid, signal.SIGKILL)
    return future


def all_threads_stopped(pid: int) -> bool:
    """A signal has been sent when kill() returns; the threads stop one after the other."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state == "T" for state in states)


def running(cluster: Any) -> list[Any]:
    return [request for request in cluster.operation("requests")["requests"] if request["state"] == "running"]


def counters(cluster: Any) -> dict[str, int]:
    return dict(cluster.operation("status")["counters"])


@pytest.mark.parametrize("victim", ["cpu0", "cpu1"])
def test_a_pure_call_survives_the_death_of_either_device(launch: Any, victim: str) -> None:
    cluster = launch()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    x = rand(8, 16)
    program = cluster.compile(model, (x,), placement={"cpu0": ["0", "1"], "cpu1": ["2"]})
    future = kill_while_pending(cluster, victim, lambda: program.submit(x))
    with torch.no_grad():
        assert torch.equal(future.get(60), model(x))
    found = counters(cluster)
    assert (found["ok"], found["failed"], found["retried"]) == (1, 0, 1)


def test_many_calls_with_large_tensors_survive_and_are_right(launch: Any) -> None:
    """The inputs are the caller's memory: they are read again by the next incarnation, and freed after it."""
    cluster = launch()
    program = cluster.compile(lambda x, y: (x * y + 1, x.sum()), (rand(400, 300), rand(400, 300)), placement="cpu0")
    pairs = [(rand(400, 300), rand(400, 300)) for _ in range(12)]
    futures = kill_while_pending(cluster, "cpu0", lambda: [program.submit(x, y) for x, y in pairs])
    for (x, y), future in zip(pairs, futures, strict=True):
        product, total = future.get(60)
        assert torch.equal(product, x * y + 1)
        assert torch.equal(total, x.sum())
    assert counters(cluster)["failed"] == 0


def test_with_retry_never_the_death_is_the_calls_error(launch: Any) -> None:
    cluster = launch(retry="never")
    program = cluster.compile(lambda x: x + 1, (rand(3),), placement="cpu0")
    future = kill_while_pending(cluster, "cpu0", lambda: program.submit(rand(3)))
    with pytest.raises(errors.ActorDied, match="SIGKILL"):
        future.get(60)
    assert counters(cluster)["retried"] == 0


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


def test_a_call_with_state_is_not_run_twice(launch: Any) -> None:
    cluster = launch()
    program = cluster.compile(Counter().eval(), (rand(1),), placement="cpu0")
    assert program(torch.zeros(1)).item() == 1
    future = kill_while_pending(cluster, "cpu0", lambda: program.submit(torch.zeros(1)))
    with pytest.raises(errors.ActorDied, match="does not run again by itself"):
        future.get(60)
    with pytest.raises(errors.StateLost):
        program(torch.zeros(1))
    assert program(torch.zeros(1)).item() == 1


def test_a_call_expires_while_its_device_stays_away(launch: Any) -> None:
    cluster = launch(restart={"backoff": {"min": "30s", "max": "60s"}})
    program = cluster.compile(lambda x: x + 1, (rand(3),), placement="cpu0")
    kill_device(cluster, "cpu0")  # the first restart comes at once, the next one after the backoff
    future = kill_while_pending(cluster, "cpu0", lambda: program.submit(rand(3), deadline=3.0))
    with pytest.raises(errors.DeadlineExceeded, match="waited for device 'cpu0', which is down"):
        future.get(20)


def test_a_kernel_that_ends_its_process_twice_is_quarantined_and_can_be_released(launch: Any) -> None:
    cluster = launch(
        devices=[{"kind": "cpu", "threads": 1}],
        python={"path": [str(Path(__file__).parent)], "kernels": [{"target": "standin_kernels:ends_process"}]},
    )
    import standin_kernels

    bad = cluster.compile(lambda x: standin_kernels.ends_process(x), (rand(4),))
    good = cluster.compile(lambda x: x + 1, (rand(4),))
    with pytest.raises(errors.Quarantined, match="2 device processes in succession") as refused:
        bad(rand(4))
    assert any("exited with code 9" in cause.message for cause in refused.value.causes)
    with pytest.raises(errors.Quarantined):
        bad(rand(4))
    assert torch.equal(good(torch.ones(4)), torch.full((4,), 2.0))
    (entry,) = cluster.operation("quarantine")["quarantine"]
    assert (entry["kills"], entry["quarantined"]) == (2, True)
    listed = callboard_command("quarantine", "--cluster", cluster.run_dir)
    assert listed.returncode == 0
    assert entry["program"][:12] in listed.stdout and "quarantined" in listed.stdout and "cpu0" in listed.stdout
    unknown = callboard_command("quarantine", "release", "no-such", "--cluster", cluster.run_dir)
    assert unknown.returncode == 2 and "callboard quarantine" in unknown.stderr
    released = callboard_command(
        "quarantine", "release", entry["program"][:10].upper(), "--cluster", cluster.run_dir, "-o", "json"
    )
    assert json.loads(released.stdout) == {"released": entry["program"]}
    assert "no program" in callboard_command("quarantine", "--cluster", cluster.run_dir).stdout


def test_a_crash_tells_its_signal_who_sent_it_and_where_it_was(launch: Any) -> None:
    cluster = launch(retry="never")
    program = cluster.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),), placement="cpu0")
    future = program.submit(rand(SLOW_SIZE, SLOW_SIZE))
    eventually(lambda: running(cluster), "the call runs")
    os.kill(device_pid(cluster, "cpu0"), signal.SIGSEGV)
    with pytest.raises(errors.ActorDied, match="SIGSEGV") as died:
        future.get(60)
    assert f"crash: SIGSEGV sent by process {os.getpid()}; the thread was in:" in died.value.detail
    assert "[0x" in died.value.detail
