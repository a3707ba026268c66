"""`callboard run`: what it reads, and what it does not write over."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

from callboard._native import FragmentBuilder
from cli_support import Lab


@pytest.fixture
def negate(tmp_path: pathlib.Path) -> pathlib.Path:
    """A program of one input, x, beside its x.npy."""
    builder = FragmentBuilder("negate")
    x = builder.add_input("x", "float32", [3])
    (y,) = builder.add_node("aten::neg", [("tensor", x)], outputs=[("tensor", "y", "float32", [3])])
    builder.add_output("y", ("tensor", y))
    builder.save(str(tmp_path / "negate.callboard"))
    np.save(tmp_path / "x.npy", np.zeros(3, dtype=np.float32))
    return tmp_path / "negate.callboard"


def test_run_does_not_write_over_what_it_must_not(lab: Lab, negate: pathlib.Path) -> None:
    folder = negate.parent
    os.mkfifo(folder / "pipe")
    os.link(negate, folder / "hard")
    (folder / "soft").symlink_to("x.npy")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for output, text in (
        ("/dev/full", "it is a device"),
        (str(folder / "pipe"), "it is a pipe"),
        (str(folder), "it is a folder"),
        ("/nonexistent/y.npy", "/nonexistent"),
        (str(negate), "which the run reads"),
        (f"{folder}/../{folder.name}/hard", "which the run reads"),
        (str(folder / "x.npy"), "which the run reads"),
        (str(folder / "soft"), "which the run reads"),
        ("json", "--output ./json writes that file"),
        ("-", "not written to standard output"),
    ):
        # There is no cluster: that would be found missing next.
        refused = lab("run", str(negate), "--input", f"x={folder}/x.npy", "--output", output)
        assert refused.returncode == 2, refused.stderr
        assert text in refused.stderr
    assert pathlib.Path("/dev/full").is_char_device()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert lab("run", str(negate), "--input", f"x={folder}/x.npy", "--output", f"{folder}/y.npy").returncode == 1


def test_wrong_arguments_and_files_of_run_are_usage_errors(lab: Lab, negate: pathlib.Path) -> None:
    x = f"x={negate.parent}/x.npy"
    for arguments in (
        [str(negate), "--input", x, "--deadline", "5"],
        [str(negate), "--input", x, "--deadline", "0s"],
        [str(negate), "--input", x, "--deadline", "25h"],
        ["."],
        ["/bin/ls"],
        ["/dev/null"],
        [str(negate), "--input", "x=/bin/ls"],
        [str(negate), "--input", x, "--placement", "=a"],
    ):
        result = lab("run", *arguments)
        assert result.returncode == 2, (arguments, result.stderr)


def test_a_trace_that_cannot_be_written_is_refused_before_anything_starts(lab: Lab) -> None:
    for path in ("/proc/x/t.json", "/nonexistent/t.json", "/dev/full"):
        lab.write(f"name: lab\ndevices: [{{kind: cpu}}]\ntracing: {{enabled: true, file: {path}}}\n")
        up = lab.up()
        assert up.returncode == 2, up.stderr
        assert f"tracing.file: '{path}' cannot be written" in up.stderr
        assert "starting" not in up.stderr
    assert not pathlib.Path("/nonexistent").exists()


def test_run_without_a_cluster_or_a_program_file_says_so(lab: Lab, tmp_path: pathlib.Path) -> None:
    missing = lab("run", "/nonexistent/program.safetensors")
    assert missing.returncode == 2
    assert "/nonexistent/program.safetensors" in missing.stderr
    garbage = tmp_path / "x.safetensors"
    garbage.write_bytes(b"\xff" * 64)
    broken = lab("run", str(garbage))
    assert broken.returncode != 0
    assert str(garbage) in broken.stderr
    array = tmp_path / "x.npy"
    np.save(array, np.zeros(3, dtype=np.float32))
    swapped = lab("run", str(array))
    assert swapped.returncode == 2
    assert "is an array, not a program" in swapped.stderr


def test_an_input_without_a_name_is_a_usage_error_that_says_the_name(lab: Lab, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "negate.safetensors"
    builder = FragmentBuilder("negate")
    x = builder.add_input("x", "float32", [3])
    (y,) = builder.add_node("aten::neg", [("tensor", x)], outputs=[("tensor", "y", "float32", [3])])
    builder.add_output("y", ("tensor", y))
    builder.save(str(program))
    nameless = lab("run", str(program), "--input", "x.npy")
    assert nameless.returncode == 2, nameless.stderr
    assert "--input x=x.npy" in nameless.stderr
