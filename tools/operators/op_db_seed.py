"""The Python kernel by which the proof seeds a device's generator. Runs inline: in the process of the operators."""

from __future__ import annotations

import torch

import callboard


@callboard.kernel(op="op_db::seed", deterministic=False, fake=lambda number: torch.empty_like(number))
def seed(number: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(int(number))
    return number.clone()
