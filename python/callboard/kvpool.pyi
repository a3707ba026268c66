"""Blocks of a paged KV cache by number, and what a scheduler asks of token sequences.

Which tokens lie in a block is for the caller to say, in a block table; callboard.ops.paged_append and paged_gather
write and read by it. Importing this module needs numpy, and neither torch nor a cluster.
"""

from collections.abc import Sequence
from typing import Any

import numpy
import numpy.typing

class BlockPool:
    """A fixed number of blocks, each free or held by one or more owners.

    No lock of its own: its methods keep the GIL, which lets one thread in at a time. A call that raises has changed
    nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        """ValueError below 0 or above 2**31 - 1."""

    def allocate(self, n: int) -> list[int] | None:
        """n blocks with one owner each, ascending from a fresh pool; None if n is negative or more than are free."""

    def allocate_many(self, counts: numpy.typing.NDArray[numpy.int32] | Sequence[int]) -> list[list[int]] | None:
        """For each count a list of so many blocks: all of them, or None and the pool as it was.

        ValueError for a negative count. Keeps the GIL: counts is a Python object, whose memory may be read only with
        it, and the pool has no lock but the GIL.
        """

    def retain(self, block: int) -> None:
        """One owner more. IndexError: no such block. RuntimeError: it is free."""

    def release(self, block: int) -> None:
        """One owner less; without any the block is free. IndexError: no such block. RuntimeError: it is free."""

    @property
    def num_free(self) -> int:
        """How many blocks nobody holds."""

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""

def common_prefix(
    a: numpy.typing.NDArray[numpy.int32] | Sequence[int], b: numpy.typing.NDArray[numpy.int32] | Sequence[int]
) -> int:
    """How many tokens both have in common at their start. Lets go of the GIL while it compares.

    Two contiguous numpy int32 arrays are read where they lie, other sequences are copied first.
    """

def count_eos(tokens: numpy.typing.NDArray[Any] | Sequence[int], eos: int) -> int:
    """How many tokens are eos. int32 and int64 arrays are read where they lie, whatever their strides; other integers
    are converted first. TypeError for what holds no integers. Lets go of the GIL while it counts.
    """
