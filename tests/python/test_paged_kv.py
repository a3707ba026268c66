"""The paged KV cache: blocks by callboard.kvpool, written and read by callboard.ops, against a dense cache."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

import callboard
from callboard import ops
from callboard.kvpool import BlockPool

BLOCK = 4


class PagedCache:
    """Sequences that grow and end, over one pool: what a server does."""

    def __init__(self, blocks: int, *row: int, dtype: torch.dtype = torch.float32) -> None:
        self.pool = BlockPool(blocks)
        self.cache = torch.zeros(blocks, BLOCK, *row, dtype=dtype)
        self.blocks: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def table(self, names: list[int], number: torch.dtype) -> torch.Tensor:
        width = max((len(self.blocks[name]) for name in names), default=0)
        # Entries behind a sequence's blocks are looked at by nobody, so they may say anything.
        rows = [self.blocks[name] + [-1] * (width - len(self.blocks[name])) for name in names]
        return torch.tensor(rows, dtype=number).reshape(len(names), width)

    def append(self, names: list[int], tokens: torch.Tensor, number: torch.dtype = torch.int32) -> bool:
        """Nothing where the pool has no room for all."""
        needed = []
        for name in names:
            held = len(self.blocks.setdefault(name, []))
            total = self.lengths.setdefault(name, 0) + tokens.size(1)
            needed.append(-(-total // BLOCK) - held)
        given = self.pool.allocate_many(numpy.array(needed, dtype=numpy.int32))
        if given is None:
            return False
        for name, more in zip(names, given, strict=True):
            self.blocks[name] += more
        positions = torch.tensor([self.lengths[name] for name in names], dtype=number)
        ops.paged_append(self.cache, tokens, self.table(names, number), positions)
        for name in names:
            self.lengths[name] += tokens.size(1)
        return True

    def gather(self, names: list[int], number: torch.dtype = torch.int32) -> torch.Tensor:
        lengths = torch.tensor([self.lengths[name] for name in names], dtype=number)
        return ops.paged_gather(self.cache, self.table(names, number), lengths, int(lengths.max()))

    def end(self, name: int) -> None:
        for block in self.blocks.pop(name):
            self.pool.release(block)
        del self.lengths[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64], ids=str)
@pytest.mark.parametrize("number", [torch.int32, torch.int64], ids=str)
def test_sequences_that_grow_and_end_read_as_a_dense_cache_does(dtype: torch.dtype, number: torch.dtype) -> None:
    random = numpy.random.default_rng(3)
    paged = PagedCache(24, 2, 3, dtype=dtype)
    dense: dict[int, torch.Tensor] = {}
    refused = 0
    for step in range(300):
        if dense and random.random() < 0.15:
            ended = int(random.choice(list(dense)))
            paged.end(ended)
            del dense[ended]
        names = [int(name) for name in random.choice(6, size=random.integers(1, 4), replace=False)]
        tokens = (torch.randn(len(names), int(random.integers(1, 7)), 2, 3) * 9).to(dtype)
        if not paged.append(names, tokens, number):
            refused += 1
            for name in names:
                if not paged.lengths[name]:
                    paged.end(name)
            continue
        for row, name in zip(tokens, names, strict=True):
            dense[name] = torch.cat([dense.get(name, row[:0]), row])
        found = paged.gather(names, number)
        for row, name in zip(found, names, strict=True):
            assert torch.equal(row[: len(dense[name])], dense[name]), f"step {step}"
            assert not row[len(dense[name]) :].any()
    assert refused > 0, "the pool was never full"
    for name in list(paged.blocks):
        paged.end(name)
    assert paged.pool.num_free == 24


def test_strides_of_tokens_do_not_matter_and_the_cache_must_be_contiguous() -> None:
    cache = torch.zeros(4, BLOCK, 3)
    tokens = torch.randn(3, 5, 2).permute(2, 1, 0)
    table = torch.tensor([[3, 0], [2, 1]])
    ops.paged_append(cache, tokens, table.t().contiguous().t(), torch.tensor([0, 7, 0, 9])[::2])
    assert torch.equal(ops.paged_gather(cache, table, torch.tensor([5, 5]), 5), tokens)
    with pytest.raises(RuntimeError, match="cache is not contiguous"):
        ops.paged_append(cache.transpose(0, 1), tokens, table, torch.tensor([0, 0]))


def test_what_is_out_of_range_is_named_and_nothing_is_written() -> None:
    cache = torch.zeros(4, BLOCK, 1)
    tokens, table = torch.ones(2, 2, 1), torch.tensor([[0, 1], [2, 4]])
    for positions, words in (
        ([0, 3], r"block_table\[1, 1\] is 4; cache has 4 blocks"),
        ([0, 7], "tokens 7 to 8 of sequence 1 do not fit into 2 blocks of 4"),
        ([0, -1], r"positions\[1\] is -1"),
    ):
        with pytest.raises(IndexError, match=words):
            ops.paged_append(cache, tokens, table, torch.tensor(positions))
        assert not cache.any()
    ops.paged_append(cache, tokens, table, torch.tensor([0, 1]))  # the entry that is wrong is not looked at
    for lengths, words in (([3, 9], r"lengths\[1\] is 9"), ([3, -1], r"lengths\[1\] is -1"), ([3, 5], "is 4; cache")):
        with pytest.raises(IndexError, match=words):
            ops.paged_gather(cache, table, torch.tensor(lengths), 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": torch.ones(2, 1, 3, dtype=torch.float64)}, "tokens are Double, cache is Float"),
        ({"tokens": torch.ones(2, 1, 4)}, "size 2 of tokens is 4, of cache 3"),
        ({"tokens": torch.ones(2, 1)}, "tokens have 2 dimensions, cache has 3"),
        ({"tokens": torch.ones(3, 1, 3)}, "block_table is of 2 sequences, tokens of 3"),
        ({"block_table": torch.ones(2, 2)}, "block_table is Float; it must be Int or Long"),
        ({"block_table": torch.zeros(2, dtype=torch.int32)}, "block_table has 1 dimensions"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, "positions are of 3 sequences"),
        ({"cache": torch.zeros(4)}, "cache has 1 dimensions"),
        ({"cache": torch.zeros(4, 0, 3)}, "blocks of 0 tokens"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, torch.Tensor], words: str) -> None:
    given = {
        "cache": torch.zeros(4, BLOCK, 3),
        "tokens": torch.ones(2, 1, 3),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "positions": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(RuntimeError, match=words):
        ops.paged_append(**{**given, **change})


def test_tokens_of_the_cache_itself_are_refused() -> None:
    cache = torch.zeros(4, BLOCK, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.paged_append(cache, cache[:2], torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))


def test_both_pass_opcheck() -> None:
    cache, tokens = torch.zeros(4, BLOCK, 3), torch.randn(2, 3, 3)
    table, numbers = torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 2])
    torch.library.opcheck(torch.ops.callboard.paged_append.default, (cache, tokens, table, numbers))
    torch.library.opcheck(torch.ops.callboard.paged_gather.default, (cache, table, numbers, 4))


def test_a_write_counts_the_caches_version_and_a_gradient_is_refused() -> None:
    cache, table = torch.zeros(4, BLOCK, 3), torch.zeros(1, 1, dtype=torch.int32)
    before = cache._version
    ops.paged_append(cache, torch.ones(1, 1, 3), table, torch.zeros(1, dtype=torch.int32))
    assert cache._version > before
    wanted = cache.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="derivative|not implemented"):
        ops.paged_gather(wanted, table, torch.ones(1, dtype=torch.int32), 1).sum().backward()


class PagedStep(nn.Module):
    """One step of a decoder: appends, then reads all that there is. The cache is the device's state."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(blocks, BLOCK, 3))

    def forward(self, tokens: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        torch.ops.callboard.paged_append(self.cache, tokens, table, lengths)
        return torch.ops.callboard.paged_gather(self.cache, table, lengths + tokens.size(1), 8)


def test_a_fragment_keeps_the_cache_as_its_state(cluster: Any) -> None:
    pool = BlockPool(8)
    table = torch.tensor([pool.allocate(2), pool.allocate(2)])
    tokens, lengths = torch.randn(2, 1, 3), torch.zeros(2, dtype=torch.int64)
    program = cluster.compile(PagedStep(8), (tokens, table, lengths), placement="cpu0")
    dense = torch.zeros(2, 8, 3)
    for step in range(6):
        tokens = torch.randn(2, 1, 3)
        dense[:, step] = tokens[:, 0]
        assert torch.equal(program(tokens, table, torch.full((2,), step)), dense)


def test_what_a_device_refuses_is_said_in_the_operators_words_and_the_state_stays(cluster: Any) -> None:
    table = torch.tensor([[0, 1], [2, 3]])
    step = PagedStep(4)
    program = cluster.compile(step, (torch.ones(2, 1, 3), table, torch.zeros(2, dtype=torch.int64)), placement="cpu0")
    first = program(torch.ones(2, 1, 3), table, torch.tensor([0, 0]))
    with pytest.raises(callboard.CallboardError, match=r"block_table\[1, 0\] is 9") as caught:
        program(torch.full((2, 1, 3), 5.0), torch.tensor([[0, 1], [9, 3]]), torch.tensor([0, 0]))
    assert caught.value.operator == "callboard::paged_append"
    again = program(torch.ones(2, 1, 3), table, torch.tensor([1, 1]))
    assert torch.equal(again[:, :1], first[:, :1])
    assert torch.equal(again[:, 1:2], torch.ones(2, 1, 3))
