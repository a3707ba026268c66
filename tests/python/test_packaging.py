"""The package as pip installs it: what the wheel holds, and what it does outside of this tree.

The wheel is built by its own backend. torch is not downloaded anew: the environment links to the one that builds.
"""

from __future__ import annotations

import ast
import importlib.machinery
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
HAS_CUDA = (pathlib.Path(os.environ["CALLBOARD_BIN_DIR"]) / "callboard_cuda.so").exists()
PROGRAMS = ["callboard-device", "callboard_ops.so", "callboard_python.so", "libcallboard_client.so"] + (
    ["callboard_cuda.so", "callboard_cuda_client.so"] if HAS_CUDA else []
)
WHEEL_BYTES_MAX = 40 << 20


def clean_environment(**more: str) -> dict[str, str]:
    """Nothing in it that leads to this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CALLBOARD_", "PYTHON"))}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def run(*command: object, cwd: pathlib.Path, timeout: float = 120, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    # What the release build compiled is found by ccache.
    run(
        sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w",
        folder, ROOT, cwd=folder, timeout=1500,
    )  # fmt: skip
    (file,) = folder.glob("callboard-*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A virtual environment with the wheel and links to everything else that this one has."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (here,) = pathlib.Path(sys.prefix).glob("lib/python*/site-packages")
    for entry in here.iterdir():
        if not entry.name.startswith("callboard"):
            (packages / entry.name).symlink_to(entry)
    # --python: pip installs there, as that environment's own would.
    run(
        sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--disable-pip-version-check",
        "--no-index", wheel, cwd=folder,
    )  # fmt: skip
    return folder


def installed_package(environment: pathlib.Path) -> pathlib.Path:
    (package,) = environment.glob("lib/python*/site-packages/callboard")
    return package


@pytest.mark.timeout(1600)
def test_the_wheel_holds_the_package_and_its_programs_and_nothing_else(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        entry_points = file.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        metadata = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
        tags = file.read(next(name for name in names if name.endswith("dist-info/WHEEL"))).decode()
    sources = {
        "callboard/" + path.relative_to(ROOT / "python/callboard").as_posix()
        for pattern in ("**/*.py", "**/*.pyi", "py.typed")
        for path in (ROOT / "python/callboard").glob(pattern)
    }
    modules = {f"callboard/{name}{SUFFIX}" for name in ("_native", "_plain_ops", "kvpool")}
    programs = {f"callboard/bin/{name}" for name in PROGRAMS}
    header = {"callboard/include/actors/client/c_api.h"}
    info = {name for name in names if ".dist-info/" in name}
    command = {name for name in names if re.fullmatch(r"callboard-[0-9.]+\.data/scripts/callboard", name)}
    assert len(command) == 1
    assert names - info - command == sources | modules | programs | header
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    assert "[torch_dynamo_backends]\ncallboard = callboard._compile_backend:compile_backend" in entry_points.replace(
        "=callboard", "= callboard"
    )
    assert "Requires-Dist: torch==2.11.0" in metadata
    assert f"Tag: cp{sys.version_info.major}{sys.version_info.minor}-" in tags


@pytest.mark.timeout(300)
def test_nothing_in_the_wheel_knows_where_it_was_built(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    programs = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert len(programs) == len(PROGRAMS) + 4
    for program in programs:
        dynamic = run("readelf", "-d", program, cwd=tmp_path)
        paths = re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic)
        assert all(part.startswith("$ORIGIN/") for path in paths for part in path.split(":")), (program.name, paths)
        assert ".debug_info" not in run("readelf", "-S", "-W", program, cwd=tmp_path), program.name


KERNELS = """
import torch
from torch import Tensor

import callboard


@callboard.kernel(schema="mine::twice(Tensor x) -> Tensor", fake=torch.empty_like)
def twice(x: Tensor) -> Tensor:
    return x * 2
"""

MAIN = """
import json, os, sys

import numpy
import torch

import callboard
import callboard.kvpool
import callboard.ops

sys.path.insert(0, os.getcwd())
import kernels_of_mine

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
x = torch.randn(4, 8)
python = {"path": [os.getcwd()], "kernels": [{"target": "kernels_of_mine:twice"}]}
devices = [{"name": "cpu0", "kind": "cpu", "threads": 1, "python": "inline"},
           {"name": "cpu1", "kind": "cpu", "threads": 1, "python": "process"}]
found = {"package": callboard.__file__, "pool": callboard.kvpool.BlockPool(4).allocate(3)}
with torch.no_grad(), callboard.launch({"devices": devices, "python": python}) as cluster:
    program = cluster.compile(model, (x,), placement={"cpu0": ["0", "1"], "cpu1": ["2"]})
    found["module"] = torch.equal(program(x), model(x))
    program.save("model.callboard")
    compiled = torch.compile(model, backend="callboard", options={"placement": ["cpu0", "cpu1"]})
    found["compiled"] = torch.equal(compiled(x), model(x))
    weight = torch.randn(8)
    on_device = cluster.op("callboard::rms_norm", x, weight, 1e-6)
    found["operator"] = torch.equal(on_device, callboard.ops.rms_norm(x, weight))
    found["kernels"] = [torch.equal(cluster.op("mine::twice", x, placement=device), x * 2)
                        for device in ("cpu0", "cpu1")]
    pids = [actor["pid"] for actor in cluster.status()["actors"] if actor["name"] in ("cpu0", "cpu1")]
    found["programs"] = sorted({os.readlink(f"/proc/{pid}/exe") for pid in pids})
numpy.save("x.npy", x.numpy())
numpy.save("y.npy", model(x).detach().numpy())
print(json.dumps(found))
"""


@pytest.mark.timeout(300)
def test_the_package_works_outside_of_this_tree(environment: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(KERNELS)
    (tmp_path / "main.py").write_text(MAIN)
    run_root = {"CALLBOARD_RUN_DIR": os.environ["CALLBOARD_RUN_DIR"] + "/package"}
    said = run(environment / "bin/python", "main.py", cwd=tmp_path, timeout=240, **run_root)
    found = json.loads(said.splitlines()[-1])
    package = installed_package(environment)
    assert found == {
        "package": str(package / "__init__.py"),
        "pool": [0, 1, 2],
        "module": True,
        "compiled": True,
        "operator": True,
        "kernels": [True, True],
        "programs": [str(package / "bin/callboard-device")],
    }

    # The command is the C++ program itself, and finds the device's program in the package.
    command = environment / "bin/callboard"
    assert command.read_bytes()[:4] == b"\x7fELF"
    assert run(command, "--version", cwd=tmp_path).strip()
    (tmp_path / "cluster.yaml").write_text("name: installed\ndevices: [{kind: cpu, count: 2}]\n")
    try:
        run(command, "up", "cluster.yaml", "--detach", cwd=tmp_path, **run_root)
        run(command, "run", "model.callboard", "--cluster", "installed", "--input", "input=x.npy", "--output", "z.npy",
            cwd=tmp_path, **run_root)  # fmt: skip
    finally:
        run(command, "down", "installed", cwd=tmp_path, **run_root)
    numpy = pytest.importorskip("numpy")
    numpy.testing.assert_array_equal(numpy.load(tmp_path / "z.npy"), numpy.load(tmp_path / "y.npy"))


@pytest.mark.timeout(300)
def test_the_demo_runs_from_the_package(environment: pathlib.Path, tmp_path: pathlib.Path) -> None:
    said = run(environment / "bin/python", ROOT / "examples/minilm.py", "--runs", 2, cwd=tmp_path, timeout=240,
               CALLBOARD_RUN_DIR=os.environ["CALLBOARD_RUN_DIR"] + "/demo")  # fmt: skip
    assert re.search(r"largest difference.*\b0(\.0)?\b", said, re.IGNORECASE), said


USER = """
import torch

import callboard
from callboard.kvpool import BlockPool

with callboard.launch({"devices": [{"kind": "cpu"}]}) as cluster:
    program = cluster.compile(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    future: callboard.TensorFuture = program.submit(torch.zeros(1, 2), deadline=2.0)
    blocks: list[int] | None = BlockPool(4).allocate(2)
"""


@pytest.mark.timeout(300)
def test_the_installed_stubs_type_a_users_program(environment: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def check(source: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "user.py").write_text(source)
        return subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "--python-executable",
             environment / "bin/python", "user.py"],
            cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    good = check(USER)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = check(USER.replace("deadline=2.0", 'deadline="soon"').replace("allocate(2)", "allocate(None)"))
    assert bad.returncode == 1
    assert "deadline" in bad.stdout and "allocate" in bad.stdout


def names_for_types_only(stub: pathlib.Path) -> set[str]:
    """TypedDicts and aliases: mypy reads them, the module has no such objects."""
    names = set()
    for statement in ast.parse(stub.read_text()).body:
        if isinstance(statement, ast.ClassDef) and any("TypedDict" in ast.unparse(base) for base in statement.bases):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names.update(target.id for target in statement.targets if isinstance(target, ast.Name))
    return names


@pytest.mark.timeout(300)
def test_the_stubs_name_what_the_native_modules_have(environment: pathlib.Path, tmp_path: pathlib.Path) -> None:
    modules = ["_native", "kvpool", "_plain_ops"]
    allowed = []
    for module in modules:
        stub = installed_package(environment) / f"{module}.pyi"
        allowed += [re.escape(f"callboard.{module}.{name}") for name in names_for_types_only(stub)]
        # pybind11's classes have a metaclass of their own and an __init__ that takes anything.
        classes = [node.name for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)]
        allowed += [re.escape(f"callboard.{module}.{name}") + r"(\.__init__)?" for name in classes]
    (tmp_path / "allowed").write_text("\n".join(sorted(set(allowed))))
    script = "import torch, sys; from mypy.stubtest import main; sys.exit(main())"
    run(environment / "bin/python", "-c", script, *(f"callboard.{module}" for module in modules), "--allowlist",
        tmp_path / "allowed", "--ignore-unused-allowlist", cwd=tmp_path, timeout=240)  # fmt: skip


@pytest.mark.timeout(120)
def test_the_source_archive_holds_what_a_build_needs(tmp_path: pathlib.Path) -> None:
    script = "import sys; sys.path.insert(0, 'tools/packaging'); import build_backend; " \
             "print(build_backend.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", script, tmp_path, cwd=ROOT).splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        files = {entry.name.split("/", 1)[1] for entry in archive.getmembers() if entry.isfile()}
    tracked = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    folders = ("actors/", "config/", "kernels/", "messages/", "python/", "tools/", "examples/", "tests/")
    needed = {file for file in tracked if file.startswith(folders) or (file and "/" not in file)}
    assert needed - {".gitignore", ".clang-format"} <= files
    assert not [file for file in files if file.startswith(("build/", ".git/", "out/"))]
    assert (tmp_path / name).stat().st_size < 10 << 20
