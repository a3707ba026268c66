"""What torch.export infers wrongly about outputs (torch 2.11): such a description is left out, or a device would refuse
what is right.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

# Sizes of the states that these give (oneDNN's variant).
_WRONG_SIZES = frozenset(("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"))
# The dtype of the input instead of int64 for the indices and counts that these give behind their first output.
_WRONG_DTYPES = frozenset(
    ("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive")
)


class Inferred:
    """Goes along with the nodes of one graph, in their order."""

    def __init__(self) -> None:
        self._doubtful: set[torch.fx.Node] = set()  # what was inferred for these follows from a wrong dtype

    def believable(self, node: torch.fx.Node, name: str, specs: list[Any]) -> list[Any]:
        """The specs of a node's outputs (of the operator `name`) without what is not to be believed."""
        if name in _WRONG_SIZES:
            return [None if spec is None else (*spec[:3], None) for spec in specs]
        if not self._doubtful.isdisjoint(node.all_input_nodes):
            self._doubtful.add(node)
            return [_without_dtype(spec) for spec in specs]
        if name in _WRONG_DTYPES:
            for user in node.users:
                if user.target is operator.getitem and user.args[1] != 0:
                    self._doubtful.add(user)
            return [spec if number == 0 else _without_dtype(spec) for number, spec in enumerate(specs)]
        return specs


def _without_dtype(spec: Any) -> Any:
    """The same output, of any dtype."""
    if isinstance(spec, list):
        return [_without_dtype(item) for item in spec]
    return spec if spec is None or spec[0] != "tensor" else (*spec[:2], None, spec[3])
