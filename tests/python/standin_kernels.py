"""Python kernels for tests, good and bad.

A stand-in for the package's decorator, so that the device alone is tested: what it leaves on a function is all that a
device reads.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import torch

KEPT: list[Any] = []
EVENTS: list[str] = []
_LOCAL = threading.local()


def kernel(
    schema: str,
    *,
    fake: Callable[..., Any] | None = None,
    deterministic: bool = True,
    warm_up: Callable[[torch.device], None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """With a fake implementation it is an operator here, too, for eager calls and torch.export."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        op = schema.partition("(")[0]
        written = tuple(a.name for a in torch._C.parse_schema(schema).arguments if a.is_write)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(getattr(torch.ops, op.partition("::")[0]), op.partition("::")[2])(*args, **kwargs)

        if fake is not None:
            definition = torch.library.custom_op(op, fn, mutates_args=written, schema=schema[len(op) :])
            definition.register_fake(fake)
        call.__callboard_kernel__ = SimpleNamespace(  # type: ignore[attr-defined]
            op=op, schema=schema, mutates=written, deterministic=deterministic, target=f"{__name__}:{fn.__name__}",
            fn=fn, warm_up=warm_up,
        )  # fmt: skip
        return call

    return decorate


def one(name: str, arguments: str = "Tensor x") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A kernel with one result of its first argument's shape."""
    return kernel(f"standin::{name}({arguments}) -> Tensor", fake=lambda x, *_: torch.empty_like(x))


# -- good ----------------------------------------------------------------------------------------------------


@one("scale", "Tensor x, float factor")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@kernel("standin::pair(Tensor x) -> (Tensor, Tensor)", fake=lambda x: (torch.empty_like(x), torch.empty_like(x)))
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x * 2


@kernel(
    "standin::chunks(Tensor x, int n) -> Tensor[]",
    fake=lambda x, n: [x.new_empty(x.shape[0] // n, *x.shape[1:]) for _ in range(n)],
)
def chunks(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(n)]


@kernel("standin::add_to(Tensor(a!) total, Tensor x) -> ()", fake=lambda total, x: None)
def add_to(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


@kernel("standin::join(Tensor[] parts, Tensor? bias=None) -> Tensor", fake=lambda parts, bias=None: torch.cat(parts))
def join(parts: list[torch.Tensor], bias: torch.Tensor | None = None) -> torch.Tensor:
    joined = torch.cat(parts)
    return joined if bias is None else joined + bias


@kernel(
    'standin::described(Tensor x, *, float eps=0.5, str mode="a", int[] sizes=[1, 2], bool on=True, '
    "ScalarType? dtype=None, Scalar scale=2) -> Tensor"
)
def described(x: torch.Tensor, *, eps: float, mode: str, sizes: list[int], on: bool, dtype: Any, scale: Any) -> Any:
    EVENTS.append(repr((eps, mode, sizes, on, dtype, scale)))
    return x.clone()


@kernel("standin::noise(Tensor x) -> Tensor", fake=torch.empty_like, deterministic=False)
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


@kernel("standin::count(Tensor x) -> (int, float, bool)")
def count(x: torch.Tensor) -> tuple[int, float, bool]:
    return x.numel(), float(x.sum()), bool(x.any())


@kernel("standin::modes(Tensor x) -> Tensor")
def modes(x: torch.Tensor) -> torch.Tensor:
    """What a kernel finds around itself."""
    return torch.tensor(
        [torch.is_inference_mode_enabled(), torch.is_grad_enabled(), x.is_inference(), torch.get_num_threads() == 1]
    )


@kernel("standin::calls_here(Tensor x) -> int")
def calls_here(x: torch.Tensor) -> int:
    """How often this thread has called it."""
    _LOCAL.calls = getattr(_LOCAL, "calls", 0) + 1
    return int(_LOCAL.calls)


def plain(x: torch.Tensor) -> torch.Tensor:
    """Not decorated: the cluster file gives its schema."""
    return x - 1


def _warm(device: torch.device) -> None:
    EVENTS.append(f"warm on {device}, {torch.get_num_threads()} thread, main {threading.current_thread().name}")


@kernel("standin::warmed(Tensor x) -> Tensor", fake=torch.empty_like, warm_up=_warm)
def warmed(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float(len([event for event in EVENTS if event.startswith("warm on")])))


def warms_for_ever(device: torch.device) -> None:
    threading.Event().wait(300)


def warm_up_fails(device: torch.device) -> None:
    raise ValueError(f"no warmth on {device}")


@kernel("standin::same(Tensor(a) x) -> Tensor(a)")
def same(x: torch.Tensor) -> torch.Tensor:
    return x


@kernel("standin::row(Tensor(a) x) -> Tensor(a)")
def row(x: torch.Tensor) -> torch.Tensor:
    return x[1]


@one("from_numpy")
def from_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(numpy.full(tuple(x.shape), 5, dtype=numpy.float32))


@one("sees_storages")
def sees_storages(x: torch.Tensor) -> torch.Tensor:
    """Storages that have Python objects: of the argument and of the result."""
    y = x * 2
    KEPT.append((x.untyped_storage().nbytes(), y.untyped_storage().nbytes()))
    return y


@one("keeps_argument")
def keeps_argument(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x)
    return x + 1


@one("keeps_result")
def keeps_result(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    KEPT.append(y)
    return y


@one("spoils_kept")
def spoils_kept(x: torch.Tensor) -> torch.Tensor:
    for kept in KEPT:
        if isinstance(kept, torch.Tensor):
            kept.fill_(-1)
    KEPT.clear()
    return x.clone()


@one("helper_process")
def helper_process(x: torch.Tensor) -> torch.Tensor:
    """A process of its own: the Python that is configured, not the device's program once more."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True, check=True
    )
    return torch.full_like(x, float(done.stdout))


@one("starts_thread")
def starts_thread(x: torch.Tensor) -> torch.Tensor:
    """A thread that is still there when the kernel has returned."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    KEPT.append((thread, stop))
    return x + 1


@one("sleeps")
def sleeps(x: torch.Tensor) -> torch.Tensor:
    """As long as nobody ends the process."""
    threading.Event().wait(120)
    return x.clone()


@one("spins")
def spins(x: torch.Tensor) -> torch.Tensor:
    """In bytecode, until it is interrupted or two minutes have passed."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pass
    return x.clone()


@one("spins_stubbornly")
def spins_stubbornly(x: torch.Tensor) -> torch.Tensor:
    """Whatever is raised."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except BaseException:
            pass
    return x.clone()


@kernel("standin::adds_and_ends(Tensor(a!) total, Tensor x) -> ()", fake=lambda total, x: None)
def adds_and_ends(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)
    os._exit(7)


@one("keeps_written", "Tensor(a!) x")
def keeps_written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    KEPT.append(x)
    return x.clone()


@one("kept_sum")
def kept_sum(x: torch.Tensor) -> torch.Tensor:
    """Of what earlier calls kept."""
    return torch.stack([torch.as_tensor(float(kept.sum())) for kept in KEPT if isinstance(kept, torch.Tensor)]).sum()


@one("process_number")
def process_number(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float(os.getpid()))


@one("crashes")
def crashes(x: torch.Tensor) -> torch.Tensor:
    ctypes.string_at(8)
    return x.clone()


@one("holds_the_gil")
def holds_the_gil(x: torch.Tensor) -> torch.Tensor:
    """In C, for two minutes."""
    ctypes.PyDLL(None).sleep(120)
    return x.clone()


@one("eats_memory")
def eats_memory(x: torch.Tensor) -> torch.Tensor:
    blocks = []
    end = time.monotonic() + 120
    while time.monotonic() < end:
        blocks.append(bytearray(8 << 20))
        threading.Event().wait(0.005)
    return x.clone()


@one("recurses_in_c")
def recurses_in_c(x: torch.Tensor) -> torch.Tensor:
    """Until the stack is used up."""
    sys.setrecursionlimit(10**9)

    class Deep:
        def __repr__(self) -> str:
            return repr(self)

    repr(Deep())
    return x.clone()


@one("many_temporaries", "Tensor x, int n")
def many_temporaries(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = x + 1
    return x


@one("meets", "Tensor x, str folder")
def meets(x: torch.Tensor, folder: str) -> torch.Tensor:
    """Waits until another process is in it, too."""
    (pathlib.Path(folder) / str(os.getpid())).touch()
    end = time.monotonic() + 20
    while len(list(pathlib.Path(folder).iterdir())) < 2:
        if time.monotonic() > end:
            raise RuntimeError("nobody came")
    return x + 1


@one("allocates_between")
def allocates_between(x: torch.Tensor) -> torch.Tensor:
    """A thread allocates while no call runs; the next call returns it."""
    if KEPT:
        ready, made = KEPT.pop()
        ready.wait(60)
        return made[0]
    ready, made = threading.Event(), []
    returned = threading.Event()

    def later() -> None:
        returned.wait(0.2)
        made.append(torch.full((100_000,), 3.0))
        ready.set()

    threading.Thread(target=later, daemon=True).start()
    KEPT.append((ready, made))
    return x.clone()


# -- bad ----------------------------------------------------------------------------------------------------


@one("raises")
def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"nothing to do for {tuple(x.shape)}")


LONG_AND_COLOURED = "\x1b[31mred\x1b[0m\r and " + 40_000 * "m" + " the end"


@one("raises_long_and_coloured")
def raises_long_and_coloured(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError(LONG_AND_COLOURED)  # not the text itself: the traceback shows this line


@one("raises_with_memory")
def raises_with_memory(x: torch.Tensor) -> torch.Tensor:
    held = torch.ones(4 << 20)  # 16 MiB, in a frame that the traceback keeps
    try:
        raise KeyError("inner")
    except KeyError as inner:
        raise RuntimeError(f"outer, with {held.numel()} elements") from inner


@one("exits")
def exits(x: torch.Tensor) -> torch.Tensor:
    sys.exit(3)


@one("interrupts")
def interrupts(x: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


@one("recurses")
def recurses(x: torch.Tensor) -> torch.Tensor:
    return recurses.__callboard_kernel__.fn(x)  # type: ignore[attr-defined, no-any-return]


@one("out_of_memory")
def out_of_memory(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(1 << 50, dtype=torch.uint8)


@one("ends_process")
def ends_process(x: torch.Tensor) -> torch.Tensor:
    os._exit(9)


@one("returns_none")
def returns_none(x: torch.Tensor) -> Any:
    return None


@one("returns_dict")
def returns_dict(x: torch.Tensor) -> Any:
    return {"y": x + 1}


@one("returns_number")
def returns_number(x: torch.Tensor) -> Any:
    return 3


@one("returns_numpy")
def returns_numpy(x: torch.Tensor) -> Any:
    return numpy.ones(3)


@one("returns_list")
def returns_list(x: torch.Tensor) -> Any:
    return [x + 1]


@one("returns_sparse")
def returns_sparse(x: torch.Tensor) -> Any:
    return x.to_sparse()


class Subclass(torch.Tensor):
    """Computes in Python."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("nobody computes with it")


@one("returns_subclass")
def returns_subclass(x: torch.Tensor) -> Any:
    return torch.Tensor._make_wrapper_subclass(Subclass, x.shape)  # type: ignore[attr-defined]


@kernel("standin::returns_three(Tensor x) -> (Tensor, Tensor)")
def returns_three(x: torch.Tensor) -> Any:
    return x + 1, x + 2, x + 3


@kernel("standin::returns_nested(Tensor x) -> (Tensor, Tensor)")
def returns_nested(x: torch.Tensor) -> Any:
    return x + 1, (x + 2, x + 3)


@one("returns_argument")
def returns_argument(x: torch.Tensor) -> torch.Tensor:
    return x


@one("returns_view")
def returns_view(x: torch.Tensor) -> torch.Tensor:
    return x[:2].detach()


@kernel("standin::returns_twice(Tensor x) -> (Tensor, Tensor)")
def returns_twice(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y[:1]


@kernel("standin::returns_overlapping(Tensor[] parts) -> Tensor[]")
def returns_overlapping(parts: list[torch.Tensor]) -> Any:
    return list(torch.cat(parts).chunk(2))


@kernel("standin::parts_of(Tensor(a) x) -> Tensor(a)[]")
def parts_of(x: torch.Tensor) -> Any:
    return list(x.chunk(2))


@one("wrong_shape")
def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, 2)


@one("wrong_dtype")
def wrong_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.double()


@one("wrong_device")
def wrong_device(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, device="meta")


@kernel("standin::returns_something(Tensor(a!) x) -> ()")
def returns_something(x: torch.Tensor) -> Any:
    return x.add_(1)


@one("writes_secretly")
def writes_secretly(x: torch.Tensor) -> torch.Tensor:
    x[0].add_(1)
    return x.clone()


@one("writes_and_raises")
def writes_and_raises(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    raise ValueError("after the write")


@one("connects_back")
def connects_back(x: torch.Tensor) -> torch.Tensor:
    """A client of the cluster that waits for it."""
    import callboard

    with callboard.connect(os.environ["CALLBOARD_INSIDE_CLUSTER"]):
        return x.clone()


@kernel("standin::takes_two(Tensor x, Tensor y) -> Tensor")
def takes_two(x: torch.Tensor) -> torch.Tensor:
    return x


not_a_function = 3


@one("changes_stream")
def changes_stream(x: torch.Tensor) -> torch.Tensor:
    """On a GPU: computes late, on a stream of its own, which it leaves current."""
    if x.is_cuda:
        given = torch.cuda.current_stream(x.device)
        EVENTS.append(str(given.cuda_stream))
        other = torch.cuda.Stream(x.device)
        other.wait_stream(given)
        torch.cuda.set_stream(other)
        torch.cuda._sleep(50_000_000)
    return x * 2
