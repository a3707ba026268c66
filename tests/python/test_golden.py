"""The wire format, read by the public msgpack and xxhash packages: what C++ writes is what the description says."""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from callboard._native import protocol_version

GOLDEN = Path(__file__).parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
describe = pytest.importorskip("describe", reason="needs the packages msgpack and xxhash")

EXPECTED: dict[str, Any] = json.loads((GOLDEN / "golden.json").read_text(encoding="utf-8"))


def body_of(name: str) -> Any:
    return describe.read_frame((GOLDEN / f"{name}.bin").read_bytes())[2]


def test_every_frame_is_described_and_every_description_has_its_frame() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in GOLDEN.glob("*.bin"))
    assert sorted({frame["type"] for frame in EXPECTED.values()}) == list(range(1, 51))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_header_checksum_and_contents_are_as_described(name: str) -> None:
    version, kind, body = describe.read_frame((GOLDEN / f"{name}.bin").read_bytes())
    assert version == EXPECTED[name]["version"] == protocol_version()
    assert kind == EXPECTED[name]["type"]
    assert describe.plain(body) == EXPECTED[name]["body"]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_bytes_are_the_shortest_msgpack_there_is(name: str) -> None:
    """So equal messages have equal bytes, whoever writes them: packing again with another library gives the same."""
    frame = (GOLDEN / f"{name}.bin").read_bytes()
    import msgpack

    assert msgpack.packb(body_of(name), use_bin_type=True) == frame[24:]


def test_an_envelope_is_epoch_sender_sequence_and_acknowledgement() -> None:
    assert body_of("submit")[0] == [2, ["client-7f3a", 1], 3, 40]


def test_a_tensor_is_its_meta_and_where_its_data_are() -> None:
    inputs = body_of("submit")[1][2]
    assert inputs[0] == [0, None]
    data = struct.pack("<4f", 1, 2, 3, 4)
    assert inputs[1] == [1, [["float32", [2, 2], [2, 1], 0], [0, [data]], False]]
    assert inputs[2] == [1, [["bfloat16", [3, 4], [1, 3], 5], [1, [["cpu0", 3], 12, 4096, 8192, 77]], False]]
    kind, (meta, (place, block), _) = inputs[3]
    assert (kind, meta, place) == (1, ["float16", [1024], [1], 0], 2)
    handles = b"\xab" * 16 + b"\x01" * 64 + b"\x02" * 64  # device, memory, event
    assert block == [["cpu1", 1], 4, 2 << 20, 2048, 78, 76, handles]


def test_one_and_one_point_zero_and_true_stay_distinct() -> None:
    inputs = body_of("submit")[1][2]
    assert inputs[4:6] == [[2, -1], [2, 2**63 - 1]]
    floats = [value for kind, value in inputs if kind == 3]
    assert all(type(value) is float for value in floats)
    assert floats[0] == 1.0 and math.copysign(1, floats[1]) == -1 and floats[2] == math.inf
    assert inputs[9] == [4, True] and inputs[9][1] is True


def test_every_kind_of_argument_is_tagged_with_its_number() -> None:
    program = body_of("load_program")[1][1]
    arguments = program[7][2][1]
    assert [kind for kind, _ in arguments] == [*range(20), 19, 19, 19]
    payloads = dict(reversed([(kind, payload) for kind, payload in arguments]))
    assert payloads[3] == [[0, 2**32 - 1, 1]]
    assert payloads[6] == [[0, 2, 1, 0, 12, 0, 1, 10]]  # 2*s0 + 1, postfix
    assert payloads[8] == [1.5, -2.0]
    assert payloads[10] == ["float8_e4m3fn"]
    assert payloads[15] == [[-1, [1, 0], [2, 3]]]
    assert payloads[16][0][0] == 0.5 and math.isnan(payloads[16][0][1]) and payloads[16][0][2] == -math.inf


def test_an_error_is_eight_fields_with_its_causes_inside() -> None:
    code, message, hint, actor, op, node, detail, causes = body_of("refused")[1][0]
    assert (code, actor, op, node) == (301, "cpu0#3", "aten::ad.Tensor", 3)
    assert message and hint and "naïve" in detail
    assert [cause[0] for cause in causes] == [301, 302]
    assert causes[0][7][0][0] == 998
