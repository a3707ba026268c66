"""Scaled dot product attention that takes PyTorch's implementation or SageAttention's, by `sage_attention_type`.

    callboard::sdpa           -> output
    callboard::sdpa_with_lse  -> (output, lse)

sage_attention_type         what runs
    native                  torch.nn.functional.scaled_dot_product_attention; the default
    auto                    SageAttention's kernel for the GPU's compute capability, as SageAttention 2 chooses it
    sageattn                the package's own sageattn()
    qk_int8_pv_fp16_triton, qk_int8_pv_fp16_cuda, qk_int8_pv_fp8_cuda, qk_int8_pv_fp8_cuda_sm90
                            that kernel of SageAttention 2

Where the package, the GPU, a dtype or a shape does not fit, on_unsupported="error" (the default) raises
UnsupportedError with the reason, and "native" computes by PyTorch and logs the reason, once each.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from callboard.errors import InputError, UnsupportedError
from callboard.kernels._registration import kernel
from callboard.kernels.sage_attention import SAGE_TYPES, Attended, AttentionCall, SageAttnAdapter, SageUnsupported

__all__ = ["attend", "attention", "attention_with_lse", "native_attention", "sdpa"]

_TYPES = ("native", *SAGE_TYPES)
_LAYOUTS = ("HND", "NHD")
_POLICIES = ("error", "native")
_SCORES_MAX = 1 << 24  # float32 numbers at once where the lse is computed natively: 64 MiB
_ADAPTER = SageAttnAdapter()


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    sage_attention_type: str = "native",
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    on_unsupported: str = "error",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(query · keyᵀ · sm_scale) · value, as one node in a graph.

    query          [B, H, S, D] in the layout HND, [B, S, H, D] in NHD; a floating dtype
    key, value     [B, G, T, D] or [B, T, G, D], of query's dtype and device; G divides H, each serves H / G heads
    is_causal      row i of query sees the rows 0 … i of key
    sm_scale       None: 1 / sqrt(D)
    return_lse     give also log(sum(exp(query · keyᵀ · sm_scale))), natural, float32 [B, H, S] in both layouts

    The output is contiguous, of query's dtype and layout. In NHD PyTorch's kernels need no copy for that.
    InputError for other arguments, UnsupportedError as the module says.
    """
    operator = attention_with_lse if return_lse else attention
    return operator(
        query,
        key,
        value,
        sage_attention_type=sage_attention_type,
        tensor_layout=tensor_layout,
        is_causal=is_causal,
        sm_scale=sm_scale,
        on_unsupported=on_unsupported,
    )


def _fake_output(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object) -> torch.Tensor:
    _check(query, key, value, **options)  # type: ignore[arg-type]
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _fake_output_and_lse(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    output = _fake_output(query, key, value, **options)
    heads = 1 if options["tensor_layout"] == "HND" else 2
    sizes = (query.shape[0], query.shape[heads], query.shape[3 - heads])
    return output, query.new_empty(sizes, dtype=torch.float32)


@kernel(op="callboard::sdpa", fake=_fake_output)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    sage_attention_type: str = "native",
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    on_unsupported: str = "error",
) -> torch.Tensor:
    """callboard::sdpa; see sdpa()."""
    _check(query, key, value, sage_attention_type, tensor_layout, is_causal, sm_scale, on_unsupported)
    call = AttentionCall(tensor_layout, is_causal, sm_scale, return_lse=False)
    return attend(_ADAPTER, query, key, value, sage_attention_type, call, on_unsupported)[0]


@kernel(op="callboard::sdpa_with_lse", fake=_fake_output_and_lse)
def attention_with_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    sage_attention_type: str = "native",
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    on_unsupported: str = "error",
) -> tuple[torch.Tensor, torch.Tensor]:
    """callboard::sdpa_with_lse; see sdpa()."""
    _check(query, key, value, sage_attention_type, tensor_layout, is_causal, sm_scale, on_unsupported)
    call = AttentionCall(tensor_layout, is_causal, sm_scale, return_lse=True)
    output, lse = attend(_ADAPTER, query, key, value, sage_attention_type, call, on_unsupported)
    assert lse is not None
    return output, lse


def attend(
    adapter: SageAttnAdapter,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sage_attention_type: str,
    call: AttentionCall,
    on_unsupported: str,
) -> Attended:
    """(output, lse or None) by `adapter` or natively, as type and policy say."""
    if sage_attention_type == "native":
        return native_attention(query, key, value, call)
    try:
        return adapter(query, key, value, sage_attention_type, call)
    except SageUnsupported as reason:
        if on_unsupported == "error":
            raise UnsupportedError(
                f"sage_attention_type='{sage_attention_type}' cannot be: {reason}",
                operator="callboard::sdpa",
                hint="on_unsupported='native' computes by PyTorch instead; sage_attention_type='native' always does",
            ) from reason
        adapter.log_once(str(reason))
    return native_attention(query, key, value, call)


def native_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall) -> Attended:
    """(output, lse or None) by PyTorch."""
    if call.tensor_layout == "NHD":
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    output = functional.scaled_dot_product_attention(
        query, key, value, is_causal=call.is_causal, scale=call.sm_scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    lse = _log_sums(query, key, call) if call.return_lse else None
    return (output.transpose(1, 2) if call.tensor_layout == "NHD" else output).contiguous(), lse


def _log_sums(query: torch.Tensor, key: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """float32 [B, H, S], from the layout HND. PyTorch's public attention keeps it to itself, so scores are made again,
    some rows at a time.
    """
    batch, heads, rows, head_size = query.shape
    scale = head_size**-0.5 if call.sm_scale is None else call.sm_scale
    # Heads that share one of key's lie side by side: [B, G, H / G, S, D] · [B, G, 1, D, T].
    groups = key.shape[1]
    grouped = query.view(batch, groups, heads // groups, rows, head_size)
    transposed = key.float().transpose(-1, -2).unsqueeze(2)
    at_once = max(1, _SCORES_MAX // max(1, batch * heads * key.shape[2]))
    parts = []
    for start in range(0, rows, at_once):
        scores = grouped[:, :, :, start : start + at_once].float() @ transposed * scale
        if call.is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(start)
            scores = scores.masked_fill(~seen, float("-inf"))
        parts.append(scores.logsumexp(-1))
    whole = torch.cat(parts, dim=-1) if parts else query.new_empty(grouped.shape[:-1], dtype=torch.float32)
    return whole.flatten(1, 2).contiguous()


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sage_attention_type: str,
    tensor_layout: str,
    is_causal: bool,
    sm_scale: float | None,
    on_unsupported: str,
) -> None:
    for name, given, allowed in (
        ("sage_attention_type", sage_attention_type, _TYPES),
        ("tensor_layout", tensor_layout, _LAYOUTS),
        ("on_unsupported", on_unsupported, _POLICIES),
    ):
        if given not in allowed:
            raise InputError(f"{name} is {given!r}", operator="callboard::sdpa", hint=f"allowed: {', '.join(allowed)}")
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if tensor.dim() != 4 or not tensor.is_floating_point():
            raise _misfit(
                f"{name} is {tensor.dtype} {list(tensor.shape)}; four dimensions of floating numbers are needed"
            )
        if (tensor.dtype, tensor.device) != (query.dtype, query.device):
            raise _misfit(f"{name} is {tensor.dtype} on {tensor.device}, query {query.dtype} on {query.device}")
    heads = 1 if tensor_layout == "HND" else 2
    if key.shape[:-1] != value.shape[:-1] or key.shape[0] != query.shape[0] or key.shape[-1] != query.shape[-1]:
        raise _misfit(
            f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} do not fit together"
        )
    if key.shape[heads] == 0 or query.shape[heads] % key.shape[heads] != 0:
        raise _misfit(f"{query.shape[heads]} heads of query cannot share {key.shape[heads]} of key")


def _misfit(problem: str) -> InputError:
    return InputError(
        problem,
        operator="callboard::sdpa",
        hint="HND: [batch, heads, rows, head size]; NHD: [batch, rows, heads, head size]",
    )
