"""The C interface of the client, through ctypes, against a real cluster."""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_double, c_int64, c_size_t, c_void_p
from typing import Any

import pytest
import torch

BIN = pathlib.Path(os.environ.get("CALLBOARD_BIN_DIR", "build/release/bin"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = BIN / "libcallboard_client.so"
USAGE, BAD_INPUT, KERNEL_FAILED, NO_CLUSTER, NO_FILE = 210, 400, 401, 606, 211


class Tensor(ctypes.Structure):
    """callboard_tensor."""

    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_char_p),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("rank", c_size_t),
    )


@pytest.fixture(scope="module")
def c() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    library.callboard_last_error.restype = c_char_p
    library.callboard_connect.argtypes = [c_char_p, c_double, POINTER(c_void_p)]
    library.callboard_load.argtypes = [c_void_p, c_char_p, c_double, POINTER(c_void_p)]
    library.callboard_run.argtypes = [c_void_p, POINTER(Tensor), c_size_t, c_double, POINTER(c_void_p)]
    library.callboard_result_get.argtypes = [c_void_p, c_size_t, POINTER(Tensor)]
    for name in ("input_count", "output_count"):
        getattr(library, f"callboard_{name}").argtypes = [c_void_p]
        getattr(library, f"callboard_{name}").restype = c_size_t
    for name in ("disconnect", "unload", "release"):
        getattr(library, f"callboard_{name}").argtypes = [c_void_p]
        getattr(library, f"callboard_{name}").restype = None
    return library


def of(tensor: torch.Tensor) -> Tensor:
    """A view of a tensor, which must live as long."""
    sizes = (c_int64 * tensor.dim())(*tensor.shape)
    strides = (c_int64 * tensor.dim())(*tensor.stride())
    return Tensor(tensor.data_ptr(), str(tensor.dtype).removeprefix("torch.").encode(), sizes, strides, tensor.dim())


def to_torch(tensor: Tensor) -> torch.Tensor:
    """A copy of a contiguous float32 result."""
    assert tensor.dtype == b"float32"
    sizes = [tensor.sizes[i] for i in range(tensor.rank)]
    count = 1
    for size in sizes:
        count *= size
    memory = (ctypes.c_float * count).from_address(tensor.data)
    return torch.tensor(list(memory)).reshape(sizes)


class TwoResults(torch.nn.Module):
    """A small and a large result, and one that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.linear(x), y + 1, x.size(0)


@pytest.fixture(scope="module")
def saved(shared_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    shared_cluster.compile(TwoResults().eval(), (torch.ones(2, 3), torch.ones(300, 300))).save(path)
    return str(path)


@pytest.fixture
def client(c: Any, cluster: Any) -> Iterator[c_void_p]:
    handle = c_void_p()
    assert c.callboard_connect(str(cluster.run_dir).encode(), 10, byref(handle)) == 0, c.callboard_last_error()
    yield handle
    c.callboard_disconnect(handle)


@pytest.fixture
def program(c: Any, client: c_void_p, saved: str) -> Iterator[c_void_p]:
    handle = c_void_p()
    assert c.callboard_load(client, saved.encode(), 60, byref(handle)) == 0, c.callboard_last_error()
    yield handle
    c.callboard_unload(handle)


def test_a_saved_program_runs_and_its_results_are_read(c: Any, program: c_void_p) -> None:
    assert (c.callboard_input_count(program), c.callboard_output_count(program)) == (2, 3)
    x, y = torch.randn(2, 3), torch.randn(300, 300)
    result = c_void_p()
    assert c.callboard_run(program, (Tensor * 2)(of(x), of(y)), 2, 30, byref(result)) == 0, c.callboard_last_error()
    with torch.no_grad():
        expected = TwoResults().eval()(x, y)
    for index in range(2):
        found = Tensor()
        assert c.callboard_result_get(result, index, byref(found)) == 0
        assert torch.equal(to_torch(found), expected[index])
    assert c.callboard_result_get(result, 2, byref(Tensor())) == 309
    assert b"is no tensor" in c.callboard_last_error()
    assert c.callboard_result_get(result, 3, byref(Tensor())) == USAGE
    c.callboard_release(result)


def test_handles_may_be_given_back_in_any_order(c: Any, cluster: Any, saved: str) -> None:
    client, program, result = c_void_p(), c_void_p(), c_void_p()
    assert c.callboard_connect(str(cluster.run_dir).encode(), 10, byref(client)) == 0
    assert c.callboard_load(client, saved.encode(), 60, byref(program)) == 0
    c.callboard_disconnect(client)
    x, y = torch.randn(2, 3), torch.randn(300, 300)
    assert c.callboard_run(program, (Tensor * 2)(of(x), of(y)), 2, 30, byref(result)) == 0, c.callboard_last_error()
    c.callboard_unload(program)
    found = Tensor()
    assert c.callboard_result_get(result, 1, byref(found)) == 0
    assert torch.equal(to_torch(found), y + 1)
    c.callboard_release(result)
    for give_back in (c.callboard_disconnect, c.callboard_unload, c.callboard_release):
        give_back(None)


def test_what_does_not_fit_is_named_with_its_number(c: Any, program: c_void_p) -> None:
    x, y = torch.randn(2, 3), torch.randn(300, 300)

    def refused(*tensors: Tensor, count: int | None = None) -> str:
        result = c_void_p(1)
        given = (Tensor * max(1, len(tensors)))(*tensors)
        number = c.callboard_run(program, given, len(tensors) if count is None else count, 30, byref(result))
        assert number == BAD_INPUT, c.callboard_last_error()
        assert result.value is None
        return str(c.callboard_last_error().decode())

    good = of(y)
    assert "1 inputs were given, the program has 2" in refused(of(x))
    assert "'x'" in refused(of(torch.randn(2, 4)), good)
    assert "'x'" in refused(of(x.double()), good)
    assert "inputs[0] is not contiguous" in refused(of(torch.randn(3, 2).t()), good)
    wrong = of(x)
    wrong.dtype = b"float33"
    assert "inputs[0]" in refused(wrong, good)
    wrong = of(x)
    wrong.rank = 2**62
    assert "inputs[0].rank" in refused(wrong, good)
    wrong = of(x)
    wrong.sizes = (c_int64 * 2)(-1, 3)
    assert "negative size" in refused(wrong, good)
    wrong.sizes = (c_int64 * 2)(2**62, 2**62)
    assert "inputs[0]" in refused(wrong, good)
    for name in ("data", "dtype", "sizes"):
        wrong = of(x)
        setattr(wrong, name, None)
        assert f"inputs[0].{name} is NULL" in refused(wrong, good)


def test_null_and_wrong_limits_are_errors_and_no_crashes(c: Any, client: c_void_p, program: c_void_p) -> None:
    handle = c_void_p()
    for number in (
        c.callboard_connect(b"", 10, None),
        c.callboard_load(None, b"x", 10, byref(handle)),
        c.callboard_load(client, None, 10, byref(handle)),
        c.callboard_load(client, b"x", 10, None),
        c.callboard_run(None, None, 0, 10, byref(handle)),
        c.callboard_run(program, None, 2, 10, byref(handle)),
        c.callboard_result_get(None, 0, byref(Tensor())),
        c.callboard_result_get(None, 0, None),
    ):
        assert number == USAGE
        assert b"is NULL" in c.callboard_last_error()
    for seconds in (0, -1, float("nan"), float("inf"), 1e300):
        assert c.callboard_run(program, None, 2, seconds, byref(handle)) == USAGE
        assert b"'seconds'" in c.callboard_last_error()
    assert c.callboard_input_count(None) == 0


def test_what_is_not_there_has_its_own_number(c: Any, client: c_void_p, tmp_path: pathlib.Path) -> None:
    handle = c_void_p(1)
    assert c.callboard_connect(b"no-such-cluster", 1, byref(handle)) == NO_CLUSTER
    assert handle.value is None
    assert b"no-such-cluster" in c.callboard_last_error()
    assert c.callboard_load(client, str(tmp_path / "none").encode(), 10, byref(handle)) == NO_FILE
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    assert c.callboard_load(client, str(broken).encode(), 10, byref(handle)) != 0
    assert b"broken.safetensors" in c.callboard_last_error()


def test_a_devices_failure_arrives_as_a_number_and_a_text(
    c: Any, cluster: Any, client: c_void_p, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "index.safetensors"
    cluster.compile(lambda x, i: x[i], (torch.ones(4), torch.tensor([1]))).save(path)
    program, result = c_void_p(), c_void_p()
    assert c.callboard_load(client, str(path).encode(), 60, byref(program)) == 0, c.callboard_last_error()
    x, index = torch.ones(4), torch.tensor([9])
    assert c.callboard_run(program, (Tensor * 2)(of(x), of(index)), 2, 30, byref(result)) == KERNEL_FAILED
    assert b"index 9 is out of bounds" in c.callboard_last_error()
    c.callboard_unload(program)


def test_each_thread_has_its_own_last_error(c: Any) -> None:
    assert c.callboard_connect(b"of-the-first", 1, byref(c_void_p())) == NO_CLUSTER
    seen: list[bytes] = []

    def other() -> None:
        seen.append(c.callboard_last_error())
        c.callboard_connect(b"of-the-second", 1, byref(c_void_p()))
        seen.append(c.callboard_last_error())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    assert seen[0] == b""
    assert b"of-the-second" in seen[1]
    assert b"of-the-first" in c.callboard_last_error()


def test_several_threads_run_one_program(c: Any, program: c_void_p) -> None:
    failures: list[str] = []

    def calls(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x, y = torch.randn(2, 3, generator=generator), torch.randn(300, 300, generator=generator)
            result, found = c_void_p(), Tensor()
            if c.callboard_run(program, (Tensor * 2)(of(x), of(y)), 2, 60, byref(result)) != 0:
                failures.append(str(c.callboard_last_error()))
                return
            c.callboard_result_get(result, 1, byref(found))
            first = (ctypes.c_float * 1).from_address(found.data)[0]
            if first != (y + 1)[0, 0].item():
                failures.append("another thread's result")
            c.callboard_release(result)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == []


def test_the_header_is_c_and_the_library_exports_what_it_declares(c: Any, tmp_path: pathlib.Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    assert compiler is not None, "no C compiler is here, though one built this"
    source = tmp_path / "user.c"
    source.write_text('#include "actors/client/c_api.h"\nint main(void) { return callboard_c_api_version() != 1; }\n')
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    program = tmp_path / "user"
    subprocess.run(
        [compiler, *flags, f"-I{ROOT}", source, "-o", program, f"-L{BIN}", "-lcallboard_client", f"-Wl,-rpath,{BIN}"],
        check=True,
        timeout=60,
    )
    assert subprocess.run([program], timeout=20, check=False).returncode == 0
    assert c.callboard_c_api_version() == 1
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines() if " T " in line}
    header = (ROOT / "actors" / "client" / "c_api.h").read_text()
    declared = {word.split("(")[0] for word in header.replace("*", " ").split() if word.startswith("callboard_")}
    assert exported == {name for name in declared if f"{name}(" in header and f"typedef struct {name} " not in header}
    linked = subprocess.run(["ldd", LIBRARY], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "torch" not in linked
    assert "python" not in linked
