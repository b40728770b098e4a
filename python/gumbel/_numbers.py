# SPDX-License-Identifier: Apache-2.0
"""Single numbers, and what stands for none. Every error names the argument."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import Any

import numpy as np


def shown(value: Any) -> str:
    """`value` as an error shows it: short, and whatever it is."""
    try:
        text = "" if isinstance(value, int) and value.bit_length() > 4096 else repr(value)
    except Exception:
        text = ""
    if not text:  # Python refuses to print integers of some thousand digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def refuse_masked(name: str, value: Any) -> None:
    """A masked array holds values that are none, and the library would take them."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array's mask would be lost; give its .filled()")
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))  # lists may be long
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            for i, item in enumerate(value):
                refuse_masked(f"{name}[{i}]", item)


def integer(name: str, value: Any, low: int, high: int) -> int:
    """A Python int in [low, high]; ctypes alone would wrap what is outside."""
    refuse_masked(name, value)
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: {shown(number)} is not in [{low}, {high}]")
    return number


def number(name: str, value: Any) -> float:
    """A Python float that is what float32 makes of `value`."""
    if not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    try:
        rounded = ctypes.c_float(float(value)).value
    except OverflowError:  # of an integer
        rounded = math.inf
    if math.isinf(rounded) and value not in (math.inf, -math.inf):
        raise ValueError(f"{name}: {shown(value)} is too large for float32")
    if rounded == 0 and value != 0:
        raise ValueError(f"{name}: {shown(value)} is too small for float32")
    return rounded
