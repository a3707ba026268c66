"""Users' operator libraries: the example, built in both of its ways, loaded into devices."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import callboard

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "operators"


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def by_extension(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("extension")
    library = pathlib.Path(run(sys.executable, EXAMPLE / "build.py", folder).splitlines()[-1])
    # Here too: the models below are exported with its operators.
    torch.ops.load_library(library)
    return library


@pytest.fixture(scope="module")
def by_cmake(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("cmake")
    run("cmake", "-S", EXAMPLE, "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "--build", folder)
    return folder / "libmyops.so"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.myops.clamp_scale(self.linear(x), -0.5, 0.5, 3.0) + 1


def file_with(*libraries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "devices": [{"kind": "cpu", "count": 2}],
        "operators": list(libraries),
        "restart": {"policy": "never"},
        **more,
    }


@pytest.fixture
def model() -> Iterator[Model]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Model().eval()


def check_runs(file: dict[str, Any], model: Model, library: pathlib.Path) -> None:
    x = torch.randn(5, 8)
    with callboard.launch(file) as cluster:
        devices = [actor for actor in cluster.status()["actors"] if actor["role"] == "device"]
        assert len(devices) == 2
        for device in devices:
            known = device["description"]["runtime"]["operator_libraries"]
            assert known == [
                {
                    "path": str(library),
                    "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
                    "operators": ["myops::clamp_scale"],
                }
            ]
        program = cluster.compile(model, (x,))
        assert torch.equal(program(x), model(x))
        with pytest.raises(callboard.errors.KernelError, match="low must not be above"):
            cluster.op("myops::clamp_scale", x, 1.0, -1.0, 1.0)
        assert torch.equal(program(x), model(x))


def test_a_library_built_by_cpp_extension_runs_on_devices(
    run_root: pathlib.Path, model: Model, by_extension: pathlib.Path
) -> None:
    check_runs(file_with({"path": str(by_extension)}), model, by_extension)


def test_a_library_built_by_cmake_runs_on_devices(
    run_root: pathlib.Path, model: Model, by_extension: pathlib.Path, by_cmake: pathlib.Path
) -> None:
    digest = hashlib.sha256(by_cmake.read_bytes()).hexdigest()
    check_runs(file_with({"path": str(by_cmake), "sha256": digest.upper()}), model, by_cmake)


def test_a_library_that_links_libtorch_python_runs_on_devices_without_python(
    run_root: pathlib.Path, model: Model, by_extension: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """As torch.utils.cpp_extension links it by default."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    library = tmp_path / "libmyops_default.so"
    run("c++", "-shared", "-Wl,--no-as-needed", "-o", library, by_extension.with_name("my_ops.o"),
        f"-L{folder}", "-lc10", "-ltorch_cpu", "-ltorch_python")  # fmt: skip
    check_runs(file_with({"path": str(library)}), model, library)


def test_a_missing_library_is_named_by_the_client(
    run_root: pathlib.Path, model: Model, by_extension: pathlib.Path
) -> None:
    x = torch.randn(5, 8)
    with callboard.launch(file_with()) as cluster:
        with pytest.raises(callboard.errors.UnknownOperator) as missing:
            cluster.compile(model, (x,))
        assert missing.value.operator == "myops::clamp_scale"
        assert f"operators: [{{path: {by_extension}}}]" in missing.value.hint
        assert torch.equal(cluster.compile(model.linear, (x,))(x), model.linear(x))


def test_a_file_that_is_not_there_is_refused_before_anything_starts(run_root: pathlib.Path) -> None:
    before = callboard.list_clusters()  # other tests' may run
    with pytest.raises(callboard.CallboardError) as missing:
        callboard.launch(file_with({"path": "/no/such/libmyops.so"}))
    assert "/no/such/libmyops.so cannot be read: No such file" in str(missing.value)
    assert "correct `operators` in the cluster file" in str(missing.value)
    assert callboard.list_clusters() == before


@pytest.mark.parametrize("kind", ["other_hash", "no_library", "twice"])
def test_a_library_that_cannot_be_loaded_says_why(
    run_root: pathlib.Path, by_extension: pathlib.Path, tmp_path: pathlib.Path, kind: str
) -> None:
    library = {"path": str(by_extension)}
    if kind == "other_hash":
        file, says = file_with({**library, "sha256": "0" * 64}), "the cluster file wants " + "0" * 64
    elif kind == "no_library":
        (tmp_path / "notes.so").write_text("not a library, but long enough to be looked at" * 10)
        file, says = file_with({"path": str(tmp_path / "notes.so")}), "invalid ELF header"
    else:
        shutil.copy(by_extension, tmp_path / "again.so")
        file, says = file_with(library, {"path": str(tmp_path / "again.so")}), "Only a single TORCH_LIBRARY"
    with pytest.raises(callboard.errors.StartError) as refused:
        callboard.launch(file)
    text = str(refused.value)
    assert says in text
    assert f"the operator library {file['operators'][-1]['path']} cannot be loaded" in text
    assert "exit status 1" in text or "exited with code 1" in text  # by whom it is told: node actor or coordinator
