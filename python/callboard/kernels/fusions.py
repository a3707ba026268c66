"""Chains of operators as one kernel each, compiled by torch.compile (with g++ on CPUs, with triton on GPUs).

    callboard::layer_norm_mul_add        layer norm, then scaled and shifted for each item of the batch
    callboard::silu_linear_chunk         linear(silu(emb)), split
    callboard::apply_rotary_emb          rotary embedding by tables of cosines and sines
    callboard::apply_rotary_emb_complex  rotary embedding by a complex table

Each runs on CPU and CUDA tensors of one device. The first call of a form (dtype, rank, which arguments are there)
compiles: seconds, or a fraction of one where an earlier process left the code in cache_folder(). Other sizes use the
same code. Where nothing can be compiled, `on_compile_failure` decides: "eager", the default, runs the operators one by
one and logs why, once; "error" raises KernelError. Compiled code rounds once where eager code in half precision rounds
after each operator, so its results differ from eager ones by such roundings.

Results are new and contiguous; no gradient goes through. Arguments that do not fit are an InputError. The functions
whose names end in _eager do the same by PyTorch's operators alone: the compiled ones are measured by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch.nn import functional

from callboard.errors import InputError
from callboard.kernels import _compile
from callboard.kernels._compile import CompileCounters, Fusion, Results, cache_folder
from callboard.kernels._registration import kernel

__all__ = [
    "CompileCounters",
    "apply_rotary_emb",
    "apply_rotary_emb_complex",
    "apply_rotary_emb_complex_eager",
    "apply_rotary_emb_eager",
    "cache_folder",
    "compile_counters",
    "layer_norm_mul_add",
    "layer_norm_mul_add_eager",
    "silu_linear_chunk",
    "silu_linear_chunk_eager",
]


# -- layer norm, multiply, add ----------------------------------------------------------------------------------------


def _make_layer_norm_mul_add(dimensions: int, eps: float) -> Callable[..., Results]:
    def layer_norm_mul_add(
        x: torch.Tensor,
        scale: torch.Tensor,
        shift: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        normed = functional.layer_norm(x, x.shape[-dimensions:], weight, bias, eps)
        return (normed * (1 + scale[:, None]) + shift[:, None]).contiguous()

    return layer_norm_mul_add


_LAYER_NORM_MUL_ADD = Fusion("callboard::layer_norm_mul_add", _make_layer_norm_mul_add)


def layer_norm_mul_add_eager(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    normalized_shape: list[int],
    eps: float,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """As layer_norm_mul_add, operator by operator."""
    _check_layer_norm_mul_add(x, scale, shift, normalized_shape)
    result = _LAYER_NORM_MUL_ADD.eager((x, scale, shift, weight, bias), (len(normalized_shape), eps))
    return cast(torch.Tensor, result)


def _fake_layer_norm_mul_add(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, normalized_shape: list[int], *_: object, **__: object
) -> torch.Tensor:
    _check_layer_norm_mul_add(x, scale, shift, normalized_shape)
    return x.new_empty(x.shape, dtype=torch.promote_types(torch.promote_types(x.dtype, scale.dtype), shift.dtype))


@kernel(fake=_fake_layer_norm_mul_add, warm_up=_compile.warm_up)
def layer_norm_mul_add(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    normalized_shape: list[int],
    eps: float,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    on_compile_failure: str = "eager",
) -> torch.Tensor:
    """layer_norm(x, normalized_shape, weight, bias, eps) · (1 + scale[:, None]) + shift[:, None].

    x [B, S, D]; scale and shift [B, D]; normalized_shape the last sizes of x, mostly [D]; weight and bias have
    that shape. Gives [B, S, D] in the dtype that PyTorch's promotion gives (that of x, if all have one).
    """
    _check_layer_norm_mul_add(x, scale, shift, normalized_shape)
    result = _LAYER_NORM_MUL_ADD((x, scale, shift, weight, bias), (len(normalized_shape), eps), on_compile_failure)
    return cast(torch.Tensor, result)


def _check_layer_norm_mul_add(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, normalized_shape: list[int]
) -> None:
    operator = "callboard::layer_norm_mul_add"
    _require(x.dim() == 3, operator, "x", x, "[B, S, D]")
    for name, tensor in (("scale", scale), ("shift", shift)):
        fits = tensor.dim() == 2 and tensor.shape[0] == x.shape[0] and tensor.shape[1] == x.shape[2]
        _require(fits, operator, name, tensor, f"[B, D] = [{x.shape[0]}, {x.shape[2]}]")
    count = len(normalized_shape)
    if not 1 <= count <= 3 or list(x.shape[-count:]) != list(normalized_shape):
        raise InputError(
            f"normalized_shape is {list(normalized_shape)}, which are not the last sizes of x, {list(x.shape)}",
            operator=operator,
            hint=f"mostly [{x.shape[2]}]",
        )


# -- silu, linear, chunk ----------------------------------------------------------------------------------------------


def _make_silu_linear_chunk(chunks: int) -> Callable[..., Results]:
    def silu_linear_chunk(emb: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
        parts = functional.linear(functional.silu(emb), weight, bias).chunk(chunks, dim=1)
        # Results of an operator do not share memory.
        return [part.clone(memory_format=torch.contiguous_format) for part in parts]

    return silu_linear_chunk


_SILU_LINEAR_CHUNK = Fusion("callboard::silu_linear_chunk", _make_silu_linear_chunk)


def silu_linear_chunk_eager(
    emb: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, chunks: int
) -> list[torch.Tensor]:
    """As silu_linear_chunk, operator by operator."""
    _check_silu_linear_chunk(emb, weight, bias, chunks)
    return cast(list[torch.Tensor], _SILU_LINEAR_CHUNK.eager((emb, weight, bias), (chunks,)))


def _fake_silu_linear_chunk(
    emb: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, chunks: int, **_: object
) -> list[torch.Tensor]:
    _check_silu_linear_chunk(emb, weight, bias, chunks)
    parts = emb.new_empty((emb.shape[0], weight.shape[0])).chunk(chunks, dim=1)
    return [emb.new_empty(part.shape) for part in parts]


@kernel(fake=_fake_silu_linear_chunk, warm_up=_compile.warm_up)
def silu_linear_chunk(
    emb: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    chunks: int,
    *,
    on_compile_failure: str = "eager",
) -> list[torch.Tensor]:
    """linear(silu(emb), weight, bias), split along dimension 1 as torch.chunk does.

    emb [B, E]; weight [N, E]; bias [N] or None; chunks ≥ 1, a constant of the graph. Gives `chunks` tensors
    [B, N / chunks], or, where N is no multiple, as many as torch.chunk gives, the last one smaller.
    """
    _check_silu_linear_chunk(emb, weight, bias, chunks)
    return cast(list[torch.Tensor], _SILU_LINEAR_CHUNK((emb, weight, bias), (chunks,), on_compile_failure))


def _check_silu_linear_chunk(emb: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, chunks: int) -> None:
    operator = "callboard::silu_linear_chunk"
    _require(emb.dim() == 2, operator, "emb", emb, "[B, E]")
    dtype = str(emb.dtype).removeprefix("torch.")
    fits = weight.dim() == 2 and weight.shape[1] == emb.shape[1] and weight.dtype == emb.dtype
    _require(fits, operator, "weight", weight, f"{dtype} [N, E] = [N, {emb.shape[1]}]")
    if bias is not None:
        fits = bias.dim() == 1 and bias.shape[0] == weight.shape[0] and bias.dtype == emb.dtype
        _require(fits, operator, "bias", bias, f"{dtype} [N] = [{weight.shape[0]}]")
    if chunks < 1:
        raise InputError(f"chunks is {chunks}; at least 1 is needed", operator=operator, hint="the number of results")


# -- rotary embedding -------------------------------------------------------------------------------------------------


def _make_apply_rotary_emb(interleaved: bool) -> Callable[..., Results]:
    def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if interleaved:
            pairs = wide.view(*x.shape[:-1], x.shape[-1] // 2, 2)
            turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
        else:
            first, second = wide.chunk(2, dim=-1)
            turned = torch.cat((-second, first), dim=-1)
        return (wide * cos.float() + turned * sin.float()).to(x.dtype).contiguous()

    return apply_rotary_emb


_APPLY_ROTARY_EMB = Fusion("callboard::apply_rotary_emb", _make_apply_rotary_emb)


def apply_rotary_emb_eager(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """As apply_rotary_emb, operator by operator."""
    _check_apply_rotary_emb(x, cos, sin)
    return cast(torch.Tensor, _APPLY_ROTARY_EMB.eager((x, cos, sin), (interleaved,)))


def _fake_apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: object, **__: object
) -> torch.Tensor:
    _check_apply_rotary_emb(x, cos, sin)
    return x.new_empty(x.shape)


@kernel(fake=_fake_apply_rotary_emb, warm_up=_compile.warm_up)
def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    *,
    on_compile_failure: str = "eager",
) -> torch.Tensor:
    """Turns each pair (x0, x1) of the last dimension: (x0·cos - x1·sin, x1·cos + x0·sin), in float32.

    x [B, H, S, D], D even, of a floating dtype; cos and sin [S, D] or anything that broadcasts to x, real. Pairs are
    neighbours if `interleaved`, (0, 1), (2, 3), …; else halves, (0, D/2), (1, D/2 + 1), …. Both places of a pair read
    their own entry of the tables. Gives [B, H, S, D] in the dtype of x.
    """
    _check_apply_rotary_emb(x, cos, sin)
    return cast(torch.Tensor, _APPLY_ROTARY_EMB((x, cos, sin), (interleaved,), on_compile_failure))


def _check_apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    operator = "callboard::apply_rotary_emb"
    _check_rotated(operator, x)
    for name, table in (("cos", cos), ("sin", sin)):
        fits = not table.is_complex() and _broadcasts_to(list(table.shape), list(x.shape))
        _require(fits, operator, name, table, f"real, [S, D] or what broadcasts to {list(x.shape)}")


def _make_apply_rotary_emb_complex() -> Callable[..., Results]:
    def apply_rotary_emb_complex(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        # Inductor makes no code for complex numbers; this is their product by real and imaginary parts.
        pairs = x.float().view(*x.shape[:-1], x.shape[-1] // 2, 2)
        real, imaginary = pairs[..., 0], pairs[..., 1]
        cos, sin = table[..., 0].float(), table[..., 1].float()
        turned = torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1)
        return turned.flatten(-2).to(x.dtype).contiguous()

    return apply_rotary_emb_complex


_APPLY_ROTARY_EMB_COMPLEX = Fusion("callboard::apply_rotary_emb_complex", _make_apply_rotary_emb_complex)


def apply_rotary_emb_complex_eager(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """As apply_rotary_emb_complex, by PyTorch's complex numbers."""
    _check_apply_rotary_emb_complex(x, freqs)
    pairs = torch.view_as_complex(x.float().contiguous().view(*x.shape[:-1], x.shape[-1] // 2, 2))
    return torch.view_as_real(pairs * freqs.to(torch.complex64)).flatten(-2).to(x.dtype).contiguous()


def _fake_apply_rotary_emb_complex(x: torch.Tensor, freqs: torch.Tensor, **_: object) -> torch.Tensor:
    _check_apply_rotary_emb_complex(x, freqs)
    return x.new_empty(x.shape)


@kernel(fake=_fake_apply_rotary_emb_complex, warm_up=_compile.warm_up)
def apply_rotary_emb_complex(
    x: torch.Tensor, freqs: torch.Tensor, *, on_compile_failure: str = "eager"
) -> torch.Tensor:
    """Takes neighbours of the last dimension as complex numbers and multiplies them by `freqs`, in complex64.

    x [B, H, S, D], D even, of a floating dtype; freqs [S, D/2] or anything that broadcasts to [B, H, S, D/2], complex.
    Gives [B, H, S, D] in the dtype of x. With freqs = cos + i·sin it is apply_rotary_emb(…, interleaved=True).
    """
    _check_apply_rotary_emb_complex(x, freqs)
    table = torch.view_as_real(freqs.detach().resolve_conj())
    return cast(torch.Tensor, _APPLY_ROTARY_EMB_COMPLEX((x, table), (), on_compile_failure))


def _check_apply_rotary_emb_complex(x: torch.Tensor, freqs: torch.Tensor) -> None:
    operator = "callboard::apply_rotary_emb_complex"
    _check_rotated(operator, x)
    half = [*x.shape[:-1], x.shape[-1] // 2]
    fits = freqs.is_complex() and _broadcasts_to(list(freqs.shape), half)
    _require(fits, operator, "freqs", freqs, f"complex, [S, D/2] or what broadcasts to {half}")


def _check_rotated(operator: str, x: torch.Tensor) -> None:
    fits = x.dim() == 4 and x.is_floating_point() and x.shape[-1] % 2 == 0
    _require(fits, operator, "x", x, "floating, [B, H, S, D] with an even D")


# -- all of them ------------------------------------------------------------------------------------------------------

_FUSIONS = (_LAYER_NORM_MUL_ADD, _SILU_LINEAR_CHUNK, _APPLY_ROTARY_EMB, _APPLY_ROTARY_EMB_COMPLEX)


def compile_counters() -> CompileCounters:
    """What was compiled in this process, what was loaded from the cache, and how often a fusion ran without."""
    return _compile.counters(_FUSIONS)


def _broadcasts_to(sizes: list[int], target: list[int]) -> bool:
    if len(sizes) > len(target):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(sizes), reversed(target), strict=False))


def _require(fits: bool, operator: str, name: str, tensor: torch.Tensor, wanted: str) -> None:
    if not fits:
        raise InputError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, needed is {wanted}",
            operator=operator,
        )
