"""Callboard in the rounds of its peers' benchmark: the lines that their harness takes from an extra command.

    python run_all.py --extra callboard="tools/bench --peer {bench}"

One JSON line a figure: {"metric", "value", "unit"}. The same work as the peers do, through the Python client, one
thread a device.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from figure import MIB, cpus, pids_of
from processes import all_threads_stopped, pss_bytes

if TYPE_CHECKING:
    import callboard

DEPTH = 64


def report(metric: str, value: float, unit: str) -> None:
    print(json.dumps({"metric": metric, "value": value, "unit": unit}), flush=True)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def repeated(call: Callable[[], Any], seconds: float) -> list[float]:
    call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return samples


def noop(quick: bool) -> None:
    import torch

    import callboard

    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    seconds = 0.5 if quick else 1.5
    x = torch.zeros(1)
    with callboard.launch(cpus(1)) as cluster:
        program = cluster.compile(Nothing(), (x,))
        repeated(lambda: program(x), seconds / 3)
        samples = repeated(lambda: program(x), seconds)
        report("latency_p50", percentile(samples, 0.5) * 1e6, "us")
        report("latency_p99", percentile(samples, 0.99) * 1e6, "us")

        def burst() -> None:
            for future in [program.submit(x) for _ in range(DEPTH)]:
                future.get()

        burst()
        calls, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            burst()
            calls += DEPTH
        report("burst64", calls / (time.perf_counter() - begin), "calls/s")
        flight = collections.deque(program.submit(x) for _ in range(DEPTH))
        calls, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            flight.popleft().get()
            flight.append(program.submit(x))
            calls += 1
        report("window64", calls / (time.perf_counter() - begin), "calls/s")
        for future in flight:
            future.get()


def tensor(quick: bool) -> None:
    import torch

    import callboard

    class AddOne(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    def read(result: torch.Tensor) -> float:
        flat = result.reshape(-1)
        return float(flat[::1024].sum()) + float(flat[-1])

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    sizes = {"4KiB": 4 << 10, "1MiB": MIB, "64MiB": 64 * MIB, "512MiB": 512 * MIB}
    with callboard.launch(cpus(1)) as cluster:
        for label, bytes_ in sizes.items():
            if quick and bytes_ > 64 * MIB:
                continue
            base = torch.randint(0, 8, (bytes_ // 4,), generator=generator, dtype=torch.int32).float()
            expected = read(base + 1)
            program = cluster.compile(AddOne(), (base,))
            warm, samples = (10 if bytes_ <= MIB else 4), []
            begin = time.perf_counter()
            while len(samples) < warm + 2 or (time.perf_counter() - begin < (0.3 if quick else 0.7)
                                              and len(samples) < 1000):
                ordinary = base.clone()  # new and private for every call, as for the peers
                start = time.perf_counter()
                result = program(ordinary)
                total = read(result)
                samples.append(time.perf_counter() - start)
                if abs(total - expected) > 1e-5 * abs(expected):
                    raise SystemExit(f"wrong sum {total}, expected {expected}")
                del result, ordinary
            middle = statistics.median(samples[warm:])
            report("latency_" + label, middle * 1e3, "ms")
            report("rate_" + label, 2 * bytes_ / middle / 1e9, "GB/s")


def chain(quick: bool) -> None:
    import torch

    import callboard

    count, rows, width = 200, 64, 384

    class Layer(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            weight = torch.randn(width, width, generator=torch.Generator().manual_seed(seed)) / width**0.5
            self.weight = torch.nn.Buffer(weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.weight)

    model = torch.nn.Sequential(Layer(1), Layer(2)).train(False)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(11)
    batches = [torch.randn(rows, width, generator=generator) for _ in range(count)]
    expected = [model(x) for x in batches]
    with callboard.launch(cpus(2)) as cluster:
        program = cluster.compile(model, (batches[0],), placement={"cpu0": ["0"], "cpu1": ["1"]})
        for x in batches[:20]:
            program(x)

        def pipelined() -> list[torch.Tensor]:
            flight: collections.deque[callboard.TensorFuture] = collections.deque()
            results = []
            for x in batches:
                if len(flight) == DEPTH:
                    results.append(flight.popleft().get())
                flight.append(program.submit(x))
            return results + [future.get() for future in flight]

        totals = []
        for _ in range(2 if quick else 4):
            begin = time.perf_counter()
            results = pipelined()
            totals.append(time.perf_counter() - begin)
            for got, want in zip(results, expected, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            del results
        items = []
        for x in batches:
            begin = time.perf_counter()
            program(x)
            items.append(time.perf_counter() - begin)
    report("total_200", statistics.median(totals[1:]) * 1e3, "ms")
    report("item_p50", percentile(items, 0.5) * 1e6, "us")
    report("item_p99", percentile(items, 0.99) * 1e6, "us")


def parallel(quick: bool) -> None:
    """160 sentences in batches of 8 x 64 tokens, pipelined over two devices of one thread."""
    import torch

    import callboard
    import minilm

    torch.set_num_threads(1)
    model = minilm.load_model()
    tokenizer = minilm.AutoTokenizer.from_pretrained(str(minilm.get_model_path()))
    count = 64 if quick else 160
    sentences = [minilm.SENTENCES[i % len(minilm.SENTENCES)] for i in range(count)]
    coded = tokenizer(sentences, padding="max_length", truncation=True, max_length=64, return_tensors="pt")
    work = list(zip(coded["input_ids"].split(8), coded["attention_mask"].split(8), strict=True))
    with callboard.launch(cpus(2)) as cluster, torch.inference_mode():
        program = minilm.compile_embedder(cluster, model, work[0])

        def run() -> list[torch.Tensor]:
            return [future.get() for future in [program.submit(*item) for item in work]]

        run()
        begin = time.perf_counter()
        results = run()
        seconds = time.perf_counter() - begin
        for got, item in list(zip(results, work, strict=True))[:4]:
            torch.testing.assert_close(got, model(*item), rtol=1e-3, atol=1e-4)
    report("throughput", count / seconds, "sentences/s")


def startup(quick: bool) -> None:
    import torch

    import callboard

    torch.ones(1) + 1
    x = torch.zeros(1)
    begin = time.perf_counter()
    with callboard.launch(cpus(1)) as cluster:
        cluster.op("aten::add.Tensor", x, x)
        report("first_result", time.perf_counter() - begin, "s")
        time.sleep(1)  # tidy: allow (the figure is of an idle actor)
        pids = pids_of(cluster)
        report("actor_pss", pss_bytes(pids["cpu0"]) / MIB, "MiB")
        report("system_pss", (pss_bytes(pids["node"]) + pss_bytes(pids["coordinator"])) / MIB, "MiB")


def death(quick: bool) -> None:
    """SIGKILL of a device with a call at it: until its caller has the error, and, with `retry: pure`, its value."""
    import torch

    import callboard

    def killed(retry: str) -> float:
        with callboard.launch({**cpus(1), "retry": retry}) as cluster:
            x = torch.ones(3)
            program = cluster.compile(lambda a: a + 1, (x,))
            program(x)
            (pid,) = [actor["pid"] for actor in cluster.status()["actors"] if actor["role"] == "device"]
            os.kill(pid, signal.SIGSTOP)  # like a call that hangs, and ends at once when it is run again
            while not all_threads_stopped(pid):  # one after the other, after kill() has come back
                pass
            future = program.submit(x)
            while not cluster.operation("requests")["requests"]:
                pass
            os.kill(pid, signal.SIGKILL)
            begin = time.perf_counter()
            try:
                value = future.get(60)
            except callboard.errors.ActorDied:
                value = None
            seconds = time.perf_counter() - begin
            assert (value is not None and value.tolist() == [2.0] * 3) == (retry == "pure")
            return seconds

    for metric, retry in (("detect", "never"), ("recover", "pure")):
        report(metric, statistics.median([killed(retry) for _ in range(3 if quick else 9)]) * 1e3, "ms")


PEERS: dict[str, Callable[[bool], None]] = {
    "noop": noop, "tensor": tensor, "chain": chain, "parallel": parallel, "startup": startup, "death": death}


def main(name: str, quick: bool) -> int:
    """Unknown names are no error: the harness has benchmarks without an entry here."""
    if name not in PEERS:
        print(f"no figures for '{name}'; there are: {', '.join(PEERS)}", file=sys.stderr)
        return 0
    PEERS[name](quick)
    return 0
