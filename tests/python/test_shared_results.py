"""Results that share memory with each other, or with what the device reuses."""

from __future__ import annotations

import gc
from typing import Any

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
