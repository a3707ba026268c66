"""Every failure of Callboard is a CallboardError. Subclasses say which kind; codes are those of the whole project.

Nothing here needs the native module or torch, so that errors can be made, pickled and printed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "ActorDied",
    "ActorUnavailable",
    "CallboardError",
    "Cancelled",
    "ClientFallbackWarning",
    "ClusterNotFound",
    "ConfigError",
    "CoordinatorLost",
    "DeadlineExceeded",
    "DoesNotFit",
    "ExportError",
    "FileChanged",
    "InputError",
    "InternalError",
    "KernelError",
    "MachineError",
    "MessageError",
    "NonFiniteOutput",
    "OutOfMemory",
    "OutputMismatch",
    "Overloaded",
    "PlacementError",
    "ProgramError",
    "PythonError",
    "Quarantined",
    "StartError",
    "StateLost",
    "TensorLost",
    "UnknownOperator",
    "UnsupportedError",
]


class CallboardError(RuntimeError):
    """The family. What happened is `message`; the rest says where and what to do, as far as it is known.

    code      number, for example 301; never changes its meaning
    name      the same as a word, "unknown_operator"
    actor     who found it, "cpu0#2" (device and number of its start); "" if nobody
    operator  "aten::mm"; "" if none
    node      number of the node in its program, or None
    hint      what to do about it; may be empty
    detail    longer text: shapes, a traceback, the last lines of a log
    causes    more findings of the same kind, or what this one follows from
    """

    default_code = 900
    default_name = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        name: str | None = None,
        hint: str = "",
        actor: str = "",
        operator: str = "",
        node: int | None = None,
        detail: str = "",
        causes: Sequence[CallboardError] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.name = self.default_name if name is None else name
        self.hint = hint
        self.actor = actor
        self.operator = operator
        self.node = node
        self.detail = detail
        self.causes = tuple(causes)

    @property
    def cause(self) -> CallboardError | None:
        """The first of `causes`: what this failure follows from."""
        return self.causes[0] if self.causes else None

    def __str__(self) -> str:
        return "\n".join(_lines(self, depth=0))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments; ours has more to say (multiprocessing, asyncio executors).
        return (_rebuild, (type(self), self.message, _fields(self)))


class ClientFallbackWarning(UserWarning):
    """A part of a model that torch.compile(backend="callboard") was given ran in the client's process; the text names
    its operators and says why.
    """


class MessageError(CallboardError):
    """A peer sent what cannot be read: another version, a damaged or oversized message."""

    default_code, default_name = 104, "malformed"


class ConfigError(CallboardError, ValueError):
    """The cluster file or a command line is wrong; each finding is one of `causes`."""

    default_code, default_name = 200, "config_syntax"


class ProgramError(CallboardError):
    """A program was refused before anything ran."""

    default_code, default_name = 300, "bad_graph"


class UnknownOperator(ProgramError):
    """A device has no such operator; `causes` names every missing one."""

    default_code, default_name = 301, "unknown_operator"


class PlacementError(ProgramError):
    """The placement is none, names unknown devices or modules, or contradicts itself."""

    default_code, default_name = 306, "bad_placement"


class DoesNotFit(ProgramError):
    """The program needs more memory than a device may use."""

    default_code, default_name = 307, "does_not_fit"


class UnsupportedError(ProgramError):
    """Something PyTorch can do and Callboard cannot."""

    default_code, default_name = 309, "unsupported"


class ExportError(ProgramError):
    """torch.export could not turn the module into a program, or made something that cannot run on a cluster."""

    default_code, default_name = 311, "export_failed"


class InputError(CallboardError, ValueError):
    """An argument of a call does not fit: the program, or what the call allows (a deadline, a timeout, a path)."""

    default_code, default_name = 400, "bad_input"


class KernelError(CallboardError):
    """An operator failed while the program ran. `operator` and `node` say which."""

    default_code, default_name = 401, "kernel_failed"


class OutOfMemory(CallboardError):
    """A device may not use as much memory as the call needs."""

    default_code, default_name = 402, "out_of_memory"


class OutputMismatch(CallboardError):
    """An operator gave something else than the program says (type, shape or count)."""

    default_code, default_name = 403, "output_mismatch"


class Cancelled(CallboardError):
    """The call was cancelled."""

    default_code, default_name = 404, "cancelled"


class DeadlineExceeded(CallboardError, TimeoutError):
    """The call's time was over before its result was there."""

    default_code, default_name = 405, "deadline_exceeded"


class Overloaded(CallboardError):
    """Too many calls are in flight: submit(wait=False) found no room, or submit() waited for it in vain."""

    default_code, default_name = 406, "overloaded"


class PythonError(KernelError):
    """A Python kernel raised, or did what its schema does not declare. `detail` has the traceback of the device."""

    default_code, default_name = 407, "python_failed"


class NonFiniteOutput(CallboardError):
    """An operator gave NaN or infinity and the cluster file forbids it."""

    default_code, default_name = 408, "nan_found"


class ActorDied(CallboardError):
    """A process of the cluster ended while the call needed it. The message says how it ended."""

    default_code, default_name = 500, "actor_died"


class ActorUnavailable(ActorDied):
    """A device is down at the moment."""

    default_code, default_name = 501, "actor_unavailable"


class TensorLost(CallboardError):
    """A tensor's memory is gone with the process that made it."""

    default_code, default_name = 502, "tensor_lost"


class StateLost(CallboardError):
    """A program's buffers were lost with their device and start anew."""

    default_code, default_name = 503, "state_lost"


class CoordinatorLost(ActorDied):
    """The cluster's coordinator is gone."""

    default_code, default_name = 505, "coordinator_lost"


class Quarantined(CallboardError):
    """The program ended two device processes in succession by itself, and is not run any more."""

    default_code, default_name = 507, "quarantined"


class MachineError(CallboardError):
    """The machine does not allow it: a limit, a permission, an address."""

    default_code, default_name = 603, "environment"


class StartError(MachineError):
    """A cluster did not start; `causes` says which process failed and `detail` holds the end of its log."""

    default_code, default_name = 604, "start_failed"


class ClusterNotFound(MachineError):
    """No such cluster runs on this host."""

    default_code, default_name = 606, "cluster_not_found"


class FileChanged(MachineError):
    """A file of weights was written to while a program used it; nothing computed with it was handed out."""

    default_code, default_name = 607, "file_changed"


class InternalError(CallboardError):
    """Callboard's own fault."""


_BY_CODE: dict[int, type[CallboardError]] = {
    301: UnknownOperator,
    306: PlacementError,
    307: DoesNotFit,
    309: UnsupportedError,
    311: ExportError,
    400: InputError,
    402: OutOfMemory,
    403: OutputMismatch,
    404: Cancelled,
    405: DeadlineExceeded,
    406: Overloaded,
    407: PythonError,
    408: NonFiniteOutput,
    501: ActorUnavailable,
    502: TensorLost,
    503: StateLost,
    505: CoordinatorLost,
    507: Quarantined,
    604: StartError,
    605: StartError,
    606: ClusterNotFound,
    607: FileChanged,
}
_BY_BLOCK: dict[int, type[CallboardError]] = {
    1: MessageError,
    2: ConfigError,
    3: ProgramError,
    4: KernelError,
    5: ActorDied,
    6: MachineError,
}


def error_class(code: int) -> type[CallboardError]:
    """The class that stands for a code; codes of a later version fall to their block's class."""
    return _BY_CODE.get(code) or _BY_BLOCK.get(code // 100, InternalError)


def from_fields(fields: Mapping[str, Any]) -> CallboardError:
    """From the form in which errors travel (the native module's ErrorDict, the command line's JSON)."""
    node = int(fields.get("node", -1))
    code = int(fields.get("code", 900))
    return error_class(code)(
        str(fields.get("message", "")),
        code=code,
        name=str(fields.get("name", "")) or None,
        hint=str(fields.get("hint", "")),
        actor=str(fields.get("actor", "")),
        operator=str(fields.get("op", "")),
        node=None if node < 0 else node,
        detail=str(fields.get("detail", "")),
        causes=[from_fields(cause) for cause in fields.get("causes", ())],
    )


def _lines(error: CallboardError, depth: int) -> list[str]:
    indent = "  " * depth
    where = [part for part in (error.operator, "" if error.node is None else f"node {error.node}") if part]
    if error.actor:
        where.append(f"on {error.actor}")
    suffix = f" ({', '.join(where)})" if where else ""
    lines = [f"{indent}{error.message}{suffix} [{error.name}, {error.code}]"]
    if error.hint:
        lines.append(f"{indent}  hint: {error.hint}")
    if error.detail:
        lines.extend(f"{indent}  | {line}" for line in error.detail.rstrip().splitlines())
    if depth < 4:
        for cause in error.causes:
            first, *rest = _lines(cause, depth + 1)
            lines.extend([f"{indent}  - {first.lstrip()}", *rest])
    return lines


def _fields(error: CallboardError) -> dict[str, Any]:
    names = ("code", "name", "hint", "actor", "operator", "node", "detail", "causes")
    return {name: getattr(error, name) for name in names}


def _rebuild(kind: type[CallboardError], message: str, fields: dict[str, Any]) -> CallboardError:
    return kind(message, **fields)
