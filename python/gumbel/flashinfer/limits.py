# SPDX-License-Identifier: Apache-2.0
"""Temperature and truncation: a number for all rows, or a tensor of one number for each row."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .calls import Parameter, Parameters, scalar_parameter, tensor_parameter

INT32_MAX = 2**31 - 1
TEMPERATURE_MAX = 3.0e38
# Lower bound, upper bound, and whether the lower bound itself is allowed.
_RANGES = {
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "temperature": (0.0, TEMPERATURE_MAX, False),
}


def limits_of(
    rows: int, place: torch.device, indices: Optional[torch.Tensor], **given: Any
) -> Parameters:
    """The library's parameters for `rows` distributions, or for those that `indices` selects.

    given        temperature, top_k, top_p, min_p: a number, or a tensor [rows].

    Raises ValueError for a value out of range; values of a tensor on CUDA are not checked.
    """
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.is_cpu:
            _check_values(name, value)
    return unchecked_limits(rows, place, indices, **given)


def unchecked_limits(
    rows: int, place: torch.device, indices: Optional[torch.Tensor], **given: Any
) -> Parameters:
    """limits_of() without checks of tensors: temperature 0 is greedy, top_k 0 is off."""
    return {name: _limit(name, value, rows, place, indices) for name, value in given.items()}


def _limit(
    name: str, value: Any, rows: int, place: torch.device, indices: Optional[torch.Tensor]
) -> Parameter:
    dtype = torch.int32 if name == "top_k" else torch.float32
    if not isinstance(value, torch.Tensor):
        return scalar_parameter(_checked(name, value), dtype, place)
    if value.dim() != 1:
        shape = tuple(value.shape)
        raise ValueError(f"{name}: expected a number or a tensor of shape ({rows},), got {shape}")
    if value.shape[0] != rows:
        raise ValueError(f"{name}: expected the shape ({rows},), got ({value.shape[0]},)")
    if value.device != place:
        raise ValueError(f"{name}: is on {value.device}, the rows are on {place}")
    if indices is not None:
        value = value.index_select(0, indices)
    if value.dtype is torch.int64:
        value = value.clamp(max=INT32_MAX)
    return tensor_parameter(value.detach().to(dtype).contiguous(), value.shape[0])


def _range(name: str) -> str:
    """The range of a parameter, in words."""
    if name == "top_k":
        return "at least 1"
    least, most, closed = _RANGES[name]
    return f"in {'[' if closed else '('}{least:g}, {most:g}]"


def _check_values(name: str, values: torch.Tensor) -> None:
    """Raise ValueError if a tensor on the CPU has values that are out of range, or NaN."""
    if name == "top_k":
        fine = values >= 1
    else:
        least, most, closed = _RANGES[name]
        fine = ((values >= least) if closed else (values > least)) & (values <= most)
    if not fine.all():
        place = tuple(torch.nonzero(~fine)[0].tolist())
        at = f"[{', '.join(map(str, place))}]" if place else ""
        raise ValueError(f"{name}{at}: is {values[place].item()}; must be {_range(name)}")


def _checked(name: str, value: Any) -> Any:
    if name == "top_k":
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"top_k: expected an int or a tensor, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"top_k: is {value}; must be {_range(name)}")
        return min(value, INT32_MAX)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number or a tensor, got {type(value).__name__}")
    least, most, closed = _RANGES[name]
    if not (least < value <= most or (closed and value == least)):
        raise ValueError(f"{name}: is {value}; must be {_range(name)}")
    return float(value)
