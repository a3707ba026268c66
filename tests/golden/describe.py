"""The golden frames as JSON, read with the public msgpack and xxhash packages: an oracle that shares no code with ours.

python tests/golden/describe.py          writes golden.json; look at its difference before you commit it
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import xxhash

FOLDER = Path(__file__).parent
HEADER = struct.Struct("<4sHHIIQ")


def plain(value: Any) -> Any:
    """A msgpack value as JSON that keeps kinds apart: floats by their bits, bytes in hexadecimal, maps as pairs."""
    if isinstance(value, float):
        return {"float64": struct.pack(">d", value).hex()}
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, dict):
        return {"map": [[plain(k), plain(v)] for k, v in value.items()]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    assert value is None or isinstance(value, (bool, int, str)), type(value)
    return value


def read_frame(frame: bytes) -> tuple[int, int, Any]:
    """Version, type and body of a frame; asserts everything about its header."""
    magic, version, kind, length, zero, checksum = HEADER.unpack_from(frame)
    body = frame[HEADER.size :]
    assert (magic, zero, length) == (b"CBRD", 0, len(body))
    seed = xxhash.xxh3_64_intdigest(frame[:16])
    assert checksum == xxhash.xxh3_64_intdigest(body, seed=seed)
    return version, kind, msgpack.unpackb(body, strict_map_key=False)


def describe() -> dict[str, Any]:
    frames = {}
    for path in sorted(FOLDER.glob("*.bin")):
        version, kind, body = read_frame(path.read_bytes())
        frames[path.stem] = {"version": version, "type": kind, "body": plain(body)}
    return frames


def to_text(frames: dict[str, Any]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(frame, ensure_ascii=False)}" for name, frame in frames.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    (FOLDER / "golden.json").write_text(to_text(describe()), encoding="utf-8")
