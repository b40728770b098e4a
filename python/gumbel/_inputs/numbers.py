# SPDX-License-Identifier: Apache-2.0
"""Numbers, and lists of numbers. Every error names the argument."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Optional

import numpy as np

from .tensors import to_numpy

# Sequences that are not accepted as lists of numbers.
TEXTS = (str, bytes, bytearray, memoryview)
_NUMBERS = (int, float, np.number)
# Types that Python or NumPy would convert to a number, but that are not accepted as one.
_NON_NUMBERS = (bool, np.bool_, np.datetime64, np.timedelta64, Sequence, Set, Mapping)


def format_value(value: Any) -> str:
    """A repr of at most 80 characters, for error messages."""
    try:
        text = "" if isinstance(value, int) and value.bit_length() > 4096 else repr(value)
    except Exception:
        text = ""
    if not text:  # Python raises ValueError for integers of some thousand digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def reject_masked(name: str, value: Any) -> None:
    """Raise TypeError for a masked array: the library would read its masked values."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported; call filled() first")


def is_list(value: Any) -> bool:
    """Whether `value` may be a list of numbers, in their order."""
    return isinstance(value, Sequence) and not isinstance(value, TEXTS)


def get_length(value: Any) -> Optional[int]:
    """The length of `value`; None if it has none."""
    try:
        return len(value)
    except TypeError:
        return None
    except OverflowError:  # of a range
        return sys.maxsize


def read_scalar(name: str, value: Any, wanted: str) -> Any:
    """`value` if it can be a single number; 0-d arrays and tensors are unpacked."""
    if type(value) in (int, float):
        return value
    value = to_numpy(name, value)
    reject_masked(name, value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, _NON_NUMBERS):
        raise TypeError(f"{name}: expected {wanted}, got {type(value).__name__}")
    return value


def read_scalars(name: str, values: Iterable[Any], wanted: str) -> list[Any]:
    """The elements of a list, as read_scalar()."""
    values = list(values)
    kinds = set(map(type, values))  # lists may be long
    if all(issubclass(k, _NUMBERS) and not issubclass(k, _NON_NUMBERS) for k in kinds):
        return values
    return [read_scalar(f"{name}[{i}]", value, wanted) for i, value in enumerate(values)]


def read_integer(name: str, value: Any, low: int, high: int) -> int:
    """A Python int in [low, high]; ctypes would silently wrap other values."""
    if type(value) is int and low <= value <= high:
        return value
    value = read_scalar(name, value, "an integer")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: {format_value(number)} is not in [{low}, {high}]")
    return number


def read_number(name: str, value: Any) -> float:
    """`value` rounded to float32, as a Python float."""
    if type(value) is float and value in (0.0, 1.0):
        return value
    value = read_scalar(name, value, "a number")
    if not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    try:
        rounded = ctypes.c_float(float(value)).value
    except OverflowError:  # of an integer
        rounded = math.inf
    if math.isinf(rounded) and value not in (math.inf, -math.inf):
        raise ValueError(f"{name}: {format_value(value)} is too large for float32")
    if rounded == 0 and value != 0:
        raise ValueError(f"{name}: {format_value(value)} is too small for float32")
    return rounded


def is_off(value: Any, off: Any) -> bool:
    """Whether a parameter is the number that turns it off."""
    return type(value) in ((int,) if type(off) is int else (int, float)) and value == off


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")
    return bool(value)


def read_choice(name: str, value: Any, names: Mapping[Any, int]) -> int:
    if not isinstance(value, (str, type(None))) or value not in names:
        expected = ", ".join(map(repr, names))
        raise ValueError(f"{name}: {format_value(value)} is none of {expected}")
    return names[value]
