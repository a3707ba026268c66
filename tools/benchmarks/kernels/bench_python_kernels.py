"""Python kernels that tools/bench runs on devices."""

from __future__ import annotations

import os

import torch

import callboard


@callboard.kernel(schema="benchmark::add_one(Tensor x) -> Tensor", fake=lambda x: torch.empty_like(x))
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@callboard.kernel(schema="benchmark::count_up(Tensor x, int n) -> Tensor", fake=lambda x, n: torch.empty_like(x))
def count_up(x: torch.Tensor, n: int) -> torch.Tensor:
    """Bytecode that keeps the GIL."""
    total = 0
    for i in range(n):
        total += i & 3
    return x + float(total & 1)


@callboard.kernel(schema="benchmark::process_number(Tensor x) -> Tensor", fake=lambda x: torch.empty_like(x))
def process_number(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float(os.getpid()))
