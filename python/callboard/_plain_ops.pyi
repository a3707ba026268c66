"""C++ functions on tensors that are no operators; see callboard.ops.rms_norm_pybind."""

import torch

def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...
