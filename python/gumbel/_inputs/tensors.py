# SPDX-License-Identifier: Apache-2.0
"""torch tensors, without importing torch: a caller that passes a tensor has imported it."""

from __future__ import annotations

import re
import sys
from typing import Any

_NUMBERS = re.compile(r"torch\.(u?int(8|16|32|64)|b?float(16|32|64))")


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch.Tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_memory(name: str, tensor: Any) -> None:
    """Raise TypeError for a tensor that is not dense in memory, or has a pending operation."""
    problem = ""
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        problem = "is not dense"
    elif tensor.is_meta:
        problem = "is on the meta device and has no elements"
    elif tensor.is_neg():
        problem = "has a pending negation; pass its .resolve_neg()"
    elif tensor.is_conj():
        problem = "has a pending conjugation; pass its .resolve_conj()"
    if problem:
        raise TypeError(f"{name}: the tensor {problem}")


def check_numbers(name: str, tensor: Any) -> None:
    """Raise TypeError for a tensor that does not hold plain numbers."""
    check_memory(name, tensor)
    if not _NUMBERS.fullmatch(str(tensor.dtype)):
        raise TypeError(f"{name}: expected numbers, got {tensor.dtype}")


def to_numpy(name: str, value: Any) -> Any:
    """A tensor as a NumPy array, with bfloat16 as float32; other values unchanged."""
    if not is_tensor(value):
        return value
    check_numbers(name, value)
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
