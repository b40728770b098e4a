# SPDX-License-Identifier: Apache-2.0
"""Seeds and positions of rows, as a Sampler is given them and keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from .. import _abi
from .arguments import row_integers
from .arrays import NumpyArrays
from .fresh_seeds import seed_of_row
from .numbers import is_list, length
from .tensors import to_numpy


def rows_of(value: Any) -> Optional[int]:
    """How many rows a list or an array has a number for; None: it is one number."""
    value = to_numpy("seed", value)
    return len(value) if is_list(value) or getattr(value, "ndim", 0) == 1 else None


def uint64_numbers(name: str, value: Any, rows: Optional[int]) -> Any:
    """uint64 numbers: without axes one for all rows, else [rows]."""
    found, stride = row_integers(name, value, rows or 1, np.uint64, NumpyArrays(None, None))
    return found.reshape(()) if stride == _abi.SAME else found.copy()


def seeds_of_rows(seed: int, rows: Iterable[int]) -> Any:
    return np.array([seed_of_row(seed, int(row)) for row in rows], np.uint64)


def integers_of(array: Any) -> list[int]:
    """What an array holds; the bits of a tensor's int64."""
    found: list[int] = to_numpy("state", array).view(np.uint64).tolist()
    return found


def distinct_slots(slots: Any, rows: int) -> Any:
    """Slots of reset(), after a look at whether they are there, once each."""
    count = length(slots)
    if count is None:
        raise TypeError(f"slots: expected a list of slots, got {type(slots).__name__}")
    found, _ = row_integers("slots", slots, count, np.int32, NumpyArrays(None, None))
    bad = found >= rows
    if bad.any():
        raise ValueError(f"slots[{int(np.argmax(bad))}]: {found[bad][0]} is not in [0, {rows - 1}]")
    if len(np.unique(found)) != count:
        raise ValueError("slots: a slot is in the list twice")
    return found
