"""Exceptions by themselves: no cluster, no native module, no torch."""

from __future__ import annotations

import pickle

import pytest

from callboard import errors
from callboard.errors import CallboardError, from_fields

FIELDS = {
    "code": 401,
    "name": "kernel_failed",
    "message": "aten::mm failed: sizes do not match",
    "hint": "look at the sizes",
    "actor": "cpu0#2",
    "op": "aten::mm",
    "node": 17,
    "detail": "self float32[2, 3]\nmat2 float32[4, 5]",
    "causes": [{"code": 400, "name": "bad_input", "message": "one"}, {"code": 500, "message": "two"}],
}


def test_an_error_carries_code_actor_operator_and_cause() -> None:
    error = from_fields(FIELDS)
    assert type(error) is errors.KernelError
    assert (error.code, error.name, error.actor, error.operator, error.node) == (
        401, "kernel_failed", "cpu0#2", "aten::mm", 17,
    )  # fmt: skip
    assert isinstance(error.cause, errors.InputError)
    assert [cause.message for cause in error.causes] == ["one", "two"]


def test_the_text_says_what_where_why_and_what_to_do() -> None:
    text = str(from_fields(FIELDS))
    for part in ("sizes do not match", "aten::mm", "node 17", "cpu0#2", "hint: look at", "mat2 float32[4, 5]", "two"):
        assert part in text


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (104, errors.MessageError, RuntimeError),
        (201, errors.ConfigError, ValueError),
        (301, errors.UnknownOperator, errors.ProgramError),
        (306, errors.PlacementError, errors.ProgramError),
        (309, errors.UnsupportedError, errors.ProgramError),
        (311, errors.ExportError, errors.ProgramError),
        (399, errors.ProgramError, RuntimeError),
        (400, errors.InputError, ValueError),
        (404, errors.Cancelled, RuntimeError),
        (405, errors.DeadlineExceeded, TimeoutError),
        (406, errors.Overloaded, RuntimeError),
        (500, errors.ActorDied, RuntimeError),
        (502, errors.TensorLost, RuntimeError),
        (604, errors.StartError, errors.MachineError),
        (606, errors.ClusterNotFound, errors.MachineError),
        (607, errors.FileChanged, errors.MachineError),
        (900, errors.InternalError, RuntimeError),
        (12345, errors.InternalError, RuntimeError),
    ],
)
def test_codes_have_classes_of_one_family(code: int, kind: type, builtin: type) -> None:
    error = from_fields({"code": code, "message": "m"})
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert isinstance(error, CallboardError)


def test_errors_pickle() -> None:
    error = from_fields(FIELDS)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_deep_causes_end() -> None:
    fields = {"code": 400, "message": "deepest"}
    for number in range(30):
        fields = {"code": 400, "message": f"level {number}", "causes": [fields]}
    assert "deepest" not in str(from_fields(fields))
