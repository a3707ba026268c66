"""Callboard's own operators beside PyTorch's: in this process, without a cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from figure import Figure, Pairs, with_yardstick

ROWS = [(64, 384), (512, 1024), (4096, 4096)]
SECONDS_PER_BATCH = 0.002  # calls of a few microseconds are timed many at once


def rms_norm(rounds: int, quick: bool) -> list[Figure]:
    import torch

    from callboard import ops

    torch.set_num_threads(1)
    figures = []
    for rows, width in ROWS:
        x, weight = torch.randn(rows, width), torch.rand(width)
        ours = partial(ops.rms_norm, x, weight, 1e-6)
        theirs = partial(torch.nn.functional.rms_norm, x, (width,), weight, 1e-6)
        torch.testing.assert_close(ours(), theirs())
        with torch.no_grad():
            pairs = _batches(rounds, 5 if quick else 25, ours, theirs)
        what = f"callboard.ops.rms_norm of {rows} x {width} float32 on one thread, against torch.nn.functional.rms_norm"
        figures.append(with_yardstick(f"rms_norm_cpu/{rows}x{width}", pairs, "us", 1.0, what))
    return figures


def _batches(rounds: int, inner: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Pairs:
    """Medians of `inner` batches of calls of each, in turn, in every round."""
    count = 1
    while _seconds(theirs, count) < SECONDS_PER_BATCH:
        count *= 2
    pairs = []
    for _ in range(rounds):
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(inner):
            for times, call in zip(taken, (ours, theirs), strict=True):
                times.append(_seconds(call, count) / count * 1e6)
        pairs.append((statistics.median(taken[0]), statistics.median(taken[1])))
    return pairs


def _seconds(call: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begin
