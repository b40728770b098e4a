# SPDX-License-Identifier: Apache-2.0
"""The end of a decode step: advances positions by one, on their device."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from .. import _abi
from .._inputs.arguments import read_row_integers
from .._inputs.arrays import NumpyArrays, address_of, arrays_of, layout_of
from .._inputs.history import History
from .._inputs.numbers import get_length
from .._inputs.request import Request
from .._inputs.row_lists import RowLists
from .._inputs.row_state import check_call_slots, check_writable
from .._inputs.tensors import is_tensor


class Advance:
    """A prepared call of gumbel_advance(), which adds one to 64-bit counters.

    On CUDA a call is queued on `stream`, and can be captured in a CUDA graph.
    """

    def __init__(self, arrays: NumpyArrays, step: _abi.Step, held: Any) -> None:
        self._device, self._held, self._error = arrays.device, (step, held), _abi.Error()
        self._arguments = ctypes.byref(step), ctypes.byref(self._error)

    def __call__(self, stream: Optional[int]) -> None:
        status = _abi.lib.gumbel_advance(self._device, stream, *self._arguments)
        if status:
            _abi.check_status(status, self._error)


def advance_one(arrays: NumpyArrays, counter: Any) -> Advance:
    """An Advance of a single counter."""
    step = _abi.Step(batch=1, position=address_of(counter), position_stride=_abi.SAME)
    return Advance(arrays, step, counter)


class RowsStep:
    """The end of a call's step: counts and appends its tokens, and advances its positions."""

    def __init__(
        self,
        request: Request,
        tokens: Any,
        history: Optional[History],
        lists: Optional[RowLists] = None,
    ) -> None:
        sampling = request.sampling
        step = _abi.Step(
            batch=request.batch,
            position=sampling.position.data,
            position_stride=sampling.position.stride,
            slots=sampling.slots,
            live_rows=sampling.live_rows,
        )
        self._advance = Advance(request.arrays, step, (request, tokens))
        self._device, self._error = request.arrays.device, _abi.Error()
        slots = ctypes.byref(sampling.slots) if sampling.slots.count else None
        rows = request.batch, slots, address_of(tokens), 1, None, self._error
        self._kept = _list_kept(history, lists)  # keeps the memory that the structs point to
        self._updates = [(call, (kept.to_struct(), *rows)) for call, kept in self._kept]

    def __call__(self, stream: Optional[int]) -> None:
        """Queue the updates; tokens of rows that were not drawn are -1 and are skipped."""
        for call, arguments in self._updates:
            _abi.check_status(call(self._device, stream, *arguments), self._error)
        self._advance(stream)


def _list_kept(history: Optional[History], lists: Optional[RowLists]) -> list[tuple[Any, Any]]:
    """The objects that a step adds its tokens to, each once: (call of the library, object)."""
    rings = [] if lists is None else [lists.recent]
    owner = None if history is None else history.get_owner()
    if owner is not None and owner not in rings:
        rings.append(owner)
    kept = [(_abi.lib.gumbel_recent_append, ring) for ring in rings]
    if history is not None and owner is None:
        kept.append((_abi.lib.gumbel_history_update, history))
    return kept


def advance(
    position: Any,
    *,
    slots: Optional[Any] = None,
    live_rows: Optional[Any] = None,
) -> None:
    """Add one to the positions of the rows that were drawn, in place.

    position     uint64 or int64 [B], or [num_slots] with `slots`: a contiguous array or tensor.
    slots        int32 [B]: row b's position is position[slots[b]]. No two rows may have one slot;
                 this is checked on the CPU only. None: row b's position is position[b].
    live_rows    as in sample(): the positions of other rows do not change.

    On CUDA the call is queued on the current stream, and a captured graph advances the positions at
    every replay. Raises TypeError or ValueError naming the argument.
    """
    arrays = arrays_of({"position": position}, None, None)
    found = layout_of("position", position)
    if found.dtype not in ("uint64", "int64"):
        raise TypeError(f"position: expected uint64 or int64, got {found.dtype}")
    dense = position.is_contiguous() if is_tensor(position) else position.flags.c_contiguous
    if len(found.shape) != 1 or not dense:
        raise ValueError(f"position: expected a contiguous array [B], got the shape {found.shape}")
    check_writable("position", position)
    count, held = found.shape[0], [position]
    step = _abi.Step(batch=count, position=found.address)
    if slots is not None:
        batch = get_length(slots)
        if batch is None or batch > count:
            raise ValueError(f"slots: expected a list of at most {count} slots")
        of_row, stride = read_row_integers("slots", slots, batch, np.int32, arrays)
        if stride == _abi.SAME and batch != 1:
            raise ValueError(f"slots: expected the shape ({batch},), one slot for each row")
        if arrays.name == "cpu":
            check_call_slots(slots, count, live_rows)
        step.batch, step.slots = batch, _abi.Slots(address_of(of_row), count)
        held.append(of_row)
    if live_rows is not None:
        live, _ = read_row_integers("live_rows", live_rows, 1, np.int32, arrays)
        step.live_rows = address_of(live)
        held.append(live)
    Advance(arrays, step, held)(arrays.stream)
