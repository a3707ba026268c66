"""callboard.empty: tensors in memory that the devices can read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import callboard
from callboard import errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_it_is_an_ordinary_tensor_that_programs_take_as_it_lies(cluster: Any, dtype: torch.dtype) -> None:
    x = cluster.empty(300, 500, dtype=dtype)
    assert (x.shape, x.dtype, x.is_contiguous(), x.data_ptr() % 64) == ((300, 500), dtype, True, 0)
    x.copy_(torch.arange(300 * 500).reshape(300, 500) % 2)
    program = cluster.compile(lambda a: a.t().clone(), (x,))
    torch.testing.assert_close(program(x), x.t().clone(), rtol=0, atol=0)
    view = x[10:200]
    part = cluster.compile(lambda a: a * 1, (view,))
    torch.testing.assert_close(part(view), view * 1, rtol=0, atol=0)


def test_a_call_reads_the_memory_of_the_tensor_itself(cluster: Any) -> None:
    """No copy is made: what is written between two calls is seen by the second, in the same memory."""
    x = callboard.empty((512, 512), cluster=cluster)
    program = cluster.compile(lambda a: a.sum(), (x,))
    for value in (1.0, 2.0):
        x.fill_(value)
        assert float(program(x)) == value * 512 * 512


def test_empty_sizes_and_small_ones_work_like_any(cluster: Any) -> None:
    for size in ((), (0,), (3, 0), (2, 2)):
        x = cluster.empty(size)
        assert x.shape == torch.Size(size)
        x.fill_(1)
        torch.testing.assert_close(cluster.compile(lambda a: a + 1, (x,))(x), x + 1, rtol=0, atol=0)


def test_the_memory_outlives_the_connection(cluster: Any) -> None:
    with callboard.connect(cluster.run_dir) as other:
        x = other.empty(1000, 1000)
        x.fill_(3)
    assert bool((x == 3).all())


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((-1,), {}, "'size' has int -1"),
        ((2.5,), {}, "'size' has float 2.5"),
        (("3",), {}, "'size' has str '3'"),
        ((3,), {"dtype": "float32"}, "'dtype' is 'float32'"),
        ((2**62, 4), {}, ""),
    ],
)
def test_what_cannot_be_is_refused(cluster: Any, arguments: Any, options: Any, says: str) -> None:
    with pytest.raises(errors.CallboardError) as failure:
        cluster.empty(*arguments, **options)
    assert says in str(failure.value)


def test_without_a_cluster_of_its_own_it_wants_exactly_one(cluster: Any) -> None:
    with callboard.connect(cluster.run_dir), pytest.raises(errors.InputError, match=r"empty\(\) needs exactly one"):
        callboard.empty(3)
