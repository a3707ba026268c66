"""Small tensors inside their message against the same in shared memory: what limits::kInlineBytesMax is measured by.

Both ways with the same binaries: CALLBOARD_INLINE_BYTES moves the limit below and above all sizes. It is read once in a
process, so each round of each way is a process (and a cluster) of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict

from figure import Figure, Pairs, cpus, timed, with_yardstick

KIB = 1024
SIZES = [4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, 960 * KIB]
LIMIT = 32 * KIB  # limits::kInlineBytesMax
ALWAYS, NEVER = (1 << 20) - 64, 0
SLACK = 0.15  # around the crossing the two ways cost the same, and rounds differ by so much


def measure(quick: bool) -> dict[str, float]:
    """Microseconds by way and size, in this process, with whatever limit it has."""
    import torch

    import callboard

    torch.set_num_threads(1)
    inner = 100 if quick else 400

    class First(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:1].clone()

    class Made(torch.nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.expand(self.count).clone()

    class Crossing(torch.nn.Module):
        """From one device to the other."""

        def __init__(self, count: int) -> None:
            super().__init__()
            self.made, self.first = Made(count), First()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(self.made(x))

    one, took = torch.ones(1), {}
    with callboard.launch(cpus(2)) as cluster:
        for size in SIZES:
            count = size // 4
            argument = torch.ones(count)
            send = cluster.compile(First(), (argument,), placement="cpu0")
            fetch = cluster.compile(Made(count), (one,), placement="cpu0")
            cross = cluster.compile(Crossing(count), (one,), placement={"cpu0": ["made"], "cpu1": ["first"]})
            ways = {"send": lambda send=send, argument=argument: send(argument),
                    "return": lambda fetch=fetch: fetch(one).sum(),  # who gets it reads it
                    "edge": lambda cross=cross: cross(one)}
            for way, call in ways.items():
                for _ in range(20):
                    call()
                took[f"{way}/{size // KIB}KiB"] = statistics.median(timed(call) for _ in range(inner))
    return took


def sweep(rounds: int, quick: bool) -> list[Figure]:
    pairs: dict[str, Pairs] = defaultdict(list)
    for _ in range(rounds):
        inline, arena = (json.loads(subprocess.run(
            [sys.executable, __file__, *(["--quick"] if quick else [])], check=True, capture_output=True, text=True,
            timeout=600, env={**os.environ, "CALLBOARD_INLINE_BYTES": str(limit)}).stdout) for limit in (ALWAYS, NEVER))
        for name in inline:
            pairs[name].append((inline[name], arena[name]))
    figures = []
    for name, each in pairs.items():
        below = int(name.split("/")[1].removesuffix("KiB")) * KIB <= LIMIT
        figures.append(with_yardstick(f"inline_threshold/{name}", each, "us", 1 + SLACK if below else 1 - SLACK,
                                      "inside the message, against shared memory", at_least=not below))
    return figures


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv)))
