# SPDX-License-Identifier: Apache-2.0
"""torch's tensors. torch is never imported here: a caller who hands over a tensor has done that."""

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
    """TypeError for a tensor whose elements do not lie in memory as they are."""
    what = ""
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        what = "is not dense"
    elif tensor.is_meta:
        what = "is on meta, where it has no elements"
    elif tensor.is_neg():
        what = "waits to be negated; give its .resolve_neg()"
    elif tensor.is_conj():
        what = "waits to be conjugated; give its .resolve_conj()"
    if what:
        raise TypeError(f"{name}: the tensor {what}")


def check_numbers(name: str, tensor: Any) -> None:
    """TypeError for a tensor of which no plain numbers can be read."""
    check_memory(name, tensor)
    if not _NUMBERS.fullmatch(str(tensor.dtype)):
        raise TypeError(f"{name}: expected numbers, got {tensor.dtype}")


def to_numpy(name: str, value: Any) -> Any:
    """The numbers of a tensor as a NumPy array, which has no bfloat16; other values as they are."""
    if not is_tensor(value):
        return value
    check_numbers(name, value)
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
