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
