"""The JSON Schema that `callboard config schema` prints accepts what the parser accepts and refuses what it refuses."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import jsonschema
import pytest

from cli_support import ROOT, callboard

EXAMPLES = sorted((ROOT / "config/examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(callboard("config", "schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def effective(path: pathlib.Path) -> str:
    return callboard("config", "show", str(path)).stdout


def parser_accepts(document: Any) -> bool:
    result = subprocess.run(
        [*callboard.command, "validate", "-"], input=json.dumps(document), capture_output=True, text=True, timeout=30
    )
    assert result.returncode in (0, 2), result.stderr
    return result.returncode == 0


def test_the_examples_are_there() -> None:
    assert [path.stem for path in EXAMPLES] == ["one_cpu", "two_cpu"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema(validator: Any, path: pathlib.Path) -> None:
    yaml = pytest.importorskip("yaml")
    for text in (path.read_text(), effective(path)):
        validator.validate(yaml.safe_load(text))


ACCEPTED: list[dict[str, Any]] = [
    {"devices": [{}]},
    {"devices": [{"kind": "cpu", "count": 2, "memory_limit": "50%"}], "name": "a-1"},
    {"devices": [{"kind": "cuda", "index": [0, 1], "name": "g{i}"}], "heartbeat": {"interval": "100ms"}},
    {"devices": [{"kind": "cuda", "index": 3}], "restart": {"policy": "never", "backoff": {"min": "1s"}}},
    {
        "devices": [{}],
        "log": {"level": "debug", "dir": "/tmp/x"},
        "checks": {"nan": True},
        "limits": {"stop_grace": "0s"},
    },
]
REFUSED: list[Any] = [
    [],
    {},
    {"devices": []},
    {"devices": {}},
    {"devices": [{"kind": "gpu"}]},
    {"devices": [{"count": 0}]},
    {"devices": [{"count": "2"}]},
    {"devices": [{"count": 1.5}]},
    {"devices": [{"threads": True}]},
    {"devices": [{"memory_limit": 4096}]},
    {"devices": [{"memory_limit": "4GB"}]},
    {"devices": [{"memory_limit": "101%"}]},
    {"devices": [{"memory_limit": "1.5GiB"}]},
    {"devices": [{"name": "Cpu"}]},
    {"devices": [{"index": []}, {"kind": "cuda"}]},
    {"devices": [{}], "nmae": "x"},
    {"devices": [{}], "name": "A"},
    {"devices": [{}], "version": 2},
    {"devices": [{}], "limits": None},
    {"devices": [{}], "limits": {"deadline": "500"}},
    {"devices": [{}], "heartbeat": {"interval": "010ms"}},
    {"devices": [{}], "log": {"level": "loud"}},
    {"devices": [{}], "log": {"dir": "logs"}},
    {"devices": [{}], "log": {"dir": "/tmp/$X"}},
    {"devices": [{}], "checks": {"nan": "true"}},
    {"devices": [{}], "restart": {"backoff": {"wait": "1s"}}},
]


@pytest.mark.parametrize("document", ACCEPTED, ids=json.dumps)
def test_schema_and_parser_accept(validator: Any, document: Any) -> None:
    validator.validate(document)
    assert parser_accepts(document)


@pytest.mark.parametrize("document", REFUSED, ids=json.dumps)
def test_schema_and_parser_refuse(validator: Any, document: Any) -> None:
    assert not validator.is_valid(document)
    assert not parser_accepts(document)


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs/cluster-file.md").read_text() == callboard("config", "reference").stdout


# -- schemas of Python kernels ----------------------------------------------------------------------------------------

PLAIN = {
    "IntType", "SymIntType", "FloatType", "BoolType", "NumberType", "ComplexType", "StringType", "DeviceObjType"
}  # fmt: skip


def inner(kind: Any) -> Any:
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def device_takes(schema: Any) -> bool:
    """As kernels/python/function_table.cpp judges the types."""

    def argument(kind: Any) -> bool:
        kind = inner(kind)
        if kind.kind() == "ListType":
            element = inner(kind.getElementType())
            return element.kind() in PLAIN | {"TensorType"} or (element.kind() == "ListType" and argument(element))
        return kind.kind() in PLAIN | {"TensorType", "ScalarTypeType", "LayoutType", "MemoryFormatType"}

    def result(kind: Any) -> bool:
        if kind.kind() == "ListType":
            return bool(inner(kind.getElementType()).kind() == "TensorType")
        return inner(kind).kind() in {"TensorType", "IntType", "SymIntType", "FloatType", "BoolType"}

    return all(argument(one.real_type) for one in schema.arguments) and all(
        result(one.real_type) for one in schema.returns
    )


def kernels_of(schemas: list[str]) -> dict[str, Any]:
    entries = [{"target": f"m:f{number}", "schema": schema} for number, schema in enumerate(schemas)]
    return {"devices": [{"python": "inline"}], "python": {"kernels": entries}}


def test_validate_refuses_no_schema_that_a_device_takes() -> None:
    """Over PyTorch's own operators, in a namespace that is free."""
    import torch

    schemas = set()
    for known in torch._C._jit_get_all_schemas():
        text = f"corpus::{str(known).partition('::')[2]}"
        try:
            parsed = torch._C.parse_schema(text, allow_typevars=False)
        except RuntimeError:
            continue
        if "..." not in text and device_takes(parsed):
            schemas.add(text)
    found = sorted({schema.partition("(")[0]: schema for schema in sorted(schemas)}.values())
    assert len(found) > 1_000
    for begin in range(0, len(found), 250):
        document = kernels_of(found[begin : begin + 250])
        result = callboard("validate", "-", stdin=json.dumps(document))
        assert "schema is" not in result.stdout


@pytest.mark.parametrize(
    "schema",
    [
        "my::f(Tensor", "my::f(Tensor x -> Tensor", "my::f(Tensr x) -> Tensor", "my::f(Tensor x) -> Tensor Tensor,",
        "my::f(Tensor x,) -> Tensor", "my::f.default(Tensor x) -> Tensor", "my::f(int n=1, Tensor x) -> Tensor",
        "my::f(Tensor(a! x) -> Tensor",
    ],
)  # fmt: skip
def test_what_validate_refuses_a_device_would_refuse(schema: str) -> None:
    import torch

    with pytest.raises(RuntimeError):
        torch._C.parse_schema(schema, allow_typevars=False)
    assert not parser_accepts(kernels_of([schema]))
