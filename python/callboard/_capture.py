"""Runs torch.export and turns its failures into ExportError."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.export._trace
from torch.utils import _pytree as pytree

from callboard.errors import ExportError

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_OWN_FOLDER = str(Path(__file__).parent)

# Operators that write to arguments which their schema does not mark: running statistics in training.
_HIDDEN_WRITES = {"aten::batch_norm": 5, "aten::instance_norm": 5}
_RESIZES = frozenset(("aten::resize_", "aten::resize_as_", "aten::set_"))


class FunctionModule(torch.nn.Module):
    """A plain function as a module, since torch.export takes nothing else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        # As an attribute, so that parameters keep their names (in dynamic_shapes, in errors).
        self.forward = function


def capture(
    module: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> torch.export.ExportedProgram:
    """Not thread-safe: torch.export patches global state."""
    if not isinstance(args, tuple):
        raise ExportError(
            f"args is a {type(args).__name__}, a tuple of example arguments is expected",
            hint="for one argument write (x,)",
        )
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise ExportError(f"a {type(module).__name__} is no torch.nn.Module and no function")
        module = FunctionModule(module)
    _refuse_devices(module)
    _refuse_examples(args, kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    with _quiet(), torch.no_grad():
        try:
            exported = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        except Exception as error:
            raise _explained(error) from error
        return _functionalised(exported) if needs_functional_form(exported.graph_module) else exported


def _functionalised(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    try:
        # An empty table decomposes nothing: it only functionalises.
        functional: torch.export.ExportedProgram = exported.run_decompositions({})
        return functional
    except Exception as error:
        shared = _shared_buffers(exported)
        if shared:
            raise ExportError(
                f"the module writes to a buffer that shares its memory with another one: {', '.join(shared)}",
                hint="clone one of them, so that each buffer has its own memory",
                detail=str(error),
            ) from error
        resized = _resized_arguments(exported)
        if resized:
            raise ExportError(
                f"the module resizes in place what stays in the caller's process: {', '.join(resized)}",
                hint="resize a tensor of the module's own (x = x.clone() before x.resize_(…)), or make a view or a "
                "copy of the new size (x[:n], x.reshape(…), torch.nn.functional.pad) and return it",
                detail=str(error),
            ) from error
        raise _explained(error) from error


def _shared_buffers(exported: torch.export.ExportedProgram) -> list[str]:
    by_memory: dict[int, list[str]] = {}
    for name in exported.graph_signature.buffers:
        buffer = exported.state_dict.get(name, exported.constants.get(name))
        if isinstance(buffer, torch.Tensor) and buffer.numel():
            by_memory.setdefault(buffer.untyped_storage().data_ptr(), []).append(name)
    return next((names for names in by_memory.values() if len(names) > 1), [])


def _resized_arguments(exported: torch.export.ExportedProgram) -> list[str]:
    """Functionalisation gives up on these with a text about its own bookkeeping."""
    inputs = set(exported.graph_signature.user_inputs)
    found = {
        f"argument '{node.args[0].name}' by {node.target._schema.name}": None
        for node in exported.graph.nodes
        if node.op == "call_function"
        and getattr(getattr(node.target, "_schema", None), "name", "") in _RESIZES
        and isinstance(node.args[0], torch.fx.Node)
        and node.args[0].name in inputs
    }
    return list(found)


def needs_functional_form(graph_module: torch.fx.GraphModule) -> bool:
    """Does an operator write to a tensor, or does autocast decide about dtypes below the graph?"""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target._schema.is_mutable or _writes_statistics(node):
                return True
        elif getattr(target, "__name__", "") == "wrap_with_autocast":
            return True
    children = [child for child in graph_module.children() if isinstance(child, torch.fx.GraphModule)]
    return any(needs_functional_form(child) for child in children)


def _writes_statistics(node: torch.fx.Node) -> bool:
    position = _HIDDEN_WRITES.get(str(node.target._schema.name))  # type: ignore[union-attr]
    if position is None or len(node.args) <= position:
        return False
    return node.args[position] is True and node.args[3] is not None


def _refuse_examples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tensors that no call could be given either; torch.export fails on them with a text about its insides."""
    examples = [("args", args), ("kwargs", kwargs)]
    for name, path, leaf in ((n, *found) for n, tree in examples for found in pytree.tree_flatten_with_path(tree)[0]):
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            where = name + pytree.keystr(path)
            what = "a nested tensor" if leaf.is_nested else "a tensor inside torch.func or torch.vmap"
            raise ExportError(
                f"the example {where} is {what}, a dense one is expected",
                hint="give an example of what calls will be given: a plain torch.Tensor",
            )


def _refuse_devices(module: torch.nn.Module) -> None:
    elsewhere = {
        f"{name} on {tensor.device}"
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if tensor.device.type != "cpu"
    }
    if elsewhere:
        raise ExportError(
            f"the module's tensors are not on the CPU: {', '.join(sorted(elsewhere)[:5])}",
            hint="call module.cpu() first (module.to_empty(device='cpu') for meta tensors); "
            "the placement decides where the program runs",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns about its own internals, and logs and prints the graph so far with each failure; all of it
    would hide our message.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    # It prints to stderr past all logging. Only its own print is replaced: other threads, and the module's forward,
    # print as ever.
    tracer = vars(torch.export._trace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        tracer["print"] = lambda *_, **__: None
        try:
            yield
        finally:
            del tracer["print"]
            logger.setLevel(level)


def _explained(error: Exception) -> ExportError:
    name = type(error).__name__
    text = str(error).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), name)
    where = _users_line(error)
    return ExportError(
        f"torch.export cannot export the module{where}: {first[:400]}",
        hint=_hint(name, text),
        detail=text if text != first else "",
    )


def _hint(name: str, text: str) -> str:
    if "data-dependent" in text.lower() or name.startswith("GuardOnDataDependent"):
        return (
            "the module decides in Python by the contents of a tensor: compute both and choose with torch.where(...), "
            "state what always holds with torch._check(...), or make the decision outside of the module"
        )
    if name == "ConstraintViolationError" or "Constraints violated" in text:
        return (
            "dynamic_shapes does not agree with what the module does with that dimension: follow the suggested fixes "
            "above, or leave the dimension out to fix it"
        )
    if "record_stream" in text or "torch.Stream" in text or "torch.cuda.streams" in text:
        return (
            "streams are the device's own matter: leave record_stream, streams and events out of the module's forward; "
            "a device orders its operators and the reuse of its memory itself"
        )
    if "dynamic_shapes" in text:
        return "dynamic_shapes needs one entry for each argument, by position or by name; None fixes it"
    return "run the module once with these example arguments in PyTorch; then see torch.export's documentation"


def _users_line(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH_FOLDER, _OWN_FOLDER, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f" at {Path(last.filename).name}:{last.lineno} in {last.name}: {(last.line or '').strip()[:120]}"
