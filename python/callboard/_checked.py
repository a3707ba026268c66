"""Arguments of the public calls that no program describes: each is checked before anything is sent or waited for.

A fault names the argument, the value and what is allowed. Nothing here needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from callboard.errors import InputError, PlacementError

if TYPE_CHECKING:
    from callboard._native import PlacementDict, PlacementRule

__all__ = [
    "batch_dim",
    "delay",
    "duration",
    "flag",
    "integer",
    "optional_duration",
    "path",
    "placement_dict",
    "replica_devices",
    "shown",
    "sizes",
    "text",
    "wait",
]

# Bounds of a request's deadline, as the cluster file has them for limits.deadline: 1 ms to 24 h.
_SECONDS_MIN = 0.001
_SECONDS_MAX = 86_400
_DELAY_MAX = 3_600
_DIM_MAX = 63  # a tensor has at most 64 dimensions
_NODE_MAX = 2**32 - 1  # node numbers have 32 bits

_PLACEMENT_FORMS = (
    '"auto", a device\'s name, a list of names, or a dict from names to module prefixes and (first, last) node numbers'
)


def shown(value: Any) -> str:
    """Type and value for a message, in one short line whatever the value is."""
    try:
        value_text = " ".join(repr(value).split())
    except Exception:  # an int of more digits than Python prints, a repr that fails
        value_text = "(cannot be printed)"
    if len(value_text) > 60:
        value_text = value_text[:57] + "..."
    return f"{type(value).__name__} {value_text}"


def duration(value: Any, name: str) -> float:
    """Seconds that end a call or a start."""
    return _seconds(value, name, _SECONDS_MIN, f"a number of seconds from {_SECONDS_MIN} to {_SECONDS_MAX} (24 h)", "")


def optional_duration(value: Any, name: str) -> float | None:
    """The same; None leaves it to the cluster."""
    if value is None:
        return None
    allowed = f"a number of seconds from {_SECONDS_MIN} to {_SECONDS_MAX} (24 h) or None"
    return _seconds(value, name, _SECONDS_MIN, allowed, "leave it out for the default")


def wait(value: Any, name: str, hint: str) -> float:
    """Seconds to wait; 0 only looks. `hint` says how to wait without such a bound."""
    return _seconds(value, name, 0, f"a number of seconds from 0 to {_SECONDS_MAX} (24 h)", hint)


def _seconds(value: Any, name: str, low: float, allowed: str, hint: str) -> float:
    # True counts as a number in Python and is surely a mistake here. NaN fails every comparison; a huge int is compared
    # before it is converted, which would fail.
    if _is_number(value, Real) and low <= value <= _SECONDS_MAX:
        return float(value)
    raise InputError(f"'{name}' is {shown(value)}; allowed: {allowed}", hint=hint)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def integer(value: Any, name: str, low: int, high: int) -> int:
    """An int from `low` to `high`."""
    if _is_number(value, Integral) and low <= value <= high:
        return int(value)
    raise InputError(f"'{name}' is {shown(value)}; allowed: an integer from {low} to {high}")


def flag(value: Any, name: str) -> bool:
    """True or False; what only counts as one is surely a mistake."""
    if isinstance(value, bool):
        return value
    raise InputError(f"'{name}' is {shown(value)}; allowed: True or False")


def batch_dim(value: Any, name: str) -> int | dict[str, int]:
    """Where the batch is: a dimension for all inputs, or {name of an input: dimension}."""
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return {key: integer(dim, f"{name}[{key!r}]", 0, _DIM_MAX) for key, dim in value.items()}
    if _is_number(value, Integral) and 0 <= value <= _DIM_MAX:
        return int(value)
    raise InputError(
        f"'{name}' is {shown(value)}; allowed: a dimension from 0 to {_DIM_MAX}, or a dict from names of inputs to "
        "their dimensions"
    )


def delay(value: Any, name: str) -> float:
    """Seconds that something may be held back; 0 is none."""
    if _is_number(value, Real) and 0 <= value <= _DELAY_MAX:
        return float(value)
    raise InputError(f"'{name}' is {shown(value)}; allowed: a number of seconds from 0 to {_DELAY_MAX} (1 h)")


def sizes(value: Iterable[Any]) -> list[int]:
    """Sizes of a tensor."""
    listed = list(value)
    for size in listed:
        if not _is_number(size, Integral) or not 0 <= size < 2**63:
            raise InputError(f"'size' has {shown(size)} in it; allowed: integers from 0 on")
    return [int(size) for size in listed]


def text(value: Any, name: str, allowed: str) -> str:
    """A str; `allowed` says what it stands for."""
    if not isinstance(value, str):
        raise InputError(f"'{name}' is {shown(value)}; allowed: {allowed}")
    return _without_nul(value, name)


def path(value: Any, name: str, allowed: str = "a path") -> str:
    """A str of a path, however it was given."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"'{name}' is {shown(value)}; allowed: {allowed}")
    return _without_nul(os.fsdecode(value), name)


def _without_nul(value: str, name: str) -> str:
    # The system takes a NUL for the end of a name: another file, or another cluster, would be meant without a word.
    if "\0" in value:
        raise InputError(f"'{name}' is {shown(value)}, with a NUL character in it; allowed: any other characters")
    return value


# -- placements -------------------------------------------------------------------------------------------------------


def placement_dict(placement: Any) -> PlacementDict:
    """From what compile() takes: "auto", one device, a list of devices, or {device: module prefixes or node ranges}.
    Whether devices and modules of these names exist is for the cluster to say.
    """
    if placement is None:
        return {"automatic": True}
    if isinstance(placement, str):
        if placement == "auto":
            return {"automatic": True}
        return {"automatic": True, "devices": [_device(placement, "placement")]}
    if isinstance(placement, Mapping):
        if not placement:
            raise _refused("placement", placement, hint='leave it out, or write "auto", to balance over all devices')
        return {"automatic": False, "rules": [_rule(device, parts) for device, parts in placement.items()]}
    if isinstance(placement, (list, tuple)):
        if not placement:
            raise _refused("placement", placement, hint='leave it out, or write "auto", to balance over all devices')
        return {
            "automatic": True,
            "devices": [_device(device, f"placement[{number}]") for number, device in enumerate(placement)],
        }
    raise _refused("placement", placement)


def replica_devices(replicas: Any, placement: Any, known: Callable[[], list[str]]) -> list[str]:
    """One device for each replica, from what compile() takes. `known` lists the cluster's devices."""
    if placement is not None and placement != "auto":
        raise PlacementError(
            f"replicas is {shown(replicas)} and placement is {shown(placement)}; allowed: one of them",
            hint="each replica lies on one device; leave placement out",
        )
    if _is_number(replicas, Integral):
        devices = known()
        if 1 <= replicas <= len(devices):
            return devices[: int(replicas)]
        raise PlacementError(
            f"replicas is {shown(replicas)}; allowed: 1 to {len(devices)}, the number of the cluster's devices"
        )
    if not isinstance(replicas, (list, tuple)) or not replicas:
        raise _refused("replicas", replicas, "their number, or a list of devices, such as [\"cpu0\", \"cpu1\"]")
    names = [_device(device, f"replicas[{number}]") for number, device in enumerate(replicas)]
    for name in names:
        if names.count(name) > 1:
            raise _refused("replicas", replicas, f"each device once, '{name}' is there twice")
    return names


def _refused(where: str, value: Any, allowed: str = _PLACEMENT_FORMS, hint: str = "") -> PlacementError:
    return PlacementError(f"{where} is {shown(value)}; allowed: {allowed}", hint=hint)


def _device(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name:
        raise _refused(where, name, "a device's name, such as \"cpu0\"", hint="cluster.devices lists them")
    return name


def _rule(device: Any, parts: Any) -> PlacementRule:
    _device(device, "a key of placement")
    where = f"placement[{device!r}]"
    if isinstance(parts, str):
        parts = [parts]
    if isinstance(parts, (Mapping, bytes)) or not isinstance(parts, Iterable):
        raise _refused(where, parts, "a list of module prefixes and (first, last) node numbers, or one prefix")
    if isinstance(parts, tuple) and len(parts) == 2 and all(map(_is_node, parts)):
        raise _refused(where, parts, "a list", hint=f"for one range of nodes write [{parts!r}]")
    prefixes: list[str] = []
    ranges: list[tuple[int, int]] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            prefixes.append(_prefix(part, f"{where}[{number}]"))
        else:
            ranges.append(_node_range(part, f"{where}[{number}]"))
    return {"device": device, "module_prefixes": prefixes, "node_ranges": ranges}


def _prefix(part: str, where: str) -> str:
    # Modules' paths have dots between names, operators' names have "::", so the two cannot be mistaken for each other.
    if "::" in part:
        raise _refused(
            where,
            part,
            "a module prefix or a pair (first, last) of node numbers",
            hint=f"'{part}' names an operator; place the module that calls it, or its node by number: "
            "print(program.plan()) shows both",
        )
    return part


def _node_range(part: Any, where: str) -> tuple[int, int]:
    if not isinstance(part, (list, tuple)) or len(part) != 2 or not all(map(_is_node, part)) or part[0] > part[1]:
        raise _refused(
            where,
            part,
            "a module prefix or a pair (first, last) of node numbers with 0 <= first <= last",
            hint="node numbers are inclusive and count from 0; print(program.plan()) shows them",
        )
    return int(part[0]), int(part[1])


def _is_node(number: Any) -> bool:
    return _is_number(number, Integral) and bool(0 <= number <= _NODE_MAX)
