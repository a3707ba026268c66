"""submit() where there is no room: it waits, bounded and in order, and every way out of the wait."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import callboard
from callboard import errors
from conftest import SLOW_SIZE, client_environment, eventually, python_command, slow_steps
from models import rand

PLACES = 4
CLUSTER = {
    "devices": [{"kind": "cpu", "count": 2, "threads": 1, "memory_limit": "1GiB"}],
    "limits": {"requests_per_client": PLACES},
}


@pytest.fixture(scope="module")
def narrow(run_root: Path) -> Iterator[Any]:
    with callboard.launch(CLUSTER) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slow(narrow: Any) -> Any:
    return narrow.compile(slow_steps, (rand(SLOW_SIZE, SLOW_SIZE),), placement="cpu1", name="slow")


@pytest.fixture
def full(narrow: Any, slow: Any) -> Iterator[list[Any]]:
    """As many calls as there may be, none of which ends by itself for a while."""
    x = rand(SLOW_SIZE, SLOW_SIZE)
    futures = [slow.submit(x) for _ in range(PLACES)]
    yield futures
    for future in futures:
        future.cancel()
    for future in futures:
        future.wait()
    # A cancelled call keeps its place until its device has stopped.
    eventually(lambda: in_flight(narrow) == 0, "the places are free")


def in_flight(cluster: Any) -> int:
    return len(cluster.operation("requests")["requests"])


def test_thousands_of_submits_from_many_threads_are_bounded_and_keep_their_order(narrow: Any) -> None:
    class Log(torch.nn.Module):
        """Keeps the order in which its calls ran."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            return self.calls.clone(), x * 2

    threads_count, each = 8, 250
    program = narrow.compile(Log(), (rand(2),), placement="cpu0")
    orders: list[list[int]] = [[] for _ in range(threads_count)]
    wrong: list[str] = []
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        with callboard.connect(narrow.run_dir) as observer:
            while not done.is_set():
                most = max(most, in_flight(observer))

    def work(number: int) -> None:
        futures = []
        for i in range(each):
            x = torch.tensor([float(number), float(i)])
            futures.append((x, program.submit(x)))
        for x, future in futures:
            count, doubled = future.get(60)
            orders[number].append(int(count))
            if not torch.equal(doubled, x * 2):
                wrong.append(f"{x} gave {doubled}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    done.set()
    watcher.join(30)
    assert not wrong
    assert 1 <= most <= PLACES
    for order in orders:
        assert order == sorted(order)
    assert sorted(count for order in orders for count in order) == list(range(1, threads_count * each + 1))


def test_large_arguments_wait_for_memory_and_keep_it_bounded(narrow: Any) -> None:
    limit = 24 << 20
    with callboard.connect(narrow.run_dir, memory_limit=limit) as client:
        program = client.compile(lambda x: x.sum(), (torch.ones(2 << 20),), placement="cpu0")
        x = torch.ones(2 << 20)  # 8 MiB: two or three of them fit
        futures = [program.submit(x) for _ in range(60)]
        assert {float(future.get(60)) for future in futures} == {float(2 << 20)}
        device = client.operation("device_query", device="cpu0", name="memory")
        assert device["reserved_bytes"] < 1 << 30
        never = torch.ones(limit // 4 + 1)
        big = client.compile(lambda x: x.sum(), (never,), placement="cpu0")
        with pytest.raises(errors.OutOfMemory, match="they never fit"):
            big.submit(never)


def test_without_waiting_a_call_beyond_the_limit_is_refused_at_once(slow: Any, full: list[Any]) -> None:
    with pytest.raises(errors.Overloaded, match=f"{PLACES} requests in flight, of {PLACES}") as caught:
        slow.submit(rand(SLOW_SIZE, SLOW_SIZE), wait=False)
    assert "limits.requests_per_client" in str(caught.value)
    assert len(full) == PLACES


def test_at_its_deadline_a_waiting_call_says_what_was_full(slow: Any, full: list[Any]) -> None:
    with pytest.raises(errors.DeadlineExceeded, match=f"was not sent: .*{PLACES} requests in flight, of {PLACES}"):
        slow.submit(rand(SLOW_SIZE, SLOW_SIZE), deadline=0.05)
    assert not any(future.is_ready() for future in full)


def test_a_waiting_call_holds_no_gil_and_goes_when_another_ends(slow: Any, full: list[Any]) -> None:
    sent: list[Any] = []
    waiting = threading.Thread(target=lambda: sent.append(slow.submit(rand(SLOW_SIZE, SLOW_SIZE))))
    waiting.start()
    # This thread runs on, and makes the room that the other one waits for.
    full[0].cancel()
    waiting.join(30)
    assert sent
    sent[0].cancel()
    sent[0].wait()


def end_of_a_waiting_call(program: Any, x: torch.Tensor, end: Callable[[], None]) -> BaseException:
    """Lets another thread submit where there is no room, calls `end`, and gives the error of that submit()."""
    ends: list[BaseException] = []
    began = threading.Event()

    def wait_for_room() -> None:
        began.set()
        try:
            program.submit(x).get()
        except errors.CallboardError as error:
            ends.append(error)

    waiting = threading.Thread(target=wait_for_room)
    waiting.start()
    assert began.wait(10)
    end()
    waiting.join(30)
    assert len(ends) == 1
    return ends[0]


def test_closing_ends_the_wait(narrow: Any, tmp_path: Path, slow: Any) -> None:
    slow.save(tmp_path / "slow")
    client = callboard.connect(narrow.run_dir)
    program = client.load(tmp_path / "slow")
    x = rand(SLOW_SIZE, SLOW_SIZE)
    futures = [program.submit(x) for _ in range(PLACES)]
    assert isinstance(end_of_a_waiting_call(program, x, client.close), errors.Cancelled)
    assert len(futures) == PLACES


def test_an_event_loop_refuses_at_once_or_waits_in_a_thread(narrow: Any) -> None:
    program = narrow.compile(lambda x: x + 1, (rand(2),), placement="cpu0")

    async def work() -> list[float]:
        places = asyncio.Semaphore(PLACES // 2)

        async def one(i: int) -> float:
            async with places:
                result = await program.submit(torch.full((2,), float(i)), wait=False)
            return float(result[0])

        bounded = await asyncio.gather(*(one(i) for i in range(50)))
        values = [torch.full((2,), float(i)) for i in range(20)]
        threaded = await asyncio.gather(*(asyncio.to_thread(program.submit, value) for value in values))
        return bounded + [float((await future)[0]) for future in threaded]

    assert asyncio.run(work()) == [float(i + 1) for i in range(50)] + [float(i + 1) for i in range(20)]


def test_batched_and_replicated_programs_wait_for_room(narrow: Any) -> None:
    from torch.export import Dim

    sizes = ({0: Dim("batch", min=1, max=64)},)
    inner = narrow.compile(lambda x: x * 3, (rand(2, 3),), dynamic_shapes=sizes, replicas=2)
    program = inner.batched(max_batch=4, max_delay=0.001, max_queued=16)
    futures = [(i, program.submit(torch.full((1, 3), float(i)))) for i in range(400)]
    assert all(torch.equal(future.get(60), torch.full((1, 3), 3.0 * i)) for i, future in futures)
    held = inner.batched(max_batch=64, max_delay=3600, max_queued=2)
    waiting = [held.submit(rand(1, 3)) for _ in range(2)]
    with pytest.raises(errors.Overloaded, match="max_queued"):
        held.submit(rand(1, 3), wait=False)
    with pytest.raises(errors.DeadlineExceeded, match="max_queued"):
        held.submit(rand(1, 3), deadline=0.05)
    for future in waiting:
        future.cancel()


INTERRUPTED = """
import sys, torch, callboard
cluster = callboard.connect(sys.argv[1])
program = cluster.load(sys.argv[2])
x = torch.randn(1600, 1600)
futures = [program.submit(x) for _ in range(int(sys.argv[3]))]
try:
    print("full", flush=True)  # from here on the signal may come
    program.submit(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    for future in futures:
        future.cancel()
    for future in futures:
        future.wait()
    print(cluster.op("aten::add.Tensor", torch.ones(2), 1).tolist(), flush=True)
"""


def test_ctrl_c_ends_a_wait_for_room(narrow: Any, slow: Any, tmp_path: Path) -> None:
    slow.save(tmp_path / "slow")
    process = subprocess.Popen(
        python_command(INTERRUPTED, narrow.run_dir, str(tmp_path / "slow"), str(PLACES)),
        env=client_environment(), stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "full\n"
    eventually(lambda: in_flight(narrow) == PLACES, "the calls are in flight")
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert time.monotonic() - start < 5  # far less than the call's two minutes
    assert process.stdout.readline() == "[2.0, 2.0]\n"
    assert process.wait(20) == 0


def test_the_end_of_the_cluster_ends_the_wait(run_root: Path, tmp_path: Path, slow: Any) -> None:
    slow.save(tmp_path / "slow")
    with callboard.launch(CLUSTER) as cluster:
        program = cluster.load(tmp_path / "slow")
        x = rand(SLOW_SIZE, SLOW_SIZE)
        futures = [program.submit(x) for _ in range(PLACES)]
        kill = functools.partial(os.kill, cluster.record["coordinator_pid"], signal.SIGKILL)
        assert isinstance(end_of_a_waiting_call(program, x, kill), errors.CoordinatorLost)
        assert len(futures) == PLACES
