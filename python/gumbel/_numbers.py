# SPDX-License-Identifier: Apache-2.0
"""Single numbers. Every error names the argument."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

import numpy as np


def integer(name: str, value: Any, low: int, high: int) -> int:
    """A Python int in [low, high]; ctypes alone would wrap what is outside."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: {number} is not in [{low}, {high}]")
    return number


def number(name: str, value: Any) -> float:
    """A Python float that is what float32 makes of `value`."""
    if not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    rounded = ctypes.c_float(float(value)).value  # too large: inf, which the library refuses
    if rounded == 0 and value != 0:
        raise ValueError(f"{name}: {value} is too small for float32")
    return rounded
