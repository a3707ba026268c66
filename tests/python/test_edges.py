"""What crosses from one device to another keeps what operators choose their kernels by, so that the last bits agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn


class SlicedWeight(nn.Module):
    """A view of a weight requires grad like the weight itself, and torch.matmul folds or not by that."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(96, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.transpose(0, 1), self.w[:32])


class OffTheLine(nn.Module):
    """The second part of a split does not start at a multiple of 64 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(21, 13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.split((5, 13), dim=0)
        return nn.functional.linear(second, self.w) + first.sum()


@pytest.fixture(autouse=True)
def ordinary_attention() -> Iterator[None]:
    """Eager's own shortcut for attention without gradients computes in another order; torch.export does not see it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def cuts(program: Any) -> range:
    last = max(last for fragment in program.plan() for _, last in fragment["node_ranges"])
    return range(last)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (SlicedWeight, lambda: (torch.randn(2, 5, 32),)),
        (OffTheLine, lambda: (torch.randn(18, 13),)),
        (lambda: nn.MultiheadAttention(16, 4, batch_first=True), lambda: (torch.randn(2, 5, 16),) * 3),
        (lambda: nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), lambda: (torch.randn(2, 5, 16),) * 2),
    ],
    ids=["sliced weight", "off the line", "attention", "decoder"],
)
def test_wherever_a_program_is_cut_it_gives_eagers_bits(cluster: Any, module: Any, arguments: Any) -> None:
    torch.manual_seed(5)
    model, inputs = module().eval(), arguments()
    with torch.no_grad():
        expected = model(*inputs)
        whole = cluster.compile(model, inputs, placement="cpu0")
        for cut in cuts(whole):
            program = cluster.compile(
                model, inputs, placement={"cpu0": [(0, cut)], "cpu1": [(cut + 1, cuts(whole).stop)]}
            )
            torch.testing.assert_close(program(*inputs), expected, rtol=0, atol=0, msg=lambda m, c=cut: f"cut {c}: {m}")


@pytest.mark.parametrize("options", [{}, {"return_inverse": True}, {"return_counts": True}, {"dim": 0}])
def test_a_wrong_description_of_what_nobody_reads_does_no_harm(cluster: Any, options: dict[str, Any]) -> None:
    """torch.export describes the outputs of unique() that were not asked for with a dtype that they do not have."""
    x = torch.tensor([3.0, 1, 3, 2, 1])
    program = cluster.compile(lambda a: torch.unique(a, **options), (x,))
    torch.testing.assert_close(program(x), torch.unique(x, **options), rtol=0, atol=0)
