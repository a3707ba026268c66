"""Functions compiled by torch.compile, with a bound on how often, a cache that outlives the process, and a way back.

A Fusion compiles its function once for each *variant*: dtypes, devices, ranks, which arguments are there, which sizes
are 1 (torch.compile treats those as constants) and the arguments that are no tensors. All other sizes are free, so a
new batch size or sequence length does not compile anew.

Compiled code lies in $TORCHINDUCTOR_CACHE_DIR, or, where that is not set, in `inductor` in the user's cache folder
($CALLBOARD_CACHE, else $XDG_CACHE_HOME/callboard, else ~/.cache/callboard), so that the next process loads it. It is
code that the process runs: the folder must be the user's own and closed to others. It can be removed at any time. Only
the precompiled headers of PyTorch lie where it always puts them, in its folder in /tmp.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from callboard.errors import InputError, KernelError, MachineError

_LOGGER = logging.getLogger(__name__)
_VARIANTS_MAX = 64  # of one fusion: each is a compilation of seconds and some MiB; beyond it eager code runs
_POLICIES = ("eager", "error")

Results = torch.Tensor | list[torch.Tensor]


@dataclass(frozen=True)
class CompileCounters:
    """Of this process, for all of torch.compile.

    graphs         compiled, or loaded from the cache
    cache_hits     of them, loaded: no code was made, no compiler called
    cache_misses   of them, made anew
    eager_calls    calls of fusions that ran without compiled code, for whatever reason but empty tensors
    """

    graphs: int
    cache_hits: int
    cache_misses: int
    eager_calls: int


class _Variant:
    """One compiled form of a fusion. `failure` is why there is none; it stays, as the next try would end alike."""

    def __init__(self, eager: Callable[..., Results], number: int) -> None:
        self.eager = eager
        self.compiled: Callable[..., Results] = torch.compile(
            _with_own_code(eager, number), dynamic=True, fullgraph=True
        )
        self.failure = ""
        self._was_called = False

    def __call__(self, *tensors: torch.Tensor | None) -> Results:
        """Runs it compiled; the first call compiles. Other calls compile as well if they are of a new form."""
        if self._was_called:
            return self.compiled(*tensors)
        # A process's first compilation may find that the number of threads changed while it traced (from 2 to 1, on two
        # cores); torch takes that for a fault of its own and leaves the other number behind. The second try works.
        threads = torch.get_num_threads()
        try:
            try:
                return self.compiled(*tensors)
            except AssertionError as changed:
                if "changed while dynamo tracing" not in str(changed):
                    raise
                torch.set_num_threads(threads)
                return self.compiled(*tensors)
        finally:
            self._was_called = True
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


class Fusion:
    """A function of tensors that is compiled where that works. Any thread may call it.

    `make(*constants)` gives the function for these constants; it takes tensors or None, and gives a tensor or a list.
    """

    def __init__(self, operator: str, make: Callable[..., Callable[..., Results]]) -> None:
        self._operator = operator
        self._make = make
        self._variants: dict[Any, _Variant] = {}
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self.eager_calls = 0

    def eager(self, tensors: Sequence[torch.Tensor | None], constants: Sequence[Any]) -> Results:
        """The same function, one operator after the other; also for tensors without data."""
        return self._make(*constants)(*tensors)

    def __call__(
        self, tensors: Sequence[torch.Tensor | None], constants: Sequence[Any], on_compile_failure: str
    ) -> Results:
        """`on_compile_failure`: "eager" runs the operators one by one and logs why, once; "error" is a KernelError."""
        if on_compile_failure not in _POLICIES:
            raise InputError(
                f"{self._operator}: on_compile_failure is {on_compile_failure!r}; allowed: {' or '.join(_POLICIES)}",
                hint="eager runs the operators one by one where nothing can be compiled",
            )
        # Neither gradients nor whether an argument wants them may decide which code runs.
        plain = [None if tensor is None else tensor.detach() for tensor in tensors]
        if any(tensor is not None and tensor.numel() == 0 for tensor in plain):
            return self.eager(plain, constants)
        try:
            variant = self._variant(plain, tuple(constants))
        except MachineError as problem:
            self._fall_back(problem.message, problem.hint, on_compile_failure)
            return self.eager(plain, constants)
        if not variant.failure:
            try:
                with torch.no_grad():
                    return variant(*plain)
            except torch._dynamo.exc.FailOnRecompileLimitHit as full:
                self._fall_back(f"too many forms of one call: {_first_line(full)}", str(full), on_compile_failure)
            except torch._dynamo.exc.TorchDynamoException as error:
                variant.failure = _first_line(error)
                self._fall_back(variant.failure, str(error), on_compile_failure)
        else:
            self._fall_back(variant.failure, "", on_compile_failure)
        with torch.no_grad():
            return variant.eager(*plain)

    def _variant(self, tensors: Sequence[torch.Tensor | None], constants: tuple[Any, ...]) -> _Variant:
        key = (constants, tuple(None if tensor is None else _form(tensor) for tensor in tensors))
        variant = self._variants.get(key)
        if variant is None:
            prepare()
            with self._lock:
                variant = self._variants.setdefault(key, _Variant(self._make(*constants), len(self._variants)))
                if len(self._variants) > _VARIANTS_MAX:
                    variant.failure = f"there are {_VARIANTS_MAX} compiled forms of it already"
                    del self._variants[key]
        return variant

    def _fall_back(self, reason: str, detail: str, on_compile_failure: str) -> None:
        if on_compile_failure == "error":
            raise KernelError(
                f"the fusion could not be compiled: {reason}",
                operator=self._operator,
                hint="CPU devices need g++ (CXX names another compiler), GPUs need triton; on_compile_failure='eager' "
                "runs the operators one by one instead",
                detail=detail,
            )
        with self._lock:
            self.eager_calls += 1
            if reason in self._logged:
                return
            self._logged.add(reason)
        _LOGGER.warning("%s runs without compilation: %s", self._operator, reason)


def cache_folder() -> Path:
    """Where compiled code lies. Not created here."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    # torch puts its own default there when it is imported, a folder in /tmp that nobody chose.
    if given and given != default_cache_dir():
        return Path(given)
    ours = os.environ.get("CALLBOARD_CACHE")
    if ours:
        return Path(ours) / "inductor"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "callboard" / "inductor"


def counters(fusions: Sequence[Fusion]) -> CompileCounters:
    """What torch.compile has done in this process so far, and how often `fusions` went without it."""
    from torch._dynamo.utils import counters as counted

    # A hit of the cache around it, AOTAutograd's, counts as one of Inductor's, too.
    inductor = counted["inductor"]
    return CompileCounters(
        graphs=int(counted["stats"]["unique_graphs"]),
        cache_hits=int(inductor["fxgraph_cache_hit"]),
        cache_misses=int(inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]),
        eager_calls=sum(fusion.eager_calls for fusion in fusions),
    )


def warm_up(_device: torch.device) -> None:
    """What a device can do before it knows which forms it will be asked for: the imports, which take as long as a
    compilation.
    """
    with contextlib.suppress(MachineError):  # each call says so, as its policy wants
        prepare()


_PREPARED = threading.Event()
_PREPARE_LOCK = threading.Lock()


def prepare() -> None:
    """Once in a process, before its first compilation: the cache's folder, and the imports that compiling needs.

    MachineError if the folder cannot be made or others may write to it; the next call tries again.
    """
    if _PREPARED.is_set():
        return
    with _PREPARE_LOCK:
        if _PREPARED.is_set():
            return
        folder = cache_folder()
        _make_private(folder)
        # torch reads it whenever it looks for compiled code, and so do the processes that compile for this one.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        importlib.import_module("torch._inductor.compile_fx")
        _PREPARED.set()


def _make_private(folder: Path) -> None:
    """Code is loaded from there, so nobody else may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise MachineError(
            f"the folder for compiled kernels, {folder}, cannot be made: {error.strerror}",
            hint="set CALLBOARD_CACHE or TORCHINDUCTOR_CACHE_DIR to a folder of your own",
        ) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise MachineError(
            f"the folder for compiled kernels, {folder}, can be written by others, whose code would run here",
            hint=f"chmod 700 {folder}, or set CALLBOARD_CACHE or TORCHINDUCTOR_CACHE_DIR to a folder of your own",
        )


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What torch.compile makes different code for."""
    return (tensor.dtype, str(tensor.device), tuple(size == 1 for size in tensor.shape))


def _with_own_code(function: Callable[..., Results], number: int) -> Callable[..., Results]:
    """A copy with a code object of its own: torch.compile keeps what it compiled, and its limit, by code object, and
    the closures of one `make` share theirs.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


def _first_line(error: BaseException) -> str:
    """Of what went wrong inside, where torch wrapped it."""
    error = getattr(error, "inner_exception", error)
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
