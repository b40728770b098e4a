# SPDX-License-Identifier: Apache-2.0
"""Python arguments to C arguments. Every error names the argument; large arrays are never copied.

The C structs hold addresses only: the caller keeps the arrays alive for as long as the call runs.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Tuple

import numpy as np

from . import _abi


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


def _dtype(name: str, array: np.ndarray) -> int:
    if array.dtype == np.float32:
        return _abi.FLOAT32
    if array.dtype == np.float16:
        return _abi.FLOAT16
    # By name, so that ml_dtypes need not be installed.
    if array.dtype == np.uint16 or array.dtype.name == "bfloat16":
        return _abi.BFLOAT16
    raise TypeError(
        f"{name}: dtype {array.dtype} is not float32, float16, bfloat16 or uint16 (bfloat16 bits)"
    )


def _check_array(name: str, array: Any, axes: int) -> None:
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(array).__name__}")
    if array.ndim != axes:
        expected = "one axis" if axes == 1 else "two axes"
        raise ValueError(f"{name}: expected {expected}, got the shape {array.shape}")
    if not array.flags.aligned:
        raise ValueError(f"{name}: the data is not aligned to its element size; copy it first")
    if array.size and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ValueError(f"{name}: the last axis is not contiguous; use np.ascontiguousarray")


def matrix(name: str, array: Any) -> _abi.Tensor:
    """A [rows, cols] array with a contiguous last axis; rows may lie any distance >= cols apart."""
    _check_array(name, array, 2)
    dtype = _dtype(name, array)
    rows, cols = array.shape
    stride, rest = divmod(array.strides[0], array.itemsize)
    if rows <= 1 or cols == 0:  # then NumPy may give any strides
        stride = cols
    elif rest or stride < cols:
        raise ValueError(
            f"{name}: rows {array.strides[0]} bytes apart overlap, run backwards or fall between "
            "elements; use np.ascontiguousarray"
        )
    return _abi.Tensor(array.ctypes.data, dtype, rows, cols, stride)


def vector(name: str, array: Any) -> _abi.Tensor:
    """A contiguous [cols] array as a tensor of one row."""
    _check_array(name, array, 1)
    return _abi.Tensor(array.ctypes.data, _dtype(name, array), 1, array.shape[0], 0)


def row_floats(name: str, value: Any, batch: int) -> Tuple[np.ndarray, int]:
    """A number, or [B] numbers, as float32 and their stride: 0 where one serves every row."""
    try:
        array = np.asarray(value)
        real = array.dtype.kind in "fiu" or array.dtype.name == "bfloat16"
    except ValueError:  # a ragged list
        real = False
    if not real:
        raise TypeError(f"{name}: expected a number, or an array of one number a row")
    with np.errstate(over="ignore"):  # too large becomes inf, which the library refuses by name
        return _rows(name, np.ascontiguousarray(array, dtype=np.float32), array.shape, batch)


def row_integers(name: str, value: Any, batch: int, dtype: type) -> Tuple[np.ndarray, int]:
    """An integer, or [B] integers, as the unsigned `dtype` and their stride, as row_floats()."""
    high = int(np.iinfo(dtype).max)
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iu":
        bad = (value < 0) | (value > high)
        if bad.any():
            row = int(np.argmax(bad.reshape(-1)))
            integer(f"{name}[{row}]", value.reshape(-1)[row], 0, high)
        return _rows(name, np.ascontiguousarray(value, dtype=dtype), value.shape, batch)
    if isinstance(value, (list, tuple)):
        numbers = [integer(f"{name}[{row}]", v, 0, high) for row, v in enumerate(value)]
        return _rows(name, np.array(numbers, dtype=dtype), (len(numbers),), batch)
    return np.array([integer(name, value, 0, high)], dtype=dtype), 0


def _rows(name: str, array: np.ndarray, shape: tuple, batch: int) -> Tuple[np.ndarray, int]:
    if shape == ():
        return array.reshape(1), 0
    if shape != (batch,):
        raise ValueError(f"{name}: expected one value or the shape ({batch},), got {shape}")
    return array, 1


def address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def workspace(size: int) -> np.ndarray:
    """At least `size` bytes, starting on the alignment that the library asks for."""
    spare = _abi.WORKSPACE_ALIGNMENT
    block = np.empty(size + spare, dtype=np.uint8)
    return block[-block.ctypes.data % spare :]
