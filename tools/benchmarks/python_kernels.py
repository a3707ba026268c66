"""Python kernels: what a call costs, and what Python does to others while it holds the GIL."""

from __future__ import annotations

from figure import BIN, Figure, Pairs, json_of, with_yardstick


def inline(rounds: int, quick: bool) -> list[Figure]:
    what = "an empty Python kernel in a chain of 1,000, against a C++ loop of take the GIL, wrap, call, unwrap, release"
    return [with_yardstick("python_kernel_inline", _pairs("calls", rounds, quick), "us", 1.6, what)]


def streams(rounds: int, quick: bool) -> list[Figure]:
    what = "a C++ kernel in a chain of 1,000 while another thread holds the GIL, against nobody holding it"
    return [with_yardstick("gil_does_not_block_streams", _pairs("streams", rounds, quick), "us", 1.2, what)]


def _pairs(what: str, rounds: int, quick: bool) -> Pairs:
    """A fresh process each round."""
    pairs = []
    for _ in range(rounds):
        line = json_of(BIN / "bench-python-kernel", what, "5" if quick else "20")
        pairs.append((line["ours_us"], line["yardstick_us"]))
    return pairs
