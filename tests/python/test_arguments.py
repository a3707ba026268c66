"""Arguments of the public calls that are none of a program's: each bad one is a typed error that names argument, value
and what is allowed.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import callboard
from callboard import _checked, errors
from models import rand

X = rand(3)
NAN, INF = math.nan, math.inf
HUGE = 10**5000  # more digits than Python prints

NO_TIMES = [-1, -1e-9, NAN, INF, -INF, 86_401, 1e300, HUGE, True, "1", [1], torch.tensor(1.0), 1j]


def negate(x: torch.Tensor) -> torch.Tensor:
    """A program for all these calls."""
    return -x


def entries(cluster: Any, program: Any) -> dict[str, tuple[str, Any, bool, bool]]:
    """Entry → name of its argument, call with a value, whether 0 and whether None is allowed."""
    done = program.submit(X)
    done.wait()
    return {
        "submit": ("deadline", lambda t: program.submit(X, deadline=t), False, True),
        "get": ("timeout", done.get, True, True),
        "wait_for": ("seconds", done.wait_for, True, False),
        "compile": ("timeout", lambda t: cluster.compile(negate, (X,), timeout=t), False, True),
        "load": ("timeout", lambda t: cluster.load("/nowhere", timeout=t), False, True),
        "operation": ("timeout", lambda t: cluster.operation("status", timeout=t), False, True),
        "connect": ("timeout", lambda t: callboard.connect(cluster.run_dir, timeout=t), False, False),
        "launch": ("timeout", lambda t: callboard.launch(timeout=t), False, False),
    }


@pytest.fixture(scope="module")
def program(shared_cluster: Any) -> Any:
    return shared_cluster.compile(negate, (X,), placement="cpu0")


@pytest.mark.parametrize(
    "entry", ["submit", "get", "wait_for", "compile", "load", "operation", "connect", "launch"]
)
def test_a_time_that_is_none_is_refused_with_what_is_allowed(cluster: Any, program: Any, entry: str) -> None:
    name, call, zero, none = entries(cluster, program)[entry]
    for value in [*NO_TIMES, *([] if zero else [0, 1e-12]), *([] if none else [None])]:
        with pytest.raises(errors.InputError) as caught:
            call(value)
        error = caught.value
        assert isinstance(error, ValueError)
        assert error.code == 400
        assert error.message.startswith(f"'{name}' is {_checked.shown(value)}; allowed: a number of seconds from 0")
        assert len(str(error)) < 300


def test_times_at_the_bounds_are_taken(cluster: Any, program: Any) -> None:
    for value in (None, 86_400, 30, 2.5, Fraction(5, 2)):
        assert torch.equal(program.submit(X, deadline=value).get(timeout=value), -X)
        assert cluster.operation("status", timeout=value)["ready"]
    future = program.submit(X)
    future.wait()
    assert future.wait_for(0)
    assert torch.equal(future.get(timeout=0), -X)
    with callboard.connect(cluster.run_dir, timeout=86_400) as other:
        assert other.name == cluster.name


def test_values_are_shown_in_one_short_line() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert _checked.shown(INF) == "float inf"
    assert _checked.shown(HUGE) == "int (cannot be printed)"
    assert _checked.shown(Mute()) == "Mute (cannot be printed)"
    assert _checked.shown(torch.ones(2, 2)) == "Tensor tensor([[1., 1.], [1., 1.]])"
    assert _checked.shown("x" * 100) == "str '" + "x" * 56 + "..."


NO_PLACEMENTS: list[tuple[Any, str]] = [
    (5, "placement is int 5; allowed: \"auto\", a device's name"),
    (True, "placement is bool True"),
    (NAN, "placement is float nan"),
    (b"cpu0", "placement is bytes b'cpu0'"),
    ({"cpu0"}, r"placement is set \{'cpu0'\}"),
    (torch.ones(2), "placement is Tensor"),
    ("", "placement is str ''; allowed: a device's name"),
    ([], r"placement is list \[\].*\"auto\""),
    ({}, r"placement is dict \{\}.*\"auto\""),
    (["cpu0", 1], r"placement\[1\] is int 1; allowed: a device's name"),
    ([["cpu0"]], r"placement\[0\] is list \['cpu0'\]"),
    ({5: ["a"]}, "a key of placement is int 5"),
    ({"cpu0": 5}, r"placement\['cpu0'\] is int 5; allowed: a list of module prefixes"),
    ({"cpu0": None}, r"placement\['cpu0'\] is NoneType None"),
    ({"cpu0": b"a"}, r"placement\['cpu0'\] is bytes"),
    ({"cpu0": {"a": 1}}, r"placement\['cpu0'\] is dict"),
    ({"cpu0": (0, 3)}, r"placement\['cpu0'\] is tuple \(0, 3\); allowed: a list.*write \[\(0, 3\)\]"),
    *[
        ({"cpu0": ["a", part]}, r"placement\['cpu0'\]\[1\] is .*allowed: a module prefix or a pair \(first, last\)")
        for part in [
            5, None, (), (0,), (0, 1, 2), (1, 0), (-1, 0), (0, NAN), (0, INF), (0.5, 1), (True, 1), ("a", "b"),
            (0, 2**32), (0, HUGE), {0: 1},
        ]
    ],
    ({"cpu0": ["aten::mul"]}, "names an operator; place the module that calls it, or its node by number"),
    ({"cpu0": "aten::mul.Tensor"}, "names an operator"),
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "program"
    program.save(file)
    return file


@pytest.mark.parametrize(("placement", "text"), NO_PLACEMENTS, ids=map(str, range(len(NO_PLACEMENTS))))
def test_a_placement_that_is_none_is_refused_before_anything_is_sent(
    cluster: Any, saved: Path, placement: Any, text: str
) -> None:
    for call in (
        lambda: cluster.compile(negate, (X,), placement=placement),
        lambda: cluster.load(saved, placement=placement),
        lambda: cluster.op("aten::neg", X, placement=placement),
    ):
        with pytest.raises(errors.PlacementError) as caught:
            call()
        assert caught.value.code == 306
        assert caught.value.actor == ""
        flat = " ".join(str(caught.value).split())
        assert re.search(text, flat), flat


def test_every_form_of_placement_works_for_one_operator_too(cluster: Any) -> None:
    for placement in ("auto", None, "cpu1", ["cpu1"], ("cpu0", "cpu1"), {"cpu1": [(0, 0)]}):
        assert torch.equal(cluster.op("aten::neg", X, placement=placement), -X)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda c, p: callboard.launch(5), errors.ConfigError, "'config' is int 5; allowed: a cluster file's path"),
        (lambda c, p: callboard.launch({"devices": {1}}), errors.ConfigError, "'config' is dict .*JSON"),
        (lambda c, p: callboard.connect(5), errors.InputError, "'cluster' is int 5; allowed: a cluster's name"),
        (lambda c, p: c.load(5), errors.InputError, "'path' is int 5; allowed: a path"),
        (lambda c, p: c.trace(5), errors.InputError, "'path' is int 5"),
        (lambda c, p: p.save(5), errors.InputError, "'path' is int 5"),
        (lambda c, p: c.compile(negate, (X,), name=5), errors.InputError, "'name' is int 5"),
        (lambda c, p: c.operation(5), errors.InputError, "'operation' is int 5"),
        (lambda c, p: c.operation("status", x={1}), errors.InputError, "operation 'status' are dict .*JSON"),
        (lambda c, p: p(X, deadline=1), errors.InputError, "not expected: deadline"),
        (lambda c, p: callboard.connect("a\0b"), errors.InputError, "'cluster' is str .*NUL"),
        (lambda c, p: c.load("a\0b"), errors.InputError, "'path' is str .*NUL"),
        (lambda c, p: c.trace("a\0b"), errors.InputError, "'path' is str .*NUL"),
        (lambda c, p: p.save("a\0b"), errors.InputError, "'path' is str .*NUL"),
        (lambda c, p: c.compile(negate, (X,), name="a\0b"), errors.InputError, "'name' is str .*NUL"),
    ],
)
def test_other_arguments_of_a_wrong_type_are_refused_too(
    cluster: Any, program: Any, call: Any, kind: type, text: str
) -> None:
    with pytest.raises(kind, match=text):
        call(cluster, program)
