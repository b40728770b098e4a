# SPDX-License-Identifier: Apache-2.0
"""torch's tensors. torch is never imported here: a caller who hands over a tensor has done that."""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch.Tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any) -> Any:
    """The numbers of a tensor as a NumPy array, which has no bfloat16; other values as they are."""
    if not is_tensor(value):
        return value
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
