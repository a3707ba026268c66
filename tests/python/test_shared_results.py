"""Results that share memory with each other, or with what the device reuses."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch


class Twice(torch.nn.Module):
    """One value given out twice, and a view of it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y, y[0]


def test_r6_a_value_that_is_an_output_twice_stays_whole_when_one_of_them_is_dropped(cluster: Any) -> None:
    x = torch.randn(512, 512)  # above what travels inline: the results lie in the device's arena, under leases
    program = cluster.compile(Twice(), (x,))
    want = x + 1
    for _ in range(5):
        first, second, row = program(x)
        del first
        gc.collect()
        for other in [program(x * factor) for factor in (2, 3, 4)]:
            del other  # the device reuses blocks whose leases ended
        assert torch.equal(second, want)
        assert torch.equal(row, want[0])


def test_r6_writing_into_a_result_reaches_no_other_call(cluster: Any) -> None:
    x = torch.randn(512, 512)
    program = cluster.compile(Twice(), (x,))
    before = program(x)
    changed = program(x)
    for tensor in changed:
        tensor.fill_(7)
    after = program(x)
    for tensor in (before[0], before[1], after[0], after[1]):
        assert torch.equal(tensor, x + 1)


class Overlapping(torch.nn.Module):
    """A tensor, itself again, views of it, the argument, a weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size, size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y, y[:-1], y.t(), x, self.weight


def changed_with(results: tuple[torch.Tensor, ...], number: int) -> set[int]:
    """Which results a write into one of them reaches."""
    before = [result.clone() for result in results]
    results[number].fill_(99)
    return {other for other, was in enumerate(before) if not torch.equal(results[other], was)}


@pytest.mark.parametrize(
    ("size", "placement", "together"),
    [
        (512, [(0, 9)], {0, 1, 2, 3}),  # above 32 KiB, one device: as in eager
        (80, [(0, 9)], set()),  # below: copies
        (512, [(0, 0)], {0, 1}),  # the views are made by the other device: only the tensor itself is shared
    ],
)
def test_which_results_of_a_call_share_memory(cluster: Any, size: int, placement: Any, together: set[int]) -> None:
    """As Program.__call__ says it."""
    x = torch.zeros(size, size)
    auto = cluster.compile(Overlapping(size), (x,), placement="cpu0")
    last = auto.plan()[0]["node_ranges"][-1][1]
    first, end = placement[0][0], min(placement[0][1], last)
    where = {"cpu0": [(first, end)], **({"cpu1": [(end + 1, last)]} if end < last else {})}
    program = cluster.compile(Overlapping(size), (x,), placement=where)
    for number in range(6):
        reached = changed_with(program(x), number)
        if number in together:
            assert reached == together, number
        elif not together or number in (4, 5):
            assert reached == {number}, number
        else:
            assert not reached & (together | {4, 5}), number
    assert torch.equal(x, torch.zeros(size, size))
    assert torch.equal(program(x)[5].detach(), torch.ones(size, size))
