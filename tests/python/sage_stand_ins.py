"""Modules that look like SageAttention and compute by plain formulas: its signatures, refusals and side effects, as
read in the sources of 1.0.6 and 2.2.0, without its kernels. They run on any device, so that tests need no GPU.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

LOG2_E = 1.44269504  # the kernels work with powers of two; what the package gives is a natural logarithm


def version_1(**replaced: Any) -> SimpleNamespace:
    """1.0.6: one function, no lse, and k is written to. `calls` records what came in."""
    calls: list[dict[str, Any]] = []

    def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, smooth_k=True, **kwargs):
        calls.append({"function": "sageattn", "layout": tensor_layout, "ignored": kwargs})
        assert q.dtype in [torch.float16, torch.bfloat16, torch.float32], "Input tensors must be in dtype of …"
        assert q.dtype == k.dtype == v.dtype, "All tensors must have the same dtype."
        assert q.size(-1) in [64, 96, 128], "headdim should be in [64, 96, 128]."
        assert q.stride(-1) == 1 and k.stride(-1) == 1 and v.stride(-1) == 1, "Last dim of qkv must be contiguous."
        if smooth_k:
            k -= k.mean(dim=1 if tensor_layout == "NHD" else 2, keepdim=True)
        return formula(q, k, v, tensor_layout, is_causal, sm_scale)[0]

    return SimpleNamespace(__version__="1.0.6", sageattn=sageattn, calls=calls, **replaced)


def version_2(without: tuple[str, ...] = (), **replaced: Any) -> SimpleNamespace:
    """2.2.0: one function for each kernel and one that chooses. `without` leaves functions out."""
    calls: list[dict[str, Any]] = []

    def run(function, q, k, v, tensor_layout, is_causal, sm_scale, return_lse, **options):
        calls.append({"function": function, "layout": tensor_layout, **options})
        assert q.dtype in [torch.float16, torch.bfloat16], (
            "Input tensors must be in dtype of torch.float16 or torch.bfloat16"
        )
        assert q.dtype == k.dtype == v.dtype, "All tensors must have the same dtype."
        if q.size(-1) > 128:
            raise ValueError(f"Unsupported head_dim: {q.size(-1)}")
        assert q.stride(-1) == 1 and k.stride(-1) == 1 and v.stride(-1) == 1, "Last dim of qkv must be contiguous."
        output, log2_sums = formula(q, k, v, tensor_layout, is_causal, sm_scale)
        # Padded to 64 or 128 and cut again: the output is no contiguous tensor then.
        padded = torch.nn.functional.pad(output, (0, 1))[..., :-1] if q.size(-1) not in (64, 128) else output
        return (padded, log2_sums / LOG2_E) if return_lse else padded

    def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
        return run("sageattn", q, k, v, tensor_layout, is_causal, sm_scale, return_lse)

    def sageattn_qk_int8_pv_fp16_triton(
        q, k, v, tensor_layout="HND", quantization_backend="triton", is_causal=False, sm_scale=None, smooth_k=True,
        return_lse=False, **kwargs,
    ):  # fmt: skip
        return run("sageattn_qk_int8_pv_fp16_triton", q, k, v, tensor_layout, is_causal, sm_scale, return_lse)

    def cuda(name):
        def function(
            q, k, v, tensor_layout="HND", is_causal=False, qk_quant_gran="per_thread", sm_scale=None,
            pv_accum_dtype="fp32", smooth_k=True, return_lse=False, **kwargs,
        ):  # fmt: skip
            return run(name, q, k, v, tensor_layout, is_causal, sm_scale, return_lse, gran=qk_quant_gran)

        return function

    functions = {
        "sageattn": sageattn,
        "sageattn_qk_int8_pv_fp16_triton": sageattn_qk_int8_pv_fp16_triton,
        **{name: cuda(name) for name in (
            "sageattn_qk_int8_pv_fp16_cuda", "sageattn_qk_int8_pv_fp8_cuda", "sageattn_qk_int8_pv_fp8_cuda_sm90"
        )},
    }  # fmt: skip
    kept = {name: function for name, function in functions.items() if name not in without}
    return SimpleNamespace(**{"__version__": "2.2.0", "calls": calls, **kept, **replaced})


def formula(q, k, v, tensor_layout, is_causal, sm_scale) -> tuple[torch.Tensor, torch.Tensor]:
    """(output in q's layout and dtype, log2 of the sums [B, H, S] float32), in float64, head by head."""
    if tensor_layout == "NHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    times = q.shape[1] // k.shape[1]
    keys, values = k.double().repeat_interleave(times, 1), v.double().repeat_interleave(times, 1)
    scores = q.double() @ keys.transpose(-1, -2) * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    output = (scores.softmax(-1) @ values).to(q.dtype)
    sums = (scores.logsumexp(-1) * LOG2_E).float()
    return (output.transpose(1, 2).contiguous() if tensor_layout == "NHD" else output), sums
