# SPDX-License-Identifier: Apache-2.0
"""Sequences of token ids, which rules of RowLists search for."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from .. import _abi
from .arguments import read_ids
from .arrays import NumpyArrays, address_of
from .numbers import get_length, is_list
from .tensors import to_numpy

_WANTED = "a list of sequences of token ids, or one such list for each row"


class SequenceArrays(NamedTuple):
    """Sequences in the library's format, host arrays that are neither checked nor sorted again."""

    offsets: np.ndarray  # int64 [count + 1]
    ids: np.ndarray  # int32
    of_row: Optional[np.ndarray] = None  # int64 [B + 1]; None: all rows have all


def read_sequences(
    name: str, value: Any, batch: int, arrays: NumpyArrays, ordered: bool
) -> tuple[_abi.Sequences, list[Any]]:
    """(struct, arrays) of one list of sequences for all rows, or one list for each row.

    ordered      whether to sort the sequences of a row by their first ids.
    """
    if isinstance(value, SequenceArrays):
        return _make_struct(value, arrays)
    value = _read_list(name, value, _WANTED)
    entries = [_read_list(f"{name}[{i}]", each, "token ids") for i, each in enumerate(value)]
    if any(_has_lists(each) for each in entries) or (entries and not any(map(len, entries))):
        if len(entries) != batch:
            raise ValueError(
                f"{name}: expected {batch} lists of sequences, one for each row, got {len(entries)}"
            )
        rows = [_read_row(f"{name}[{b}]", each) for b, each in enumerate(entries)]
        of_row = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    else:
        rows, of_row = [_read_row(name, entries)], None
    if ordered:
        rows = [sorted(row, key=lambda ids: int(ids[0])) for row in rows]
    found = [ids for row in rows for ids in row]
    offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return _make_struct(
        SequenceArrays(offsets, np.concatenate([np.empty(0, np.int32), *found]), of_row), arrays
    )


def _make_struct(
    sequences: SequenceArrays, arrays: NumpyArrays
) -> tuple[_abi.Sequences, list[Any]]:
    held = [None if part is None else arrays.to_device(part) for part in sequences]
    places = [address_of(part) for part in held]
    count = len(sequences.offsets) - 1
    return _abi.Sequences(places[0], places[1], count, places[2]), held


def _read_list(name: str, value: Any, wanted: str) -> Any:
    """`value` as a list or an array of lists or ids."""
    value = to_numpy(name, value)
    if is_list(value) or (isinstance(value, np.ndarray) and value.ndim):
        return value
    raise TypeError(f"{name}: expected {wanted}, got {type(value).__name__}")


def _has_lists(entry: Any) -> bool:
    """Whether a list has lists, and is thus the list of a row."""
    return any(get_length(each) is not None for each in entry)


def _read_row(name: str, row: Any) -> list[Any]:
    """The sequences of a row, each int32 ids."""
    found = [read_ids(f"{name}[{i}]", ids) for i, ids in enumerate(row)]
    for i, ids in enumerate(found):
        if not len(ids):
            raise ValueError(f"{name}[{i}]: the sequence is empty")
    return found
