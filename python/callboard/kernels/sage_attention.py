"""Attention by SageAttention, whichever version is installed: what each can do, how it is called, what comes back.

The package is not needed to import this; it is looked for at the first call that wants it. What the versions are, as
read in their sources:

                     1.0.6 (the newest on PyPI)                     2.x (2.2.0, built from source)
    functions        sageattn                                       sageattn and one for each kernel
    parameters       q, k, v, tensor_layout, is_causal, sm_scale,   q, k, v, tensor_layout, is_causal, sm_scale,
                     smooth_k, **ignored                            return_lse, more by kernel, **ignored
    gives            the output; return_lse=True is ignored         the output, or (output, lse) with return_lse
    lse              –                                              float32 [B, H, S], natural logarithm of
                                                                    sum(exp(q·k·sm_scale)) in both layouts; fails with
                                                                    fewer heads in k than in q (unless there is one)
    dtypes           float16, bfloat16, float32                     float16, bfloat16
    head size        64, 96, 128                                    up to 128 (padded)
    writes           its argument k (subtracts the mean)            nothing
    GPUs             8.0 and above (triton)                         by kernel, see _KERNELS
    is_causal        of both: only where q and k have as many rows
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from callboard.errors import OutputMismatch

__all__ = ["AttentionCall", "SageAttnAdapter", "SageUnsupported"]

_LOGGER = logging.getLogger(__name__)
_REASONS_MAX = 64  # logged; a reason may name sizes, and a process lives long

Capability = tuple[int, int]


@dataclass(frozen=True)
class AttentionCall:
    """How attention is to be computed, beside its tensors.

    tensor_layout  "HND": [B, heads, rows, head size]; "NHD": [B, rows, heads, head size]
    is_causal      row i sees the rows up to i
    sm_scale       factor before softmax; None: 1 / sqrt(head size)
    return_lse     also give the logarithm of softmax's sums
    """

    tensor_layout: str = "HND"
    is_causal: bool = False
    sm_scale: float | None = None
    return_lse: bool = False


Attended = tuple[torch.Tensor, torch.Tensor | None]


class SageUnsupported(Exception):
    """SageAttention cannot do it; the text is the reason, for people."""


@dataclass(frozen=True)
class _Kernel:
    """One function of 2.x: the GPUs that it has code for, as the package builds and guards it."""

    function: str
    gpus: str
    runs_on: Callable[[Capability], bool]


_KERNELS = {
    "qk_int8_pv_fp16_triton": _Kernel(
        "sageattn_qk_int8_pv_fp16_triton", "8.0 and above, but 12.0", lambda gpu: gpu >= (8, 0) and gpu != (12, 0)
    ),
    "qk_int8_pv_fp16_cuda": _Kernel("sageattn_qk_int8_pv_fp16_cuda", "8.0 and above", lambda gpu: gpu >= (8, 0)),
    "qk_int8_pv_fp8_cuda": _Kernel("sageattn_qk_int8_pv_fp8_cuda", "8.9 and above", lambda gpu: gpu >= (8, 9)),
    "qk_int8_pv_fp8_cuda_sm90": _Kernel("sageattn_qk_int8_pv_fp8_cuda_sm90", "9.0", lambda gpu: gpu == (9, 0)),
}
# What sageattn() of 2.2.0 takes by itself. It also gives each function's default accumulator, so none is passed here.
_AUTOMATIC = {
    (8, 0): "qk_int8_pv_fp16_cuda",
    (8, 6): "qk_int8_pv_fp16_triton",
    (8, 9): "qk_int8_pv_fp8_cuda",
    (9, 0): "qk_int8_pv_fp8_cuda_sm90",
    (12, 0): "qk_int8_pv_fp8_cuda",
}
SAGE_TYPES = ("auto", "sageattn", *_KERNELS)


@dataclass
class _Package:
    """The installed package, or why there is none. Looked up once: a process keeps the modules that it has."""

    module: Any = None
    version: str = ""
    parameters: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def returns_lse(self) -> bool:
        return "return_lse" in self.parameters


@dataclass
class SageAttnAdapter:
    """All handling of the package. Any thread may call it; it holds no lock while attention runs.

    module      the package, or something with its functions; None: `import sageattention` at the first call
    capability  compute capability of a device, None for one that is no GPU
    """

    module: ModuleType | Any = None
    capability: Callable[[torch.device], Capability | None] = field(default_factory=lambda: _Capabilities())
    _package: _Package | None = field(default=None, init=False, repr=False)
    _reasons: set[str] = field(default_factory=set, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sage_attention_type: str, call: AttentionCall
    ) -> Attended:
        """(output, lse or None): output contiguous, of query's shape and dtype; lse natural, float32 [B, H, S].

        `sage_attention_type` is one of SAGE_TYPES. The tensors are left as they are. SageUnsupported if the package,
        the GPU, a dtype or a shape does not fit, or the package refuses; OutputMismatch if it gives something else.
        """
        package = self._installed()
        gpu = self._gpu(query)
        _check_tensors(query, key, value, call)
        name, options = self._choose(sage_attention_type, package, gpu)
        _check_limits(package, query, key, call)
        function = getattr(package.module, name)
        if package.returns_lse:
            options["return_lse"] = call.return_lse
        else:
            key = key.clone()  # 1.0.6 subtracts the mean from its argument
        try:
            # The kernels read rows of a head as one piece.
            result = function(
                *(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value)),
                tensor_layout=call.tensor_layout,
                is_causal=call.is_causal,
                sm_scale=call.sm_scale,
                **options,
            )
        except (AssertionError, ValueError, NotImplementedError) as refusal:
            # How the package says no. Whatever else it raises went wrong while it ran.
            raise SageUnsupported(f"{name} of sageattention {package.version} refuses: {refusal}") from refusal
        return _checked(result, query, call, f"{name} of sageattention {package.version}")

    def log_once(self, reason: str) -> None:
        """One line for each reason that attention ran natively instead."""
        with self._lock:
            if reason in self._reasons or len(self._reasons) >= _REASONS_MAX:
                return
            self._reasons.add(reason)
        _LOGGER.warning("callboard::sdpa runs PyTorch's attention instead of SageAttention: %s", reason)

    def _installed(self) -> _Package:
        with self._lock:
            if self._package is None:
                self._package = _look_up(self.module)
            package = self._package
        if package.problem:
            raise SageUnsupported(package.problem)
        return package

    def _gpu(self, query: torch.Tensor) -> Capability:
        gpu = self.capability(query.device)
        if gpu is None:
            raise SageUnsupported(f"the tensors are on {query.device}, SageAttention runs on CUDA GPUs")
        if gpu < (8, 0):
            raise SageUnsupported(f"{query.device} has compute capability {_dotted(gpu)}, SageAttention needs 8.0")
        return gpu

    def _choose(self, wanted: str, package: _Package, gpu: Capability) -> tuple[str, dict[str, Any]]:
        """(function's name, options of its own)."""
        # 1.0.6 has one kernel: its automatic choice and sageattn are the same.
        if wanted == "sageattn" or (wanted == "auto" and not package.returns_lse):
            return "sageattn", {}
        if wanted == "auto":
            chosen = _AUTOMATIC.get(gpu)
            if chosen is None:
                known = ", ".join(_dotted(item) for item in _AUTOMATIC)
                raise SageUnsupported(
                    f"SageAttention has no choice for compute capability {_dotted(gpu)}, only {known}"
                )
        else:
            chosen = wanted
        kernel = _KERNELS[chosen]
        if not hasattr(package.module, kernel.function):
            raise SageUnsupported(
                f"sageattention {package.version} has no {kernel.function}; 2.x has, built for the GPU"
            )
        if not kernel.runs_on(gpu):
            raise SageUnsupported(
                f"{kernel.function} needs compute capability {kernel.gpus}, this GPU has {_dotted(gpu)}"
            )
        # As sageattn() does there: quantised by warp.
        options = {"qk_quant_gran": "per_warp"} if wanted == "auto" and gpu == (12, 0) else {}
        return kernel.function, options


class _Capabilities:
    """Compute capabilities, asked of the driver once for each device, since that is slow."""

    def __init__(self) -> None:
        self._known: dict[torch.device, Capability] = {}

    def __call__(self, device: torch.device) -> Capability | None:
        if device.type != "cuda" or torch.version.hip is not None:
            return None
        if device not in self._known:
            self._known[device] = torch.cuda.get_device_capability(device)
        return self._known[device]


def _look_up(module: Any) -> _Package:
    if module is None:
        try:
            module = importlib.import_module("sageattention")
        except ModuleNotFoundError as missing:
            if missing.name == "sageattention":
                return _Package(problem="the package sageattention is not installed")
            return _Package(problem=f"the package sageattention needs {missing.name}, which is not installed")
        except (ImportError, OSError) as broken:
            return _Package(problem=f"the package sageattention cannot be imported: {broken}")
    version = _version(module)
    try:
        parameters = frozenset(inspect.signature(module.sageattn).parameters)
    except (AttributeError, TypeError, ValueError) as problem:
        return _Package(problem=f"sageattention {version} has no sageattn that could be called: {problem}")
    missing_names = {"q", "k", "v", "tensor_layout", "is_causal", "sm_scale"} - parameters
    if missing_names or not parameters & {"return_lse", "smooth_k"}:
        return _Package(
            problem=f"sageattention {version} has a signature that is not known here: {', '.join(sorted(parameters))}"
        )
    return _Package(module=module, version=version, parameters=parameters)


def _version(module: Any) -> str:
    version = getattr(module, "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version("sageattention")
        except importlib.metadata.PackageNotFoundError:
            version = "(unknown version)"
    return str(version)


def _check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall) -> None:
    if key.shape != value.shape:
        raise SageUnsupported(f"k is {list(key.shape)} and v {list(value.shape)}, SageAttention needs one shape")
    rows = 2 if call.tensor_layout == "HND" else 1
    if call.is_causal and query.shape[rows] != key.shape[rows]:
        raise SageUnsupported(
            f"is_causal with {query.shape[rows]} rows of q and {key.shape[rows]} of k; SageAttention needs as many"
        )


def _check_limits(package: _Package, query: torch.Tensor, key: torch.Tensor, call: AttentionCall) -> None:
    """What the versions say no to, or silently do otherwise."""
    who = f"sageattention {package.version}"
    dtypes = [torch.float16, torch.bfloat16] + ([] if package.returns_lse else [torch.float32])
    if query.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise SageUnsupported(f"{who} takes {allowed}, not {str(query.dtype).removeprefix('torch.')}")
    head_size = query.shape[-1]
    if not package.returns_lse:
        if head_size not in (64, 96, 128):
            raise SageUnsupported(f"{who} has head sizes 64, 96 and 128, not {head_size}")
        if call.return_lse:
            raise SageUnsupported(f"{who} gives no lse; 2.x does")
    elif head_size > 128:
        raise SageUnsupported(f"{who} has head sizes up to 128, not {head_size}")
    heads = 1 if call.tensor_layout == "HND" else 2
    if call.return_lse and query.shape[heads] != key.shape[heads]:
        raise SageUnsupported(f"{who} gives no lse for {query.shape[heads]} heads of q over {key.shape[heads]} of k")


def _checked(result: Any, query: torch.Tensor, call: AttentionCall, who: str) -> Attended:
    output, lse = result if call.return_lse and isinstance(result, tuple) and len(result) == 2 else (result, None)
    wanted = [("output", output, query.shape, query.dtype)]
    if call.return_lse:
        batch, heads, rows = (query.shape[0], query.shape[1], query.shape[2])
        if call.tensor_layout == "NHD":
            heads, rows = rows, heads
        wanted.append(("lse", lse, torch.Size((batch, heads, rows)), torch.float32))
    for name, tensor, shape, dtype in wanted:
        if not isinstance(tensor, torch.Tensor):
            raise OutputMismatch(f"{who} gives {type(tensor).__name__} as {name}, not a tensor")
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, query.device):
            raise OutputMismatch(
                f"{who} gives as {name} {tensor.dtype} {list(tensor.shape)} on {tensor.device}, "
                f"not {dtype} {list(shape)} on {query.device}"
            )
    return output.contiguous(), None if lse is None else lse.contiguous()


def _dotted(gpu: Capability) -> str:
    return f"{gpu[0]}.{gpu[1]}"
