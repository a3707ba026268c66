"""Callboard's operators as PyTorch sees them: values, derivatives, compilers, and one library for all processes."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import callboard
import ops_kernels
from callboard import ops
from callboard.errors import UnknownOperator
from conftest import client_environment, device_pid, python_command

BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", "build/release/bin"))
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
RMS = torch.ops.callboard.rms_norm.default


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """In float64, rounded once."""
    wide = x.double()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)


def made(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("width", [1, 3, 8, 31, 64, 65, 384, 4099])
def test_it_equals_the_reference_for_every_width(dtype: torch.dtype, width: int) -> None:
    x, weight = made(2, 5, width, dtype=dtype), made(width, dtype=dtype, seed=1)
    y = ops.rms_norm(x, weight, 1e-5)
    assert (y.dtype, y.shape, y.is_contiguous()) == (dtype, x.shape, True)
    assert_close(y, reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inputs_of_any_strides_give_the_same(dtype: torch.dtype) -> None:
    whole = made(6, 10, 16, dtype=dtype)
    weight = made(20, dtype=dtype, seed=1)
    views = {
        "transposed": (whole.transpose(0, 1), weight[:16]),
        "last dimension not innermost": (whole.transpose(1, 2), weight[::2]),
        "every second": (whole[:, :, ::2], weight[:16:2]),
        "expanded": (whole[:1].expand(4, 10, 16), weight[:1].expand(16)),
        "off the start": (whole[1:, 3:, 5:], weight[9:]),
    }
    for name, (x, factors) in views.items():
        assert_close(ops.rms_norm(x, factors), reference(x, factors), msg=lambda text, name=name: f"{name}: {text}")


def test_all_float16_numbers_are_read_and_rounded_right() -> None:
    """Subnormals, infinities and NaN among them. One column: y = x / sqrt(x² + 1), beside float32's own rounding."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16).reshape(-1, 1)
    one = torch.ones(1, dtype=torch.float16)
    y = ops.rms_norm(x, one, 1.0)
    wide = x.double()
    expected = wide / torch.sqrt(wide.float().pow(2).double() + 1)
    expected = expected.half()
    same = (y == expected) | (y.isnan() & expected.isnan())
    # Where the exact value lies next to the middle of two numbers, float32 may fall on the other side.
    off = (y.view(torch.int16).int() - expected.view(torch.int16).int()).abs()[~same]
    assert off.numel() < 66
    assert (off <= 1).all()


def test_all_bfloat16_numbers_are_read_and_rounded_right() -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).reshape(-1, 1)
    y = ops.rms_norm(x, torch.ones(1, dtype=torch.bfloat16), 1.0)
    wide = x.double()
    expected = (wide / torch.sqrt(wide.float().pow(2).double() + 1)).bfloat16()
    same = (y == expected) | (y.isnan() & expected.isnan())
    off = (y.view(torch.int16).int() - expected.view(torch.int16).int()).abs()[~same]
    assert off.numel() < 66
    assert (off <= 1).all()


def test_halves_are_summed_in_float32() -> None:
    """In their own precision the sum would stop growing at 2048 (float16), or overflow."""
    x = torch.full((1, 8192), 200.0, dtype=torch.float16)
    assert_close(ops.rms_norm(x, torch.ones(8192, dtype=torch.float16)), torch.ones_like(x))


@pytest.mark.parametrize("sizes", [(0, 8), (3, 0, 8), (3, 0), (0,)])
def test_empty_tensors_give_empty_tensors(sizes: tuple[int, ...]) -> None:
    y = ops.rms_norm(torch.empty(sizes), torch.ones(sizes[-1]))
    assert y.shape == sizes


def test_several_threads_give_what_one_gives() -> None:
    x, weight = made(512, 1024), made(1024, seed=1)
    alone = ops.rms_norm(x, weight)
    torch.set_num_threads(2)
    try:
        assert torch.equal(ops.rms_norm(x, weight), alone)
    finally:
        torch.set_num_threads(1)


def test_the_result_has_memory_of_its_own() -> None:
    x, weight = torch.zeros(4, 8), torch.ones(8)
    y = ops.rms_norm(x, weight)
    x.fill_(7)
    weight.fill_(7)
    assert torch.equal(y, torch.zeros(4, 8))


@pytest.mark.parametrize(
    ("x", "weight", "eps", "words"),
    [
        (torch.ones(2, 4), torch.ones(3), 1e-6, "weight has 3 elements, the last dimension of x has 4"),
        (torch.ones(2, 4), torch.ones(4, dtype=torch.float64), 1e-6, "x is Float, weight is Double"),
        (torch.ones(2, 4, dtype=torch.int32), torch.ones(4, dtype=torch.int32), 1e-6, "x is Int; it must be Float"),
        (torch.ones(2, 4), torch.ones(4, 1), 1e-6, "weight has 2 dimensions"),
        (torch.tensor(1.0), torch.ones(1), 1e-6, "x has no dimension"),
        (torch.ones(2, 4), torch.ones(4), -1.0, "eps is -1"),
        (torch.ones(2, 4), torch.ones(4), float("nan"), "eps is nan"),
        (torch.ones(2, 4, device="meta"), torch.ones(4), 1e-6, "x is on meta, weight on cpu"),
    ],
)
def test_a_wrong_argument_is_named(x: torch.Tensor, weight: torch.Tensor, eps: float, words: str) -> None:
    for call in (ops.rms_norm, ops.rms_norm_pybind):
        with pytest.raises(RuntimeError, match=words):
            call(x, weight, eps)


# -- as PyTorch's own operators are tested ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("gradients", [False, True])
def test_rms_norm_passes_opcheck(dtype: torch.dtype, gradients: bool) -> None:
    x, weight = made(3, 4, 8, dtype=dtype), made(8, dtype=dtype, seed=1)
    torch.library.opcheck(RMS, (x.requires_grad_(gradients), weight.requires_grad_(gradients), 1e-6))
    torch.library.opcheck(RMS, (x.transpose(0, 1), weight, 1e-6))


def test_its_derivatives_are_right_twice() -> None:
    for sizes in [(3, 5), (5,), (2, 3, 4)]:
        x = made(*sizes, dtype=torch.float64).requires_grad_()
        weight = made(sizes[-1], dtype=torch.float64, seed=1).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, w: ops.rms_norm(x, w, 1e-3), (x, weight))
        assert torch.autograd.gradgradcheck(lambda x, w: ops.rms_norm(x, w, 1e-3), (x, weight))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_equal_those_of_the_reference(dtype: torch.dtype) -> None:
    def gradients(function: Any) -> list[torch.Tensor]:
        x, weight = made(4, 32, dtype=dtype).requires_grad_(), made(32, dtype=dtype, seed=1).requires_grad_()
        function(x, weight).backward(made(4, 32, dtype=dtype, seed=2))
        return [x.grad, weight.grad]

    for ours, theirs in zip(gradients(ops.rms_norm), gradients(reference), strict=True):
        assert ours.dtype == dtype
        assert_close(ours, theirs)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, weight = made(4, 8).requires_grad_(), made(8, seed=1)
    ops.rms_norm(x, weight).sum().backward()
    assert x.grad is not None
    assert weight.grad is None
    y = made(4, 8)
    weight.requires_grad_()
    ops.rms_norm(y, weight).sum().backward()
    assert y.grad is None
    assert weight.grad is not None


def test_a_forward_derivative_is_refused_and_not_lost() -> None:
    import torch.autograd.forward_ad as forward

    with forward.dual_level(), pytest.raises(RuntimeError, match="jvp is not implemented"):
        ops.rms_norm(forward.make_dual(made(2, 4), made(2, 4)), torch.ones(4))


# -- compilers --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """The operator between others, with dynamic rows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(torch.ops.callboard.rms_norm(x * 2, self.weight, 1e-6))) + 1


def test_torch_compile_has_no_graph_break_and_the_same_numbers() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: ops.rms_norm(x * 2, w) + 1, backend="aot_eager", fullgraph=True)
    x, weight = made(4, 16).requires_grad_(), made(16, seed=1)
    y = compiled(x, weight)
    assert_close(y, reference(x * 2, weight) + 1)
    y.sum().backward()
    assert x.grad is not None
    explained = torch._dynamo.explain(lambda x, w: ops.rms_norm(x * 2, w) + 1)(x, weight)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@pytest.mark.slow
def test_inductor_compiles_it_whole_with_dynamic_sizes() -> None:
    torch._dynamo.reset()
    block = Block().eval()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (3, 7):
            assert_close(compiled(made(rows, 16)), block(made(rows, 16)))


def test_a_plain_pybind_function_breaks_the_graph() -> None:
    """What the operator is registered for."""
    torch._dynamo.reset()
    x, weight = made(4, 16), made(16, seed=1)
    function = lambda x, w: ops.rms_norm_pybind(x * 2, w) + 1  # noqa: E731
    assert_close(function(x, weight), reference(x * 2, weight) + 1)
    explained = torch._dynamo.explain(function)(x, weight)
    assert explained.graph_break_count >= 1
    assert explained.graph_count >= 2
    with pytest.raises(torch._dynamo.exc.Unsupported, match="rms_norm"):
        torch.compile(function, backend="eager", fullgraph=True)(x, weight)


def test_torch_export_keeps_it_as_one_node() -> None:
    rows = torch.export.Dim("rows", min=1, max=64)
    exported = torch.export.export(Block().eval(), (made(4, 16),), dynamic_shapes=({0: rows},))
    for program in (exported, exported.run_decompositions()):
        assert [str(node.target) for node in program.graph.nodes].count("callboard.rms_norm.default") == 1
        assert_close(program.module()(made(9, 16)), Block().eval()(made(9, 16)))


def test_torchscript_calls_and_saves_it(tmp_path: pathlib.Path) -> None:
    scripted = torch.jit.script(Block().eval())
    path = str(tmp_path / "block.pt")
    scripted.save(path)
    assert_close(torch.jit.load(path)(made(4, 16)), Block().eval()(made(4, 16)))


# -- one library for all processes ------------------------------------------------------------------------------------


def test_a_fragment_runs_it_on_a_device(cluster: Any) -> None:
    block = Block().eval()
    rows = torch.export.Dim("rows", min=1, max=64)
    program = cluster.compile(block, (made(4, 16),), dynamic_shapes=({0: rows},))
    for count in (1, 4, 33):
        with torch.no_grad():
            assert torch.equal(program(made(count, 16)), block(made(count, 16)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fragment_gives_the_bits_of_eager(cluster: Any, dtype: torch.dtype) -> None:
    x, weight = made(5, 48, dtype=dtype), made(48, dtype=dtype, seed=1)
    program = cluster.compile(lambda x, w: ops.rms_norm(x.transpose(0, 1).transpose(0, 1), w), (x, weight))
    assert torch.equal(program(x, weight), ops.rms_norm(x, weight))


def test_an_interpreter_in_the_devices_own_process_shares_the_library(run_root: pathlib.Path) -> None:
    """The kernel's module imports callboard.ops there before any fragment names an operator."""
    paths = [str(pathlib.Path(__file__).parent), str(pathlib.Path(callboard.__file__).parent.parent)]
    config = {
        "devices": [{"kind": "cpu", "python": "inline"}],
        "python": {"path": paths, "kernels": [{"target": "ops_kernels:normed"}]},
    }
    x, weight = made(3, 16), made(16, seed=1)
    with callboard.launch(config) as cluster:
        program = cluster.compile(lambda x, w: (ops_kernels.normed(x, w), ops.rms_norm(x, w)), (x, weight))
        by_python, by_fragment = program(x, weight)
        assert torch.equal(by_python, ops.rms_norm(x, weight))
        assert torch.equal(by_fragment, by_python)
        maps = pathlib.Path(f"/proc/{device_pid(cluster, 'cpu0')}/maps").read_text()
        assert len({line.split()[-1] for line in maps.splitlines() if "callboard_ops.so" in line}) == 1


def test_a_cpu_device_opens_the_library_and_no_library_of_cuda(cluster: Any) -> None:
    cluster.compile(Block().eval(), (made(4, 16),), placement="cpu0")(made(4, 16))
    pid = next(actor["pid"] for actor in cluster.status()["actors"] if actor["name"] == "cpu0")
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    assert "callboard_ops.so" in maps
    for word in ("libtorch_cuda", "libc10_cuda", "libtorch_python"):
        assert word not in maps


def test_the_library_links_nothing_of_the_actors() -> None:
    done = subprocess.run(["ldd", BIN / "callboard_ops.so"], capture_output=True, text=True, timeout=60, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert any("libtorch_cpu" in name for name in names), "ldd told nothing"
    for word in ("zmq", "yaml", "spdlog", "crypto", "torch_cuda", "c10_cuda", "torch_python", "libpython"):
        assert not [name for name in names if word in name]


REGISTERED_TWICE = """
import torch
torch.ops.load_library({library!r})
torch.ops.load_library({library!r})
from callboard import ops
print(ops.rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).tolist())
"""


def test_who_loads_the_library_first_does_not_matter() -> None:
    script = REGISTERED_TWICE.format(library=str(BIN / "callboard_ops.so"))
    done = subprocess.run(
        python_command(script), env=client_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[[1.0, 1.0, 1.0, 1.0]]"


def test_an_installation_without_the_library_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, run_root: pathlib.Path
) -> None:
    for name in ("callboard", "callboard-device"):
        shutil.copy(BIN / name, tmp_path / name)
    monkeypatch.setenv("CALLBOARD_BIN_DIR", str(tmp_path))
    with callboard.launch({"devices": [{"kind": "cpu"}]}) as cluster:
        with pytest.raises(UnknownOperator, match="callboard::rms_norm") as caught:
            cluster.compile(Block().eval(), (made(4, 16),))
        text = str(caught.value) + caught.value.detail + "".join(str(one) + one.detail for one in caught.value.causes)
        assert "callboard_ops.so" in text
    environment = {**client_environment(), "CALLBOARD_BIN_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "import callboard.ops"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "StartError" in done.stderr
    assert "callboard_ops.so" in done.stderr
