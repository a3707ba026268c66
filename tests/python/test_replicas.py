"""Programs with replicas on a real cluster, against eager."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from callboard.errors import (
    ActorDied,
    CallboardError,
    Cancelled,
    DeadlineExceeded,
    InputError,
    KernelError,
    PlacementError,
    UnsupportedError,
)
from conftest import SLOW_SIZE, device_pid, kill_device
from models import rand, same
from test_batching import Counts, Lookup, accepted, exact

ROWS = {0: Dim("batch", min=1, max=64)}
BOTH = ["cpu0", "cpu1"]


def exact_replicas(cluster: Any, **options: Any) -> Any:
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=1, max=4096)}
    return cluster.compile(
        exact, (rand(2, 8), rand(2, 8)), dynamic_shapes=(sizes, sizes), **{"replicas": BOTH, **options}
    )


def test_rows_are_divided_and_come_back_in_order(cluster: Any) -> None:
    program = exact_replicas(cluster)
    assert [fragment["device"] for fragment in program.plan()] == BOTH
    for rows, length in ((2, 5), (7, 5), (64, 4096), (33, 1000)):
        x = torch.arange(rows * length, dtype=torch.float32).reshape(rows, length)
        y = rand(rows, length)
        before = accepted(cluster)
        assert same(exact(x, y), program(x, y)) == ""
        assert accepted(cluster) - before == 2
        assert same(exact(x, y), program.submit(x, y).get()) == ""


def test_a_batch_smaller_than_the_replicas_uses_fewer(cluster: Any) -> None:
    program = exact_replicas(cluster, replicas=2)
    x, y = rand(1, 5), rand(1, 5)
    before = accepted(cluster)
    assert same(exact(x, y), program(x, y)) == ""
    assert accepted(cluster) - before == 1


def test_arguments_of_any_layout_are_divided(cluster: Any) -> None:
    program = exact_replicas(cluster)
    base = rand(500, 60)
    for x in (base.t(), base[::9], base[3:40, 1:], base[:1].expand(40, 60), cluster.empty(40, 60).copy_(base[:40])):
        rows = x[:50]
        y = rand(*rows.shape)
        assert same(exact(rows, y), program(rows, y)) == ""


def test_an_inner_dimension_may_be_the_batch(cluster: Any) -> None:
    def inner(x: Any) -> Any:
        return x * 3, x[0] - 1

    program = cluster.compile(
        inner, (rand(4, 6, 5),), dynamic_shapes=({1: Dim("batch", min=1, max=64)},), replicas=BOTH, batch_dim=1
    )
    x = rand(4, 21, 5)
    assert same(inner(x), program(x)) == ""
    large = rand(4, 64, 5)
    assert same(inner(large), program(large)) == ""


def test_whole_calls_go_to_the_replica_with_least_to_do(cluster: Any) -> None:
    program = exact_replicas(cluster, scatter=False)
    start = threading.Barrier(4)

    def work(thread: int) -> list[str]:
        start.wait()
        pairs = [(rand(3, 9) + thread, rand(3, 9)) for _ in range(15)]
        return [same(exact(*pair), program(*pair)) for pair in pairs]

    before = accepted(cluster)
    with ThreadPoolExecutor(4) as pool:
        for differences in pool.map(work, range(4)):
            assert differences == [""] * 15
    assert accepted(cluster) - before == 4 * 15


def test_whole_calls_need_no_batch(cluster: Any) -> None:
    program = cluster.compile(lambda x: x.sum(), (rand(3, 3),), replicas=BOTH, scatter=False)
    x = rand(3, 3)
    assert same(x.sum(), program(x)) == ""
    other = torch.ones(3, 3)
    assert same(other.sum(), program(other)) == ""


def test_an_error_names_its_replica_and_ends_the_call(cluster: Any) -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    program = cluster.compile(Lookup(), (ids,), dynamic_shapes=(ROWS,), replicas=BOTH)
    wrong = torch.zeros(4, 3, dtype=torch.int64)
    wrong[3, 1] = 99
    with pytest.raises(KernelError, match=r"replica 1 \(cpu1\)") as caught:
        program(wrong)
    assert caught.value.actor.startswith("cpu1#")
    with torch.no_grad():
        assert same(Lookup()(ids), program(ids)) == ""


class Slow(nn.Module):
    def forward(self, x):
        for _ in range(120):
            x = torch.tanh(x @ x)
        return x


def slow_replicas(cluster: Any) -> Any:
    return cluster.compile(Slow(), (rand(2, SLOW_SIZE, SLOW_SIZE),), dynamic_shapes=(ROWS,), replicas=BOTH)


def test_cancel_and_deadline_end_every_part(cluster: Any) -> None:
    program = slow_replicas(cluster)
    x = rand(2, SLOW_SIZE, SLOW_SIZE)
    with pytest.raises(DeadlineExceeded):
        program.submit(x, deadline=0.3).get(30)
    future = program.submit(x)
    future.cancel()
    with pytest.raises(Cancelled):
        future.get(30)


def test_a_device_that_dies_ends_the_call_with_its_replica(unforgiving_cluster: Any) -> None:
    program = slow_replicas(unforgiving_cluster)
    future = program.submit(rand(2, SLOW_SIZE, SLOW_SIZE))
    assert device_pid(unforgiving_cluster, "cpu1") > 0
    kill_device(unforgiving_cluster, "cpu1")
    with pytest.raises(ActorDied, match=r"replica 1 \(cpu1\)"):
        future.get(30)


def test_results_of_one_program_go_into_the_next(cluster: Any) -> None:
    """A gathered result is private memory: writing to it while another call reads it changes nothing there."""
    program = exact_replicas(cluster)
    x, y = rand(40, 3000), rand(40, 3000)
    result = program(x, y)["both"][0]
    want = result.clone()
    future = program.submit(result, y)
    result.zero_()
    assert same(exact(want, y), future.get()) == ""


def test_batched_calls_run_on_replicas(cluster: Any) -> None:
    batched = exact_replicas(cluster).batched(max_batch=8, max_delay=600)
    inputs = [(rand(rows, 5), rand(rows, 5)) for rows in (1, 3, 2, 2)]
    before = accepted(cluster)
    futures = [batched.submit(*each) for each in inputs]
    for each, future in zip(inputs, futures, strict=True):
        assert same(exact(*each), future.get(30)) == ""
    assert accepted(cluster) - before == 2


def test_programs_that_cannot_have_replicas_are_refused(cluster: Any) -> None:
    with pytest.raises(UnsupportedError, match="mean"):
        cluster.compile(lambda x: (x, x.mean()), (rand(2, 4),), dynamic_shapes=(ROWS,), replicas=BOTH)
    with pytest.raises(UnsupportedError, match="dynamic_shapes"):
        cluster.compile(lambda x: x + 1, (rand(2, 4),), replicas=BOTH)
    for scatter in (True, False):
        with pytest.raises(UnsupportedError, match="seen"):
            cluster.compile(Counts(), (rand(2, 4),), dynamic_shapes=(ROWS,), replicas=BOTH, scatter=scatter)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"replicas": 0}, PlacementError, "1 to 2"),
        ({"replicas": 3}, PlacementError, "1 to 2"),
        ({"replicas": []}, PlacementError, "replicas"),
        ({"replicas": "cpu0"}, PlacementError, "replicas"),
        ({"replicas": ["cpu0", 1]}, PlacementError, r"replicas\[1\]"),
        ({"replicas": ["cpu0", "cpu0"]}, PlacementError, "twice"),
        ({"replicas": ["cpu0", "cpu9"]}, CallboardError, "cpu9"),
        ({"replicas": 2, "placement": "cpu0"}, PlacementError, "one of them"),
        ({"replicas": 2, "scatter": 1}, InputError, "scatter"),
        ({"replicas": 2, "batch_dim": "0"}, InputError, "batch_dim"),
    ],
)
def test_wrong_options_are_named(cluster: Any, options: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        exact_replicas(cluster, **options)
