"""callboard.kvpool: the block pool, what a scheduler asks of tokens, and what of it copies or lets go of the GIL."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import numpy
import pytest

from callboard import kvpool
from callboard.kvpool import BlockPool
from conftest import client_environment, python_command


def state(pool: BlockPool) -> tuple[int, str]:
    return pool.num_free, repr(pool)


# -- BlockPool --------------------------------------------------------------------------------------------------------


def test_a_fresh_pool_gives_its_blocks_in_ascending_order() -> None:
    pool = BlockPool(8)
    assert repr(pool) == "<BlockPool free=8>"
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(5) == [3, 4, 5, 6, 7]
    assert (pool.num_free, pool.num_blocks) == (0, 8)
    assert repr(pool) == "<BlockPool free=0>"


def test_what_cannot_be_given_is_none_and_changes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(0) == []
    for count in (5, -1, 2**40, -(2**40)):
        assert pool.allocate(count) is None
        assert pool.num_free == 4
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert pool.allocate(1) is None


def test_a_block_is_free_again_after_its_last_owner() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.retain(block)
    pool.release(block)
    assert pool.num_free == 1
    pool.release(block)
    assert pool.num_free == 2
    assert pool.allocate(1) == [block]


def test_wrong_use_raises_and_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    before = state(pool)
    for call in (pool.release, pool.retain):
        with pytest.raises(RuntimeError, match="block 1 is free"):
            call(1)
        for unknown in (3, -1, 2**40):
            with pytest.raises(IndexError, match=f"no block {unknown}"):
                call(unknown)
        with pytest.raises(TypeError):
            call("0")
    assert state(pool) == before
    for size in (-1, 2**31, 2**62):
        with pytest.raises(ValueError, match="num_blocks"):
            BlockPool(size)
    assert BlockPool(0).allocate(1) is None


def test_many_are_allocated_together_or_not_at_all() -> None:
    pool = BlockPool(6)
    assert pool.allocate_many(numpy.array([2, 0, 3], dtype=numpy.int32)) == [[0, 1], [], [2, 3, 4]]
    before = state(pool)
    assert pool.allocate_many(numpy.array([1, 1], dtype=numpy.int32)) is None
    assert state(pool) == before
    assert pool.allocate_many(numpy.array([], dtype=numpy.int32)) == []
    assert pool.allocate_many(numpy.array([1], dtype=numpy.int32)) == [[5]]


def test_counts_that_are_negative_or_overflow_are_refused() -> None:
    pool = BlockPool(4)
    for counts in ([2, -1], [-1], [5, -1]):
        with pytest.raises(ValueError, match=r"counts\[\d\] is -1"):
            pool.allocate_many(numpy.array(counts, dtype=numpy.int32))
    largest = numpy.iinfo(numpy.int32).max
    assert pool.allocate_many(numpy.full(4, largest, dtype=numpy.int32)) is None
    assert pool.allocate_many(numpy.full(4, numpy.iinfo(numpy.int64).max)) is None  # their sum is -4 in 64 bits
    assert pool.num_free == 4


def test_counts_come_in_any_integer_array_and_in_nothing_else() -> None:
    for counts in (numpy.array([1, 9, 2, 9], dtype=numpy.int32)[::2], numpy.array([1, 2], dtype=">i2"), [1, 2], (1, 2)):
        assert BlockPool(3).allocate_many(counts) == [[0], [1, 2]]
    for wrong in (numpy.array([1.0, 2.0]), numpy.array([True]), "12", None, numpy.array([1], dtype=numpy.uint64)):
        with pytest.raises((TypeError, ValueError)):
            BlockPool(3).allocate_many(wrong)
    with pytest.raises(ValueError, match="2 dimensions"):
        BlockPool(3).allocate_many(numpy.ones((1, 1), dtype=numpy.int32))


def test_against_a_model_over_many_random_calls() -> None:
    random = numpy.random.default_rng(5)
    pool = BlockPool(16)
    owners: dict[int, int] = {}
    for _ in range(4000):
        what = random.integers(4)
        if what == 0:
            count = int(random.integers(-1, 8))
            blocks = pool.allocate(count)
            assert (blocks is None) == (count < 0 or count > 16 - len(owners))
            for block in blocks or []:
                assert block not in owners
                owners[block] = 1
        elif what == 1:
            counts = random.integers(0, 4, size=3).astype(numpy.int32)
            many = pool.allocate_many(counts)
            assert (many is None) == (int(counts.sum()) > 16 - len(owners))
            for blocks in many or []:
                for block in blocks:
                    assert block not in owners
                    owners[block] = 1
        else:
            block = int(random.integers(16))
            call = pool.retain if what == 2 else pool.release
            if block not in owners:
                with pytest.raises(RuntimeError):
                    call(block)
                continue
            call(block)
            owners[block] += 1 if what == 2 else -1
            if owners[block] == 0:
                del owners[block]
        assert pool.num_free == 16 - len(owners)


def test_the_docstring_says_why_allocate_many_keeps_the_gil() -> None:
    assert "Keeps the GIL" in (BlockPool.allocate_many.__doc__ or "")
    assert "no lock" in (BlockPool.allocate_many.__doc__ or "")


def test_a_pool_beyond_memory_is_a_memory_error() -> None:
    """In a process of its own, whose address space is bounded."""
    code = (
        "import resource\n"
        "from callboard.kvpool import BlockPool\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "try:\n    BlockPool(2**31 - 1)\nexcept MemoryError:\n    print('refused')"
    )
    done = subprocess.run(
        python_command(code), env=client_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "refused", done.stderr


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_the_common_prefix_of_lists_and_arrays() -> None:
    a, b = [1, 2, 3, 4], [1, 2, 9]
    for first, second in ((a, b), (b, a)):
        assert kvpool.common_prefix(first, second) == 2
        arrays = [numpy.array(one, dtype=numpy.int32) for one in (first, second)]
        assert kvpool.common_prefix(*arrays) == 2
        assert kvpool.common_prefix(arrays[0], second) == 2
        assert kvpool.common_prefix(arrays[0][::1], numpy.array(second)) == 2
    assert kvpool.common_prefix(a, a) == 4
    assert kvpool.common_prefix([], a) == 0
    assert kvpool.common_prefix(numpy.array([1, 0, 2, 0], dtype=numpy.int32)[::2], numpy.array([1, 2], "int32")) == 2
    with pytest.raises(TypeError):
        kvpool.common_prefix(["a"], a)
    with pytest.raises(TypeError):
        kvpool.common_prefix([2**31], a)
    with pytest.raises(ValueError, match="2 dimensions"):
        kvpool.common_prefix(numpy.ones((1, 1), dtype=numpy.int32), numpy.ones(1, dtype=numpy.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", ">i4", ">i8"])
def test_eos_is_counted_in_every_integer_type(dtype: str) -> None:
    tokens = numpy.array([5, 2, 7, 2, 2], dtype=dtype)
    assert kvpool.count_eos(tokens, eos=2) == 3
    assert kvpool.count_eos(tokens[::-2], 2) == 1
    assert kvpool.count_eos(tokens[1:4], 2) == 2


def test_eos_is_not_counted_where_a_number_only_looks_like_it() -> None:
    assert kvpool.count_eos(numpy.array([2**32 + 2, 2], dtype=numpy.int64), 2) == 1
    assert kvpool.count_eos(numpy.array([-1], dtype=numpy.int32), 2**32 - 1) == 0
    for wrong in (numpy.array([2.0]), numpy.array(["2"]), numpy.array([True]), object()):
        with pytest.raises((TypeError, ValueError)):
            kvpool.count_eos(wrong, 2)
    assert kvpool.count_eos([2, 3], 2) == 1
    assert kvpool.count_eos([], 2) == 0


def test_an_unaligned_array_is_counted_right() -> None:
    raw = numpy.zeros(4 * 4 + 1, dtype=numpy.uint8)
    tokens = raw[1:].view(numpy.int32)
    tokens[:] = [2, 3, 2, 2]
    assert not tokens.flags.aligned
    assert kvpool.count_eos(tokens, 2) == 3


def peak_bytes(call: Callable[[], object]) -> int:
    """Of memory that Python and numpy ask for during the call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_numpy_memory_is_read_where_it_lies_and_converted_only_when_it_must() -> None:
    count = 1 << 20
    tokens = numpy.zeros(count, dtype=numpy.int32)
    for kept in (tokens, tokens[::2], tokens.astype(numpy.int64)):
        assert peak_bytes(lambda kept=kept: kvpool.count_eos(kept, 0)) < 64 << 10
    assert peak_bytes(lambda: kvpool.common_prefix(tokens, tokens)) < 64 << 10
    converted = tokens.astype(numpy.int16)
    assert peak_bytes(lambda: kvpool.count_eos(converted, 0)) >= 8 * count


@pytest.fixture
def no_forced_switch() -> Iterator[None]:
    """Within one call nothing but letting go of the GIL lets another thread in."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


def lets_others_in(call: Callable[[], object]) -> bool:
    """Whether a thread that waits for the GIL gets it during some of 200 calls."""
    go, ran = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(20)
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    go.set()
    inside = False
    for _ in range(200):
        call()
        inside = inside or ran.is_set()
    thread.join(20)
    return inside


def test_the_gil_is_let_go_while_tokens_are_compared_and_kept_where_the_pool_needs_it(no_forced_switch: None) -> None:
    tokens = numpy.zeros(1 << 20, dtype=numpy.int32)
    pool, none = BlockPool(4), numpy.zeros(1000, dtype=numpy.int32)
    assert lets_others_in(lambda: kvpool.common_prefix(tokens, tokens))
    assert lets_others_in(lambda: kvpool.count_eos(tokens, 1))
    assert not lets_others_in(lambda: pool.allocate_many(none))


def test_the_module_needs_neither_torch_nor_a_cluster() -> None:
    code = "import sys; from callboard import kvpool; print(kvpool.BlockPool(1), 'torch' in sys.modules)"
    done = subprocess.run(
        python_command(code), env=client_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "<BlockPool free=1> False", done.stderr
    library = pathlib.Path(kvpool.__file__)
    linked = subprocess.run(["ldd", library], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "torch" not in linked
    assert os.access(library, os.R_OK)
