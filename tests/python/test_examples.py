"""The C++ examples, each in its own process against a real cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

import callboard

BIN = Path(os.environ["CALLBOARD_BIN_DIR"])


@pytest.fixture(scope="module")
def cluster():
    with callboard.launch({"devices": [{"kind": "cpu", "count": 2, "threads": 1}]}) as running:
        yield running


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / name, *arguments], capture_output=True, text=True, timeout=60, check=False)


def libraries_of(name: str) -> str:
    return subprocess.run(["ldd", BIN / name], capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_program_that_is_built_in_cpp_runs_without_python_and_libtorch(cluster):
    done = run("example-builder", cluster.run_dir)
    assert done.returncode == 0, done.stderr
    expected = torch.relu(torch.tensor([[1.0, 2], [-3, 4]]) @ torch.tensor([[1.0, 0, -1], [2, 0, 1]]))
    lines = done.stdout.splitlines()
    assert lines[0] == "float32[2, 3]"
    got = torch.tensor([[float(number) for number in line.split()] for line in lines[1:]])
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    libraries = libraries_of("example-builder")
    assert "torch" not in libraries
    assert "python" not in libraries


def test_a_program_saved_in_python_runs_in_cpp(cluster, tmp_path):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).eval()
    program = cluster.compile(
        model,
        (torch.ones(2, 8),),
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=64)},),
        placement={"cpu0": ["0"], "cpu1": ["2"]},
    )
    path = tmp_path / "model.safetensors"
    program.save(path)
    done = run("example-saved-program", cluster.run_dir, str(path))
    assert done.returncode == 0, done.stderr
    shape, _, total = done.stdout.strip().rpartition(" sum ")
    assert shape == "float32[2, 4]"
    with torch.no_grad():
        expected = model(torch.ones(2, 8)).double().sum().item()
    assert float(total) == pytest.approx(expected, abs=1e-5)


def test_a_cpp_program_with_libtorch_takes_and_gives_its_tensors(cluster):
    done = run("example-torch-view", cluster.run_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"


def test_an_example_says_what_is_wrong_and_does_not_crash(cluster, tmp_path):
    done = run("example-saved-program", cluster.run_dir, str(tmp_path / "missing.safetensors"))
    assert done.returncode == 1
    assert "missing.safetensors" in done.stderr
    assert run("example-builder", "no-such-cluster").returncode == 1
