"""Python kernels that tests register, one of each kind. A module, since another process must be able to import them."""

from __future__ import annotations

import torch

import callboard


@callboard.kernel(fake=lambda x, factor: torch.empty_like(x))
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@callboard.kernel(
    schema="(Tensor x, Tensor? bias=None, *, bool upper=False) -> (Tensor, Tensor)",
    op="examples::extremes",
    fake=lambda x, bias, upper: (x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])),
)
def extremes(
    x: torch.Tensor, bias: torch.Tensor | None = None, *, upper: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    shifted = x if bias is None else x + bias
    low, high = shifted.amin(-1), shifted.amax(-1)
    return (high, low) if upper else (low, high)


@callboard.kernel(mutates=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total += x


@callboard.kernel(schema="(Tensor(a!) counts, Tensor x) -> Tensor", fake=lambda counts, x: torch.empty_like(x))
def count_and_copy(counts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    counts += 1
    return x.clone()


@callboard.kernel(fake=lambda xs: [torch.empty_like(x) for x in xs])
def each_negated(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [-x for x in xs]


def _fake_noise(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@callboard.kernel(deterministic=False, fake=_fake_noise)
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)
