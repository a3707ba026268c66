"""Large tensors handed over."""

from __future__ import annotations

import statistics

from figure import MIB, Figure, alternating, cpus, timed, with_yardstick

FLOAT = 4


def hand_over(rounds: int, quick: bool) -> list[Figure]:
    import torch

    import callboard

    torch.set_num_threads(1)

    class Made(torch.nn.Module):
        """Its result costs no computation: what is left is handing it over."""

        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self) -> torch.Tensor:
            return torch.empty(self.count)

    class AddOne(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class First(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[0].clone()

    inner = 5 if quick else 15
    with callboard.launch(cpus(1)) as cluster:
        large = cluster.compile(Made(1024 * MIB // FLOAT), ())
        small = cluster.compile(Made(MIB // FLOAT), ())
        returned = alternating(rounds, 10 * inner, large, small)

        shared = cluster.empty(64 * MIB // FLOAT)
        shared.copy_(torch.arange(shared.numel()) % 7)
        private = shared.clone()
        add = cluster.compile(AddOne(), (shared,))
        expected = (private + 1).sum()
        torch.testing.assert_close(add(shared).sum(), expected, rtol=0, atol=0)
        added = alternating(rounds, inner, lambda: add(shared).sum(), lambda: (private + 1).sum())

        send = cluster.compile(First(), (private,))
        torch.testing.assert_close(send(private), private[0], rtol=0, atol=0)
        warm = torch.empty_like(private)
        sent = alternating(rounds, inner, lambda: send(private), lambda: warm.copy_(private))
    return [with_yardstick("return_1gib", returned, "us", 1.3, "an uncomputed result of 1 GiB, against one of 1 MiB"),
            with_yardstick("remote_add_64mib", added, "us", 0.7,
                           "64 MiB of shared memory there, + 1, back, all elements read; against one process"),
            with_yardstick("send_64mib", sent, "us", 1.5, "an ordinary tensor of 64 MiB as argument, against a copy")]


def two_stage_chain(rounds: int, quick: bool) -> list[Figure]:
    import collections

    import torch

    import callboard

    torch.set_num_threads(1)
    items, in_flight, width = 200, 64, 384

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x))

    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layer(), Layer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    torch.manual_seed(11)
    model = Chain().train(False)
    inputs = [torch.randn(64, width) for _ in range(items)]
    pairs = []
    with callboard.launch(cpus(2)) as cluster, torch.inference_mode():
        program = cluster.compile(model, (inputs[0],), placement={"cpu0": ["first"], "cpu1": ["second"]})
        expected = [model(x) for x in inputs]

        def ours() -> list[torch.Tensor]:
            window: collections.deque[callboard.TensorFuture] = collections.deque()
            results = []
            for x in inputs:
                if len(window) == in_flight:
                    results.append(window.popleft().get())
                window.append(program.submit(x))
            return results + [future.get() for future in window]

        for result, want in zip(ours(), expected, strict=True):
            torch.testing.assert_close(result, want, rtol=0, atol=0)
        inner = 3 if quick else 8
        for _ in range(rounds):
            mine, theirs = [], []
            for _ in range(inner):
                mine.append(timed(ours))
                theirs.append(timed(lambda: [model(x) for x in inputs]))
            pairs.append((statistics.median(mine), statistics.median(theirs)))
    return [with_yardstick("two_stage_chain", pairs, "us", 1.25,
                           "200 items of 64 x 384 through two devices, one layer each; against one process")]
