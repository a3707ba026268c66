"""Weights in files: mapped by the devices where they lie, found again after a restart, and never wrong in silence."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import callboard
from callboard.errors import CallboardError, FileChanged
from conftest import TWO_CPU, device_pid, eventually, kill_device
from models import rand, same

WIDTH = 512  # 1 MiB of weights a layer


class Layers(nn.Module):
    """Weights above what travels inline, and a bias whose size is no multiple of 64 bytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(21)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.odd = nn.Linear(WIDTH, 37)
        self.last = nn.Linear(37, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.odd(self.first(x))))


X = rand(3, WIDTH)
PLACEMENT = {"cpu0": ["first"], "cpu1": ["odd", "last"]}


@pytest.fixture(scope="module")
def cluster(run_root: Path) -> Iterator[Any]:
    """Two devices that hold no weights but these tests' own."""
    with callboard.launch(TWO_CPU) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(cluster: Any) -> Iterator[None]:
    yield
    gc.collect()
    wait_until_unused(cluster)


@pytest.fixture
def module() -> nn.Module:
    return Layers().train(False)


@pytest.fixture
def saved(cluster: Any, module: nn.Module, tmp_path: Path) -> Path:
    """A program file; what it was made of is unloaded from the host."""
    path = tmp_path / "layers.safetensors"
    save(cluster, module, path)
    return path


def held(cluster: Any) -> list[str]:
    """What the node actor keeps for programs: segments of constants, and files of weights."""
    links = []
    for entry in Path(f"/proc/{cluster.record['node_pid']}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(entry.readlink()))
    return [link for link in links if "callboard:constants" in link or "layers" in link or "module" in link]


def wait_until_unused(cluster: Any) -> None:
    eventually(lambda: not held(cluster), "the node actor keeps nothing that no program uses")


def save(cluster: Any, module: nn.Module, path: Path) -> None:
    cluster.compile(module, (X,), placement=PLACEMENT).save(path)
    wait_until_unused(cluster)


def expected(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return module(X)


def mapped_files(cluster: Any, device: str) -> set[str]:
    """Files and segments that the device maps."""
    lines = Path(f"/proc/{device_pid(cluster, device)}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}


def maps_weights(cluster: Any, device: str, path: Path) -> bool:
    return str(path) in mapped_files(cluster, device)


def maps_segment(cluster: Any, device: str) -> bool:
    return any("callboard:constants" in name for name in mapped_files(cluster, device))


def overwrite(path: Path, module: nn.Module, value: bytes = b"\0") -> None:
    """Changes the first weight of the first layer, in place."""
    first = next(module.parameters()).detach().numpy().tobytes()
    place = path.read_bytes().find(first)
    assert place >= 0
    with path.open("r+b") as file:
        file.seek(place)
        file.write(value * 4)


def test_a_saved_program_s_weights_are_mapped_where_they_lie(cluster: Any, module: nn.Module, saved: Path) -> None:
    program, again = cluster.load(saved), cluster.load(saved)
    assert held(cluster) == [str(saved)]
    assert same(program(X), expected(module)) == ""
    assert same(again(X), expected(module)) == ""
    for device in ("cpu0", "cpu1"):
        assert maps_weights(cluster, device, saved)
        assert not maps_segment(cluster, device)
    del program, again
    eventually(lambda: not maps_weights(cluster, "cpu0", saved), "the file is unmapped with its last program")


def test_every_tensor_of_a_program_file_lies_on_64_bytes_and_other_readers_see_no_holes(saved: Path) -> None:
    import json

    from safetensors import safe_open

    header = int.from_bytes(saved.read_bytes()[:8], "little")
    entries = json.loads(saved.read_bytes()[8 : 8 + header])
    metadata = entries.pop("__metadata__")
    assert metadata["format"] == "callboard-program"
    hashes = [name for name in entries if not name.startswith("__callboard")]
    assert len(hashes) == 6
    assert all((8 + header + entries[name]["data_offsets"][0]) % 64 == 0 for name in hashes)
    with safe_open(saved, "pt") as file:
        assert set(file.keys()) == set(entries)


def test_a_module_whose_parameters_map_a_file_takes_the_same_way(
    cluster: Any, module: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "module.pt"
    torch.save(module.state_dict(), path)
    view = Layers().train(False)
    view.load_state_dict(torch.load(path, mmap=True), assign=True)
    program = cluster.compile(view, (X,), placement="cpu0")
    assert same(program(X), expected(module)) == ""
    assert maps_weights(cluster, "cpu0", path)
    del program
    wait_until_unused(cluster)
    with torch.no_grad():
        view.first.weight[0, 0] += 1  # this process's page is its own now; the file is as it was
    program = cluster.compile(view, (X,), placement="cpu0")
    assert same(program(X), expected(view)) == ""
    assert maps_segment(cluster, "cpu0")


def test_a_file_whose_tensors_are_off_64_bytes_is_copied_once_for_the_host(
    cluster: Any, module: nn.Module, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "module.safetensors"
    for pad in ("", "0123456701234567"):  # the header's length decides where the data begin
        save_file(module.state_dict(), path, metadata={"pad": pad})
        view = Layers().train(False)
        view.load_state_dict(load_file(path), assign=True)
        aligned = view.first.weight.data_ptr() % 64 == 0
        program = cluster.compile(view, (X,), placement="cpu0")
        assert same(program(X), expected(module)) == ""
        assert maps_weights(cluster, "cpu0", path) == aligned
        assert maps_segment(cluster, "cpu0")  # what is small, or off


def test_a_restarted_device_maps_its_weights_again(own_cluster: Any, module: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "layers.safetensors"
    save(own_cluster, module, path)
    program = own_cluster.load(path)
    assert same(program(X), expected(module)) == ""
    path.unlink()  # the node actor has it open
    kill_device(own_cluster, "cpu0")
    assert same(program(X), expected(module)) == ""


def test_a_file_that_is_written_to_gives_an_error_and_no_wrong_number(
    cluster: Any, module: nn.Module, saved: Path
) -> None:
    program = cluster.load(saved)
    assert same(program(X), expected(module)) == ""
    overwrite(saved, module)
    with pytest.raises(FileChanged) as caught:
        program(X)
    assert str(saved) in str(caught.value)
    with pytest.raises(CallboardError) as refused:  # to load it again is of no use
        cluster.load(saved)
    assert refused.value.name == "corrupted"
    # The same weights from elsewhere do not come from the bad file.
    other = cluster.compile(module, (X,), placement="cpu0")
    assert same(other(X), expected(module)) == ""


def test_a_file_that_is_touched_or_replaced_goes_on_giving_the_same(
    cluster: Any, module: nn.Module, saved: Path
) -> None:
    program = cluster.load(saved)
    os.utime(saved)
    assert same(program(X), expected(module)) == ""
    program.save(saved)  # another file at its path
    assert same(program(X), expected(module)) == ""
    again = cluster.load(saved)
    assert same(again(X), expected(module)) == ""
    del again
    assert same(program(X), expected(module)) == ""


def test_a_file_that_is_cut_under_a_device_costs_an_error_and_no_device(
    cluster: Any, module: nn.Module, saved: Path
) -> None:
    pids = [device_pid(cluster, name) for name in ("cpu0", "cpu1")]
    program = cluster.load(saved)
    os.truncate(saved, 4096)  # the first run reads pages that nobody has touched
    for _ in range(2):
        with pytest.raises(FileChanged) as caught:
            program(X)
        assert str(saved) in str(caught.value)
    assert [device_pid(cluster, name) for name in ("cpu0", "cpu1")] == pids
    # The same program again, while the devices have it still: its weights come from here now.
    again = cluster.compile(module, (X,), placement=PLACEMENT)
    assert same(again(X), expected(module)) == ""
    assert same(program(X), expected(module)) == ""


def test_a_file_that_is_cut_before_its_device_comes_back_is_refused(
    own_cluster: Any, module: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "layers.safetensors"
    save(own_cluster, module, path)
    program = own_cluster.load(path)
    os.truncate(path, 4096)
    kill_device(own_cluster, "cpu0")
    with pytest.raises(CallboardError) as caught:
        program(X)
    assert "layers.safetensors" in str(caught.value)
    del program
    program = own_cluster.compile(module, (X,), placement="cpu0")
    assert same(program(X), expected(module)) == ""
