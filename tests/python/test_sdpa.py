"""Attention: PyTorch's against a formula, SageAttention's adapter against PyTorch's, with stand-ins for the package."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.export import Dim

import sage_stand_ins
from callboard import export
from callboard.errors import InputError, OutputMismatch, UnsupportedError
from callboard.kernels.sage_attention import AttentionCall, SageAttnAdapter, SageUnsupported
from callboard.kernels.sdpa import attend, attention, attention_with_lse, native_attention, sdpa
from graph_oracle import GraphOracle

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
}


def tensors(layout="HND", *, rows=6, keys=None, heads=4, key_heads=None, size=64, dtype=torch.float16, batch=2):
    """(query, key, value) of the same numbers in either layout. Keys have a mean, which 1.0.6 subtracts in place."""
    generator = torch.Generator().manual_seed(rows * 1000 + size)
    shapes = [(batch, heads, rows, size), *[(batch, key_heads or heads, keys or rows, size)] * 2]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) + 0.25 for shape in shapes]
    return tuple((t if layout == "HND" else t.transpose(1, 2).contiguous()).to(dtype) for t in made)


def want(query, key, value, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    output, log2_sums = sage_stand_ins.formula(query, key, value, call.tensor_layout, call.is_causal, call.sm_scale)
    return output, log2_sums / sage_stand_ins.LOG2_E


def gpu(*capability: int):
    """Takes the tensors' device for a GPU of this capability."""
    return lambda device: capability


# -- PyTorch's attention ----------------------------------------------------------------------------------------------

CALLS = {
    "plain": AttentionCall(),
    "causal": AttentionCall(is_causal=True),
    "scaled": AttentionCall(sm_scale=0.5),
    "NHD": AttentionCall("NHD"),
    "NHD causal scaled": AttentionCall("NHD", is_causal=True, sm_scale=0.25),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_native_attention_and_its_lse_follow_the_formula(call: AttentionCall, dtype: torch.dtype) -> None:
    query, key, value = tensors(call.tensor_layout, dtype=dtype)
    output, lse = native_attention(query, key, value, replace(call, return_lse=True))
    wanted, wanted_lse = want(query, key, value, call)
    torch.testing.assert_close(output, wanted, **TOLERANCE[dtype])
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-4)
    assert output.is_contiguous() and lse.dtype == torch.float32 and lse.shape == (2, 4, 6)
    assert native_attention(query, key, value, call)[1] is None


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_native_attention_shares_key_heads_and_takes_other_numbers_of_keys(layout: str) -> None:
    call = AttentionCall(layout, return_lse=True)
    query, key, value = tensors(layout, rows=5, keys=9, heads=6, key_heads=2, dtype=torch.float32)
    output, lse = native_attention(query, key, value, call)
    wanted, wanted_lse = want(query, key, value, call)
    torch.testing.assert_close(output, wanted, **TOLERANCE[torch.float32])
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_native_lse_is_the_same_in_parts(monkeypatch, is_causal: bool) -> None:
    call = AttentionCall(is_causal=is_causal, return_lse=True)
    query, key, value = tensors(dtype=torch.float32)
    _, whole = native_attention(query, key, value, call)
    monkeypatch.setattr("callboard.kernels.sdpa._SCORES_MAX", 4 * query.shape[0] * query.shape[1] * key.shape[2])
    _, parts = native_attention(query, key, value, call)
    torch.testing.assert_close(parts, whole)


def test_native_attention_is_bit_for_bit_pytorch_s() -> None:
    query, key, value = tensors(dtype=torch.float32)
    assert torch.equal(
        sdpa(query, key, value, is_causal=True, sm_scale=0.3),
        nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3),
    )


# -- operators --------------------------------------------------------------------------------------------------------

OPCHECKS = {
    "output": (attention, {}),
    "output, NHD, causal": (attention, {"tensor_layout": "NHD", "is_causal": True}),
    "lse": (attention_with_lse, {}),
    "lse, NHD, scaled": (attention_with_lse, {"tensor_layout": "NHD", "sm_scale": 0.5}),
    "fallback": (attention_with_lse, {"sage_attention_type": "auto", "on_unsupported": "native"}),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_torch_finds_nothing_wrong(case: str) -> None:
    function, options = OPCHECKS[case]
    operator = getattr(torch.ops.callboard, function.__callboard_kernel__.op.partition("::")[2])
    torch.library.opcheck(operator.default, tensors(options.get("tensor_layout", "HND"), dtype=torch.float32), options)


class Attention(nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor):
        output, lse = sdpa(query, key, value, tensor_layout="NHD", return_lse=True)
        return sdpa(output.flatten(2).unflatten(2, (4, -1)), key, value, tensor_layout="NHD", is_causal=True), lse


def test_export_keeps_one_node_for_each_call_with_free_sizes() -> None:
    rows = Dim("rows", min=2, max=64)
    shapes = {name: {1: rows} for name in ("query", "key", "value")}
    exported = export.export(Attention(), tensors("NHD", dtype=torch.float32), None, shapes)
    oracle = GraphOracle()
    structure = export.build_program(exported, oracle, forward=Attention().forward, dynamic_shapes=shapes)
    ours = [node for node in oracle.nodes if node.op.startswith("callboard::")]
    assert [node.op for node in ours] == ["callboard::sdpa_with_lse", "callboard::sdpa"]
    assert ours[1].kwargs["tensor_layout"] == ("str", "NHD")
    for count in (6, 11):
        args = tensors("NHD", rows=count, dtype=torch.float32)
        got = structure.unflatten(oracle.run(list(structure.flatten(args, {}))))
        for made, wanted in zip(got, Attention()(*args), strict=True):
            assert torch.equal(made, wanted)


MISFITS = {
    "an unknown type": ({"sage_attention_type": "default"}, "sage_attention_type is 'default'"),
    "an unknown layout": ({"tensor_layout": "BHSD"}, "tensor_layout is 'BHSD'"),
    "an unknown policy": ({"on_unsupported": "ignore"}, "on_unsupported is 'ignore'"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_unknown_options_are_refused_by_name(case: str) -> None:
    options, said = MISFITS[case]
    with pytest.raises(InputError, match=said) as caught:
        sdpa(*tensors(), **options)
    assert "allowed: " in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k, v: (q[0], k, v), "query is torch.float16 [4, 6, 64]"),
        (lambda q, k, v: (q, k.float(), v), "key is torch.float32"),
        (lambda q, k, v: (q, k, v[:, :, :5]), "do not fit together"),
        (lambda q, k, v: (q[..., :32], k, v), "do not fit together"),
        (lambda q, k, v: (q[:1], k, v), "do not fit together"),
        (lambda q, k, v: (q[:, :3], k[:, :2], v[:, :2]), "3 heads of query cannot share 2 of key"),
        (lambda q, k, v: (q.int(), k.int(), v.int()), "query is torch.int32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_here_and_in_export(change, said: str) -> None:
    args = change(*tensors())
    for inputs in (args, tuple(t.to("meta") for t in args)):
        with pytest.raises(InputError) as caught:
            sdpa(*inputs)
        assert said in caught.value.message


# -- SageAttention ----------------------------------------------------------------------------------------------------

VERSIONS = {"1.0.6": sage_stand_ins.version_1, "2.2.0": sage_stand_ins.version_2}
OFFERED = {"1.0.6": ("auto", "sageattn")}
OFFERED["2.2.0"] = (
    *OFFERED["1.0.6"],
    "qk_int8_pv_fp16_triton",
    "qk_int8_pv_fp16_cuda",
    "qk_int8_pv_fp8_cuda",
    "qk_int8_pv_fp8_cuda_sm90",
)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("version, kind", [(v, kind) for v, kinds in OFFERED.items() for kind in kinds])
def test_each_kernel_of_each_version_gives_what_pytorch_gives(version: str, kind: str, call: AttentionCall) -> None:
    module = VERSIONS[version]()
    adapter = SageAttnAdapter(module, gpu(9, 0))
    for size in (64, 96, 128):
        args = tensors(call.tensor_layout, size=size)
        before = [t.clone() for t in args]
        output, lse = attend(adapter, *args, kind, call, "error")
        native, _ = native_attention(*args, call)
        torch.testing.assert_close(output, native, **TOLERANCE[torch.float16])
        assert output.is_contiguous() and lse is None
        # 1.0.6 subtracts the mean from the k that it is given.
        assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))
    assert [c["layout"] for c in module.calls] == [call.tensor_layout] * 3
    assert all(not c.get("ignored") for c in module.calls)  # what 1.0.6 does not know it ignores: pass nothing


@pytest.mark.parametrize("kind", OFFERED["2.2.0"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_lse_of_2_x_is_pytorch_s(kind: str, call: AttentionCall) -> None:
    call = replace(call, return_lse=True)
    args = tensors(call.tensor_layout)
    output, lse = attend(SageAttnAdapter(sage_stand_ins.version_2(), gpu(9, 0)), *args, kind, call, "error")
    native, native_lse = native_attention(*args, call)
    torch.testing.assert_close(output, native, **TOLERANCE[torch.float16])
    torch.testing.assert_close(lse, native_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", VERSIONS)
def test_heads_may_share_keys_and_strides_may_be_any(version: str) -> None:
    query, key, value = tensors(heads=6, key_heads=2, rows=5, keys=9)
    spread = key.transpose(2, 3).contiguous().transpose(2, 3)
    assert spread.stride(-1) != 1
    output, _ = attend(
        SageAttnAdapter(VERSIONS[version](), gpu(8, 0)), query, spread, value, "sageattn", AttentionCall(), "error"
    )
    torch.testing.assert_close(
        output, native_attention(query, key, value, AttentionCall())[0], **TOLERANCE[torch.float16]
    )


@pytest.mark.parametrize(
    ("capability", "function", "options"),
    [
        ((8, 0), "sageattn_qk_int8_pv_fp16_cuda", {"gran": "per_thread"}),
        ((8, 6), "sageattn_qk_int8_pv_fp16_triton", {}),
        ((8, 9), "sageattn_qk_int8_pv_fp8_cuda", {"gran": "per_thread"}),
        ((9, 0), "sageattn_qk_int8_pv_fp8_cuda_sm90", {"gran": "per_thread"}),
        ((12, 0), "sageattn_qk_int8_pv_fp8_cuda", {"gran": "per_warp"}),
    ],
)
def test_auto_chooses_by_compute_capability_as_2_x_does(capability, function: str, options: dict[str, str]) -> None:
    module = sage_stand_ins.version_2()
    attend(SageAttnAdapter(module, gpu(*capability)), *tensors(), "auto", AttentionCall(), "error")
    assert module.calls == [{"function": function, "layout": "HND", **options}]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)])
def test_auto_of_1_0_6_is_its_only_function(capability) -> None:
    module = sage_stand_ins.version_1()
    attend(SageAttnAdapter(module, gpu(*capability)), *tensors(), "auto", AttentionCall(), "error")
    assert [c["function"] for c in module.calls] == ["sageattn"]


def no_sage_signature() -> SimpleNamespace:
    return SimpleNamespace(__version__="3.0", sageattn=lambda query, key, value: query)


CAUSAL = AttentionCall(is_causal=True)
LSE = AttentionCall(return_lse=True)
UNSUPPORTED = {
    "no GPU": (
        sage_stand_ins.version_2,
        lambda device: None,
        {},
        "auto",
        AttentionCall(),
        "on cpu, SageAttention runs on",
    ),
    "an old GPU": (sage_stand_ins.version_2, gpu(7, 5), {}, "sageattn", AttentionCall(), "compute capability 7.5"),
    "a GPU without a choice": (
        sage_stand_ins.version_2,
        gpu(10, 0),
        {},
        "auto",
        AttentionCall(),
        "no choice for compute",
    ),
    "sm90 elsewhere": (
        sage_stand_ins.version_2,
        gpu(8, 9),
        {},
        "qk_int8_pv_fp8_cuda_sm90",
        AttentionCall(),
        "needs compute capability 9.0",
    ),
    "fp8 on 8.6": (
        sage_stand_ins.version_2,
        gpu(8, 6),
        {},
        "qk_int8_pv_fp8_cuda",
        AttentionCall(),
        "needs compute capability 8.9",
    ),
    "triton on 12.0": (sage_stand_ins.version_2, gpu(12, 0), {}, "qk_int8_pv_fp16_triton", AttentionCall(), "but 12.0"),
    "a kernel of 2.x in 1.0.6": (
        sage_stand_ins.version_1,
        gpu(8, 0),
        {},
        "qk_int8_pv_fp16_cuda",
        AttentionCall(),
        "1.0.6 has no sageattn_qk_int8_pv",
    ),
    "a kernel that was not built": (
        lambda: sage_stand_ins.version_2(without=("sageattn_qk_int8_pv_fp8_cuda",)),
        gpu(8, 9),
        {},
        "auto",
        AttentionCall(),
        "2.2.0 has no sageattn_qk_int8_pv_fp8_cuda",
    ),
    "float32 in 2.x": (
        sage_stand_ins.version_2,
        gpu(8, 0),
        {"dtype": torch.float32},
        "auto",
        AttentionCall(),
        "not float32",
    ),
    "float64 in 1.0.6": (
        sage_stand_ins.version_1,
        gpu(8, 0),
        {"dtype": torch.float64},
        "auto",
        AttentionCall(),
        "not float64",
    ),
    "a head size of 1.0.6": (sage_stand_ins.version_1, gpu(8, 0), {"size": 32}, "auto", AttentionCall(), "not 32"),
    "a head size of 2.x": (sage_stand_ins.version_2, gpu(8, 0), {"size": 160}, "auto", AttentionCall(), "not 160"),
    "lse of 1.0.6": (sage_stand_ins.version_1, gpu(8, 0), {}, "auto", LSE, "1.0.6 gives no lse"),
    "lse over shared heads": (
        sage_stand_ins.version_2,
        gpu(8, 0),
        {"key_heads": 2},
        "auto",
        LSE,
        "gives no lse for 4 heads",
    ),
    "causal over other rows": (
        sage_stand_ins.version_2,
        gpu(8, 0),
        {"keys": 9},
        "auto",
        CAUSAL,
        "6 rows of q and 9 of k",
    ),
    "another signature": (no_sage_signature, gpu(8, 0), {}, "sageattn", AttentionCall(), "signature that is not known"),
    "no function": (
        lambda: SimpleNamespace(__version__="9"),
        gpu(8, 0),
        {},
        "sageattn",
        AttentionCall(),
        "9 has no sageattn",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_does_not_fit_is_an_error_or_native_with_one_line_in_the_log(case: str, caplog) -> None:
    module, capability, shape, kind, call, said = UNSUPPORTED[case]
    adapter, args = SageAttnAdapter(module(), capability), tensors(**shape)
    with pytest.raises(UnsupportedError) as caught:
        attend(adapter, *args, kind, call, "error")
    assert said in caught.value.message
    assert "on_unsupported='native'" in caught.value.hint
    with caplog.at_level(logging.WARNING, logger="callboard"):
        for _ in range(3):
            output, lse = attend(adapter, *args, kind, call, "native")
    native, native_lse = native_attention(*args, call)
    assert torch.equal(output, native)
    assert (lse is None) == (native_lse is None)
    assert len(caplog.records) == 1 and said in caplog.records[0].getMessage()


def test_a_refusal_of_the_package_is_unsupported_and_a_failure_of_it_is_not() -> None:
    def refuse(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
        raise ValueError("Unsupported CUDA architecture: sm87")

    def fail(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    args = tensors()
    refusing = SageAttnAdapter(sage_stand_ins.version_2(sageattn=refuse), gpu(8, 7))
    with pytest.raises(UnsupportedError, match="refuses: Unsupported CUDA architecture: sm87"):
        attend(refusing, *args, "sageattn", AttentionCall(), "error")
    output, _ = attend(refusing, *args, "sageattn", AttentionCall(), "native")
    assert torch.equal(output, native_attention(*args, AttentionCall())[0])
    failing = SageAttnAdapter(sage_stand_ins.version_2(sageattn=fail), gpu(8, 7))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attend(failing, *args, "sageattn", AttentionCall(), "native")


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda q: q.float(), "gives as output torch.float32"),
        (lambda q: q[:1], "gives as output torch.float16 [1, 4, 6, 64]"),
        (lambda q: None, "gives NoneType as output"),
        (lambda q: (q, None), "gives NoneType as lse"),
        (lambda q: (q, q[..., 0]), "gives as lse torch.float16"),
        (lambda q: q, "gives NoneType as lse"),
    ],
)
def test_results_that_are_no_attention_are_an_error_under_either_policy(give, said: str) -> None:
    def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
        return give(q)

    call = AttentionCall(return_lse="lse" in said)
    adapter = SageAttnAdapter(sage_stand_ins.version_2(sageattn=sageattn), gpu(8, 0))
    with pytest.raises(OutputMismatch) as caught:
        attend(adapter, *tensors(), "sageattn", call, "native")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "is not installed"),
        ("import no_such_triton", "needs no_such_triton, which is not installed"),
        ("raise ImportError('undefined symbol: _ZN3c10')", "cannot be imported: undefined symbol"),
    ],
)
def test_a_package_that_is_not_there_or_broken_says_why(monkeypatch, tmp_path, source: str | None, said: str) -> None:
    monkeypatch.delitem(sys.modules, "sageattention", raising=False)
    if source is None:
        monkeypatch.setitem(sys.modules, "sageattention", None)
        # What is None in sys.modules is a ModuleNotFoundError, as a package that is not there.
    else:
        (tmp_path / "sageattention.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
    adapter = SageAttnAdapter(capability=gpu(8, 0))
    with pytest.raises(SageUnsupported, match=said):
        adapter(*tensors(), "auto", AttentionCall())


def test_the_package_is_looked_for_at_the_first_call_and_not_again(monkeypatch, tmp_path) -> None:
    (tmp_path / "sageattention.py").write_text(
        "import sage_stand_ins\nimported = []\nmodule = sage_stand_ins.version_2()\nsageattn = module.sageattn\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sageattention", raising=False)
    adapter = SageAttnAdapter(capability=gpu(8, 0))
    assert "sageattention" not in sys.modules
    adapter(*tensors(), "sageattn", AttentionCall())
    first = sys.modules.pop("sageattention")
    adapter(*tensors(), "sageattn", AttentionCall())
    assert "sageattention" not in sys.modules
    assert len(first.module.calls) == 2


def test_the_capability_of_a_device_that_is_no_gpu_is_none() -> None:
    assert SageAttnAdapter().capability(torch.device("cpu")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="[gpu] needs a CUDA GPU that torch sees")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gpu_the_installed_package_gives_what_pytorch_gives(call: AttentionCall) -> None:
    pytest.importorskip("sageattention", reason="[gpu] needs the package sageattention")
    args = tuple(t.cuda() for t in tensors(call.tensor_layout, rows=256, size=128))
    output, _ = attend(SageAttnAdapter(), *args, "auto", call, "error")
    native, _ = native_attention(*args, call)
    # Eight bits for q and k: the paper's bound is on the whole, not on each number.
    difference = (output.float() - native.float()).norm() / native.float().norm()
    assert difference < 0.05 and math.isfinite(float(difference))
