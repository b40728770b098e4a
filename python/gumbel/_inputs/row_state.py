# SPDX-License-Identifier: Apache-2.0
"""Seeds and positions of rows, for Sampler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from .. import _abi
from .arguments import read_row_integers
from .arrays import NumpyArrays, arrays_of
from .fresh_seeds import derive_row_seed
from .numbers import get_length, is_list
from .tensors import is_tensor, to_numpy

ROWS_MAX = 2**31 - 1  # of a sampler


def count_rows(name: str, value: Any) -> Optional[int]:
    """The number of rows of a list or an array of numbers; None: `value` is one number."""
    if not is_list(value) and getattr(value, "ndim", 0) != 1:
        return None
    rows = get_length(value)
    assert rows is not None
    if not 1 <= rows <= ROWS_MAX:
        raise ValueError(f"{name}: expected 1 to {ROWS_MAX} rows, got {rows}")
    return rows


def read_uint64(name: str, value: Any, rows: Optional[int]) -> Any:
    """uint64 numbers: a 0-d array for all rows, or [rows]."""
    found, stride = read_row_integers(name, value, rows or 1, np.uint64, NumpyArrays(None, None))
    return found.reshape(()) if stride == _abi.SAME else found.copy()


def check_writable(name: str, kept: Any) -> None:
    """Raise ValueError for a read-only NumPy array, to which the library would write."""
    if isinstance(kept, np.ndarray) and not kept.flags.writeable:
        raise ValueError(f"{name}: the array is read-only; set its flags.writeable = True")


def write_rows(name: str, kept: Any, value: Any) -> None:
    """Copy one number, or one for each row, into `kept` in place; on CUDA on the current stream."""
    if value is kept:  # after `sampler.position += 1`
        return
    check_writable(name, kept)
    arrays = arrays_of({name: kept}, None, None)
    if arrays.is_capturing() and not (is_tensor(value) and value.is_cuda):
        raise RuntimeError(f"{name}: pass a tensor on the GPU while a CUDA graph is captured")
    found, _ = read_row_integers(name, value, len(kept), np.uint64, arrays)
    kept[...] = found


def derive_row_seeds(seed: int, rows: Iterable[int]) -> Any:
    return np.array([derive_row_seed(seed, int(row)) for row in rows], np.uint64)


def list_integers(array: Any) -> list[int]:
    """The uint64 values of an array, or of the bits of an int64 tensor."""
    found: list[int] = to_numpy("state", array).view(np.uint64).tolist()
    return found


def check_call_slots(slots: Any, rows: int, live_rows: Optional[Any]) -> None:
    """Raise ValueError for slots that do not exist, or that two drawn rows share."""
    found, arrays = _read_slots(slots, rows), NumpyArrays(None, None)
    if live_rows is not None:
        found = found[: int(read_row_integers("live_rows", live_rows, 1, np.int32, arrays)[0][0])]
    _reject_repeated(found)


def _reject_repeated(slots: Any) -> None:
    ordered = np.sort(slots)
    repeated = ordered[1:] == ordered[:-1]
    if repeated.any():
        slot = ordered[1:][repeated][0]
        raise ValueError(f"slots: slot {slot} is repeated; pass each slot once")


def read_distinct_slots(slots: Any, rows: int) -> Any:
    """The slots of reset(); raises ValueError for slots that do not exist or repeat."""
    found = _read_slots(slots, rows)
    _reject_repeated(found)
    return found


def _read_slots(slots: Any, rows: int) -> Any:
    """Slots as int32, all of them in [0, rows)."""
    count = get_length(slots)
    if count is None:
        raise TypeError(f"slots: expected a list of slots, got {type(slots).__name__}")
    found, _ = read_row_integers("slots", slots, count, np.int32, NumpyArrays(None, None))
    bad = found >= rows
    if bad.any():
        raise ValueError(f"slots[{int(np.argmax(bad))}]: {found[bad][0]} is not in [0, {rows - 1}]")
    return found
