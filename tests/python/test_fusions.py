"""Compiled fusions: against eager forms and formulas in float64, their cache, and what happens without a compiler."""

from __future__ import annotations

import functools
import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.export import Dim
from torch.nn import functional

from callboard import export
from callboard.errors import InputError, KernelError, MachineError
from callboard.kernels import _compile, fusions
from callboard.kernels._compile import Fusion
from conftest import client_environment
from graph_oracle import GraphOracle

TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 4e-2, "atol": 4e-2}}


def rand(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


# -- formulas, in float64 ---------------------------------------------------------------------------------------------


def modulated(x, scale, shift, normalized_shape, eps, weight=None, bias=None):
    x, scale, shift = x.double(), scale.double(), shift.double()
    dims = tuple(range(-len(normalized_shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    normed = centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()
    normed = normed * (1 if weight is None else weight.double()) + (0 if bias is None else bias.double())
    return normed * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def split(emb, weight, bias, chunks):
    emb = emb.double()
    whole = (emb / (1 + (-emb).exp())) @ weight.double().T + (0 if bias is None else bias.double())
    return list(whole.split(-(-whole.shape[1] // chunks), dim=1))


def turned(x, cos, sin, interleaved):
    x = x.double()
    cos, sin = cos.double().expand_as(x), sin.double().expand_as(x)
    half = x.shape[-1] // 2
    result = torch.empty_like(x)
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        result[..., a] = x[..., a] * cos[..., a] - x[..., b] * sin[..., a]
        result[..., b] = x[..., b] * cos[..., b] + x[..., a] * sin[..., b]
    return result


def turned_complex(x, freqs):
    pairs = x.double().unflatten(-1, (-1, 2))
    product = torch.complex(pairs[..., 0], pairs[..., 1]) * freqs.to(torch.complex128)
    return torch.stack((product.real, product.imag), dim=-1).flatten(-2)


# -- cases ------------------------------------------------------------------------------------------------------------


def tables(x: torch.Tensor, interleaved: bool, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [S, D], both places of a pair with their pair's angle."""
    rows, size = x.shape[-2:]
    angles = torch.outer(torch.arange(rows), 0.5 ** torch.arange(size // 2))
    angles = angles.repeat_interleave(2, 1) if interleaved else torch.cat((angles, angles), 1)
    return angles.cos().reshape(*shape, rows, size), angles.sin().reshape(*shape, rows, size)


def norm_args(dtype, a, b, c, affine):
    size = 8 * c
    extra = (rand(size, dtype=dtype), rand(size, dtype=dtype)) if affine else ()
    return (rand(a, b, size, dtype=dtype), rand(a, size, dtype=dtype), rand(a, size, dtype=dtype), [size], 1e-5, *extra)


def rotary_args(dtype, a, b, c, interleaved, *shape):
    x = rand(a, 2, b, 2 * c, dtype=dtype)
    return (x, *tables(x, interleaved, *shape), interleaved)


def complex_args(dtype, a, b, c):
    x = rand(a, 2, b, 2 * c, dtype=dtype)
    return (x, torch.polar(torch.ones(b, c), torch.outer(torch.arange(b), 0.5 ** torch.arange(c))))


@dataclass(frozen=True)
class Case:
    """A fusion with one choice of its optional arguments. `args(dtype, a, b, c)` are three sizes that differ."""

    fused: Callable[..., Any]
    eager: Callable[..., Any]
    formula: Callable[..., Any]
    args: Callable[..., tuple[Any, ...]]


NORM = (fusions.layer_norm_mul_add, fusions.layer_norm_mul_add_eager, modulated)
CHUNK = (fusions.silu_linear_chunk, fusions.silu_linear_chunk_eager, split)
ROTARY = (fusions.apply_rotary_emb, fusions.apply_rotary_emb_eager, turned)
COMPLEX = (fusions.apply_rotary_emb_complex, fusions.apply_rotary_emb_complex_eager, turned_complex)
CASES = {
    "norm": Case(*NORM, functools.partial(norm_args, affine=False)),
    "norm with weight and bias": Case(*NORM, functools.partial(norm_args, affine=True)),
    "chunk in 6": Case(
        *CHUNK, lambda t, a, b, c: (rand(a, c, dtype=t), rand(6 * b, c, dtype=t), rand(6 * b, dtype=t), 6)
    ),
    "chunk in 1 without bias": Case(*CHUNK, lambda t, a, b, c: (rand(a, c, dtype=t), rand(b, c, dtype=t), None, 1)),
    "rotary interleaved": Case(*ROTARY, lambda t, a, b, c: rotary_args(t, a, b, c, True)),
    "rotary halves": Case(*ROTARY, lambda t, a, b, c: rotary_args(t, a, b, c, False, 1, 1)),
    "rotary complex": Case(*COMPLEX, complex_args),
}
SIZES = [(3, 5, 4), (2, 9, 6), (4, 7, 12), (6, 17, 10)]


def as_list(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def assert_same(got: Any, wanted: Any, dtype: torch.dtype) -> None:
    assert len(as_list(got)) == len(as_list(wanted))
    for one, other in zip(as_list(got), as_list(wanted), strict=True):
        assert one.dtype == dtype and one.is_contiguous()
        torch.testing.assert_close(one, other.to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_eager_forms_follow_their_formulas(case: Case, dtype: torch.dtype) -> None:
    for sizes in [*SIZES, (1, 1, 1), (1, 3, 2), (2, 1, 3)]:
        args = case.args(dtype, *sizes)
        assert_same(case.eager(*args), case.formula(*args), dtype)


@pytest.mark.slow  # compiles, unless an earlier run left the code in the cache
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_compiled_forms_give_what_eager_gives_and_are_compiled_once_for_all_sizes(case: Case, dtype) -> None:
    before = fusions.compile_counters()
    for number, sizes in enumerate(SIZES):
        args = case.args(dtype, *sizes)
        assert_same(case.fused(*args, on_compile_failure="error"), case.eager(*args), dtype)
        if number == 0:
            first = fusions.compile_counters()
    last = fusions.compile_counters()
    assert first.graphs <= before.graphs + 1
    assert last.graphs == first.graphs
    assert last.eager_calls == before.eager_calls


@pytest.mark.parametrize("interleaved", [True, False])
def test_complex_tables_turn_as_real_ones_do(interleaved: bool) -> None:
    x, freqs = complex_args(torch.float32, 2, 5, 4)
    if not interleaved:  # the same pairs, laid out as halves
        x = torch.cat((x[..., 0::2], x[..., 1::2]), -1)
    cos, sin = tables(x, interleaved)
    got = fusions.apply_rotary_emb_eager(x, cos, sin, interleaved)
    if not interleaved:
        x = torch.stack(x.chunk(2, -1), -1).flatten(-2)
        got = torch.stack(got.chunk(2, -1), -1).flatten(-2)
    torch.testing.assert_close(got, fusions.apply_rotary_emb_complex_eager(x, freqs), rtol=1e-5, atol=1e-6)


def test_chunks_that_do_not_divide_are_those_of_torch() -> None:
    emb, weight = rand(2, 4), rand(7, 4)
    got = fusions.silu_linear_chunk_eager(emb, weight, None, 3)
    assert [part.shape[1] for part in got] == [3, 3, 1]
    assert_same(got, functional.linear(functional.silu(emb), weight).chunk(3, dim=1), torch.float32)


def test_tensors_without_elements_need_no_compiler() -> None:
    before = fusions.compile_counters()
    assert fusions.layer_norm_mul_add(*norm_args(torch.float32, 3, 0, 2, False)).shape == (3, 0, 16)
    assert [p.shape for p in fusions.silu_linear_chunk(rand(0, 4), rand(6, 4), None, 2)] == [(0, 3), (0, 3)]
    assert fusions.compile_counters() == before


# -- operators --------------------------------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch) -> None:
    """torch.compile without code generation: guards, limits and graphs are those of the real one."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", **options))
    for fusion in fusions._FUSIONS:
        monkeypatch.setattr(fusion, "_variants", {})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_torch_finds_nothing_wrong(quickly, case: Case) -> None:
    name = case.fused.__callboard_kernel__.op.partition("::")[2]
    torch.library.opcheck(getattr(torch.ops.callboard, name).default, case.args(torch.float32, 3, 5, 4))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_modes_of_gradient_and_strides_do_not_matter(quickly, case: Case) -> None:
    args = case.args(torch.float32, 3, 5, 4)
    wanted = case.eager(*args)
    spread = [a.mT.contiguous().mT if isinstance(a, torch.Tensor) and a.dim() > 1 else a for a in args]
    wanting = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    spec = case.fused.__callboard_kernel__
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            for given in (args, spread, wanting):
                assert_same([t.detach() for t in as_list(case.fused(*given))], wanted, torch.float32)
                assert_same([t.detach() for t in as_list(spec.fn(*given))], wanted, torch.float32)


class Block(nn.Module):
    """All of them, as a transformer's block uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, emb: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, freqs: torch.Tensor):
        scale, shift = fusions.silu_linear_chunk(emb, self.modulation.weight, self.modulation.bias, 2)
        y = fusions.layer_norm_mul_add(x, scale, shift, [8], 1e-6)
        heads = y.unflatten(-1, (2, 4)).transpose(1, 2)
        turned = fusions.apply_rotary_emb(heads, cos, sin, True)
        return fusions.apply_rotary_emb_complex(turned, freqs)


def block_args(batch: int, rows: int) -> tuple[torch.Tensor, ...]:
    x = rand(batch, rows, 8)
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    angles = torch.outer(torch.arange(rows), torch.tensor([1.0, 0.5]))
    return (x, rand(batch, 8), *tables(heads, True), torch.polar(torch.ones_like(angles), angles))


def test_export_keeps_one_node_for_each_with_free_sizes(quickly) -> None:
    batch, rows = Dim("batch", min=2, max=64), Dim("rows", min=2, max=64)
    shapes = ({0: batch, 1: rows}, {0: batch}, {0: rows}, {0: rows}, {0: rows})
    block = Block()
    exported = export.export(block, block_args(3, 5), None, shapes)
    oracle = GraphOracle()
    structure = export.build_program(exported, oracle, forward=block.forward, dynamic_shapes=shapes)
    assert [node.op for node in oracle.nodes if node.op.startswith("callboard::")] == [
        "callboard::silu_linear_chunk",
        "callboard::layer_norm_mul_add",
        "callboard::apply_rotary_emb",
        "callboard::apply_rotary_emb_complex",
    ]
    for sizes in ((3, 5), (2, 9)):
        args = block_args(*sizes)
        with torch.no_grad():
            wanted = block(*args)
        got = structure.unflatten(oracle.run(list(structure.flatten(args, {}))))
        assert torch.equal(got, wanted)


X, COS = rand(2, 2, 5, 8), rand(5, 8)
MISFITS = {
    "x of two dimensions": (
        NORM,
        (rand(2, 8), rand(2, 8), rand(2, 8), [8], 1e-5),
        "x is float32 [2, 8], needed is [B, S, D]",
    ),
    "scale of other sizes": (
        NORM,
        (rand(2, 5, 8), rand(3, 8), rand(2, 8), [8], 1e-5),
        "scale is float32 [3, 8], needed is",
    ),
    "shift of other sizes": (
        NORM,
        (rand(2, 5, 8), rand(2, 8), rand(2, 7), [8], 1e-5),
        "shift is float32 [2, 7], needed is",
    ),
    "another normalized shape": (NORM, (rand(2, 5, 8), rand(2, 8), rand(2, 8), [5], 1e-5), "normalized_shape is [5]"),
    "no normalized shape": (NORM, (rand(2, 5, 8), rand(2, 8), rand(2, 8), [], 1e-5), "normalized_shape is []"),
    "emb of three dimensions": (CHUNK, (rand(2, 3, 4), rand(6, 4), None, 2), "emb is float32 [2, 3, 4]"),
    "weight of other sizes": (
        CHUNK,
        (rand(2, 4), rand(6, 5), None, 2),
        "weight is float32 [6, 5], needed is float32 [N, E] = [N, 4]",
    ),
    "bias of other sizes": (
        CHUNK,
        (rand(2, 4), rand(6, 4), rand(5), 2),
        "bias is float32 [5], needed is float32 [N] = [6]",
    ),
    "weight of another dtype": (
        CHUNK,
        (rand(2, 4), rand(6, 4, dtype=torch.bfloat16), None, 2),
        "weight is bfloat16 [6, 4], needed is float32",
    ),
    "no chunks": (CHUNK, (rand(2, 4), rand(6, 4), None, 0), "chunks is 0"),
    "an odd head size": (ROTARY, (rand(2, 2, 5, 7), rand(5, 7), rand(5, 7), True), "with an even D"),
    "integers": (ROTARY, (X.int(), COS, COS, True), "x is int32"),
    "a table of other sizes": (ROTARY, (X, rand(4, 8), COS, False), "cos is float32 [4, 8]"),
    "a table of more dimensions": (ROTARY, (X, COS, rand(1, 1, 1, 5, 8), False), "sin is float32 [1, 1, 1, 5, 8]"),
    "a complex table": (ROTARY, (X, COS.to(torch.complex64), COS, True), "cos is complex64"),
    "a real table": (COMPLEX, (X, rand(5, 4)), "freqs is float32 [5, 4], needed is complex"),
    "a complex table of other sizes": (COMPLEX, (X, COS.to(torch.complex64)), "freqs is complex64 [5, 8]"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_arguments_that_do_not_fit_are_refused_here_and_in_export(case: str) -> None:
    (fused, eager, _), args, said = MISFITS[case]
    on_meta = tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args)
    for function, given in ((fused, args), (fused, on_meta), (eager, args)):
        with pytest.raises(InputError) as caught:
            function(*given)
        assert said in caught.value.message
        assert caught.value.operator == fused.__callboard_kernel__.op


# -- when compiling does not work -------------------------------------------------------------------------------------


def doubled(addend: int) -> Callable[..., torch.Tensor]:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + addend

    return double


def test_constants_have_forms_of_their_own(quickly) -> None:
    fusion = Fusion("test::double", doubled)
    x = rand(3, 4)
    for addend in (1, 2, 1):
        assert torch.equal(fusion((x,), (addend,), "error"), x * 2 + addend)
    assert len(fusion._variants) == 2 and fusion.eager_calls == 0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="allowed: eager or error"):
        fusions.silu_linear_chunk(rand(2, 4), rand(6, 4), None, 2, on_compile_failure="retry")


def test_beyond_its_forms_a_fusion_runs_eagerly_or_says_so(quickly, monkeypatch, caplog) -> None:
    monkeypatch.setattr(_compile, "_VARIANTS_MAX", 2)
    fusion = Fusion("test::double", doubled)
    x = rand(3, 4)
    with caplog.at_level(logging.WARNING, logger="callboard"):
        for addend in (1, 2, 3, 3, 4):
            assert torch.equal(fusion((x,), (addend,), "eager"), x * 2 + addend)
    assert fusion.eager_calls == 3 and len(fusion._variants) == 2
    assert [r.getMessage() for r in caplog.records] == [
        "test::double runs without compilation: there are 2 compiled forms of it already"
    ]
    with pytest.raises(KernelError, match="2 compiled forms") as caught:
        fusion((x,), (5,), "error")
    assert caught.value.operator == "test::double"


def test_beyond_torch_s_limit_only_the_new_form_runs_eagerly(quickly, caplog) -> None:
    fusion = Fusion("test::double", doubled)
    x = rand(3, 4)
    other = x.t().contiguous().t()  # strides in another order are another form to torch
    with torch._dynamo.config.patch(recompile_limit=1), caplog.at_level(logging.WARNING, logger="callboard"):
        for given in (x, other, x):
            assert torch.equal(fusion((given,), (1,), "eager"), x * 2 + 1)
        assert fusion.eager_calls == 1
        ours = [r.getMessage() for r in caplog.records if r.name.startswith("callboard")]
        assert len(ours) == 1 and "too many forms" in ours[0]
        with pytest.raises(KernelError, match="too many forms"):
            fusion((other,), (1,), "error")


def test_a_first_compilation_that_finds_its_threads_changed_is_tried_again(quickly, monkeypatch) -> None:
    fusion = Fusion("test::double", doubled)
    x, threads = rand(3, 4), torch.get_num_threads()
    real, outcomes = torch.compile, []

    def confused(function: Any, **options: Any) -> Any:
        compiled = real(function, **options)

        def call(*args: Any) -> Any:
            outcomes.append(torch.get_num_threads())
            if len(outcomes) == 1:
                torch.set_num_threads(threads + 1)
                raise AssertionError("Global num_threads state changed while dynamo tracing, please report a bug")
            return compiled(*args)

        return call

    monkeypatch.setattr(torch, "compile", confused)
    for _ in range(2):
        assert torch.equal(fusion((x,), (1,), "error"), x * 2 + 1)
    assert outcomes == [threads] * 3 and torch.get_num_threads() == threads


SCRIPT = """
    import json, logging, sys
    import torch
    import callboard
    from callboard.kernels import fusions

    torch.set_num_threads(2)
    logging.basicConfig(level=logging.WARNING, format="LOG %(name)s %(message)s", stream=sys.stderr)
    x, scale, shift = torch.randn(3, 5, 16), torch.randn(3, 16), torch.randn(3, 16)
    for rows in (5, 4, 2):
        args = (x[:, :rows].contiguous(), scale, shift, [16], 1e-5)
        got = fusions.layer_norm_mul_add(*args)
        torch.testing.assert_close(got, fusions.layer_norm_mul_add_eager(*args))
    failure = None
    if "error" in sys.argv:
        try:
            fusions.layer_norm_mul_add(*args, on_compile_failure="error")
        except callboard.CallboardError as error:
            failure = [type(error).__name__, error.message, error.hint]
    print(json.dumps({**vars(fusions.compile_counters()), "threads": torch.get_num_threads(), "failure": failure}))
"""


def run_script(*arguments: str, **environment: str) -> tuple[dict[str, Any], list[str]]:
    """(what it printed, its lines of log)."""
    variables = {k: v for k, v in client_environment().items() if k not in ("TORCHINDUCTOR_CACHE_DIR", "CXX")}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments],
        env={**variables, **environment}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), [line for line in ended.stderr.splitlines() if line.startswith("LOG callboard")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_another_process_loads_what_one_compiled(tmp_path) -> None:
    first, _ = run_script(CALLBOARD_CACHE=str(tmp_path))
    assert first == {"graphs": 1, "cache_hits": 0, "cache_misses": 1, "eager_calls": 0, "threads": 2, "failure": None}
    folder = tmp_path / "inductor"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    second, _ = run_script(CALLBOARD_CACHE=str(tmp_path))
    assert second == {**first, "cache_hits": 1, "cache_misses": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_a_compiler_it_runs_eagerly_and_says_so_once_or_refuses(tmp_path) -> None:
    (tmp_path / "bin").mkdir()
    counted, log = run_script("error", CALLBOARD_CACHE=str(tmp_path / "cache"), PATH=str(tmp_path / "bin"))
    assert counted["eager_calls"] == 3
    assert counted["threads"] == 2
    assert len(log) == 1 and "callboard::layer_norm_mul_add runs without compilation" in log[0]
    assert "C++ compiler" in log[0]
    kind, message, hint = counted["failure"]
    assert kind == "KernelError" and "C++ compiler" in message and "CXX" in hint


# -- the cache's folder -----------------------------------------------------------------------------------------------


def test_the_folder_is_the_user_s_choice_in_order(monkeypatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "CALLBOARD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/users/somebody")
    assert fusions.cache_folder() == Path("/users/somebody/.cache/callboard/inductor")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert fusions.cache_folder() == Path("/xdg/callboard/inductor")
    monkeypatch.setenv("CALLBOARD_CACHE", "/ours")
    assert fusions.cache_folder() == Path("/ours/inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/torch")
    assert fusions.cache_folder() == Path("/torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # torch's own default is nobody's choice
    assert fusions.cache_folder() == Path("/ours/inductor")


@pytest.fixture
def unprepared(monkeypatch) -> None:
    monkeypatch.setattr(_compile, "_PREPARED", type(_compile._PREPARED)())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))  # restored afterwards


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(unprepared, monkeypatch, tmp_path, mode: int) -> None:
    tmp_path.chmod(mode)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with pytest.raises(MachineError, match="can be written by others") as caught:
        _compile.prepare()
    assert "chmod 700" in caught.value.hint
    tmp_path.chmod(0o700)
    _compile.prepare()


def test_a_folder_that_cannot_be_made_is_refused(unprepared, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "inductor"))
    with pytest.raises(MachineError, match="cannot be made: Not a directory"):
        _compile.prepare()


def test_a_call_that_finds_no_folder_runs_eagerly_or_refuses(unprepared, monkeypatch, tmp_path, caplog) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "inductor"))
    _compile.warm_up(torch.device("cpu"))
    fusion = Fusion("test::double", doubled)
    x = rand(3, 4)
    with caplog.at_level(logging.WARNING, logger="callboard"):
        for _ in range(2):
            assert torch.equal(fusion((x,), (1,), "eager"), x * 2 + 1)
    assert fusion.eager_calls == 2
    assert len(caplog.records) == 1 and "Not a directory" in caplog.records[0].getMessage()
    with pytest.raises(KernelError, match="Not a directory") as caught:
        fusion((x,), (1,), "error")
    assert "CALLBOARD_CACHE" in caught.value.detail


def test_the_warm_up_prepares_the_folder(unprepared, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "made" / "inductor"))
    fusions.layer_norm_mul_add.__callboard_kernel__.warm_up(torch.device("cpu"))
    assert stat.S_IMODE((tmp_path / "made" / "inductor").stat().st_mode) == 0o700
