# SPDX-License-Identifier: Apache-2.0
"""The transforms of a request: masks, token lists, biases and penalties."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from .. import _abi
from .arguments import read_row_integers, read_token_lists, read_token_values
from .arrays import address_of
from .history import History
from .numbers import is_off
from .parameters import RowFloats
from .request import Request
from .row_lists import RowLists

# Field of the C struct: (parameter, the value that turns it off).
PENALTIES = {
    "repetition": ("repetition_penalty", 1.0),
    "frequency": ("frequency_penalty", 0.0),
    "presence": ("presence_penalty", 0.0),
}


# Field of the C struct: (parameter, how it is read).
EDITS = {
    "allowed": ("allowed", read_token_lists),
    "banned": ("banned", read_token_lists),
    "bias": ("logit_bias", read_token_values),
    "late_bias": ("late_bias", read_token_values),
}


def set_transforms(
    request: Request,
    mask: Optional[_abi.Rows],
    edits: dict[str, Any],
    max_allowed: int,
    row_lists: tuple[Optional[RowLists], Optional[Any]],
    counted: dict[str, Any],
    history: Optional[History],
    penalties: tuple[RowFloats, RowFloats, RowFloats],
) -> None:
    """Set the transforms of the request, if there are any.

    edits        values of the parameters in EDITS, by field.
    max_allowed  largest number of allowed tokens of a row; 0: unknown, unless the host has lists.
    row_lists    lists and list_status.
    """
    if max_allowed and mask is None and edits["allowed"] is None:
        raise ValueError("max_allowed: requires mask or allowed")
    offs = (off for _, off in PENALTIES.values())
    given = [mask, history, *edits.values(), *row_lists, *counted.values()]
    if all(x is None for x in given) and all(map(is_off, penalties, offs)):
        return
    transforms = _abi.Transforms()
    listed = [
        request.set_token_lists(transforms, field, name, read, edits[field])
        for field, (name, read) in EDITS.items()
    ] + [
        request.set_token_lists(transforms, name, name, read_token_lists, counted[name])
        for name in counted
    ]
    penalised = [
        request.set_row_parameter(transforms, field, name, value, off, np.float32)
        for (field, (name, off)), value in zip(PENALTIES.items(), penalties)
    ]
    if any(penalised) and history is None and all(lists is None for lists in counted.values()):
        name, _ = list(PENALTIES.values())[penalised.index(True)]
        raise ValueError(f"{name}: requires prompt_tokens, output_tokens or a history")
    if history is not None:
        transforms.history = _check_history(request, history)
    if mask is not None:
        transforms.mask = mask
    transforms.max_allowed = max_allowed or transforms.max_allowed
    _set_row_lists(request, transforms, edits, *row_lists)
    present = (history, mask, *row_lists)
    if any(listed) or any(penalised) or any(x is not None for x in present):
        request.sampling.transforms = ctypes.pointer(transforms)


def _set_row_lists(
    request: Request,
    transforms: _abi.Transforms,
    edits: dict[str, Any],
    lists: Optional[RowLists],
    list_status: Optional[Any],
) -> None:
    """Set the lists of a Recent, or the status of lists of the caller."""
    arrays, batch = request.arrays, request.batch
    if list_status is not None:
        if lists is not None:
            raise ValueError("list_status: is part of lists; pass one of them")
        status, stride = read_row_integers("list_status", list_status, batch, np.int32, arrays)
        if stride == _abi.SAME and batch != 1:
            raise ValueError(f"list_status: expected the shape ({batch},), one for each row")
        transforms.list_status = address_of(status)
        request.held.append(status)
    if lists is None:
        return
    if not isinstance(lists, RowLists):
        raise TypeError(f"lists: expected gumbel.RowLists, got {type(lists).__name__}")
    if lists.device != arrays.name:
        raise ValueError(f"lists: is on {lists.device}, the call on {arrays.name}")
    if lists.rows != batch:
        raise ValueError(f"lists: has {lists.rows} rows, the call has {batch}")
    for name, struct in lists.to_structs().items():
        if edits[name] is not None:
            advice = "; logit_bias with -inf bans further tokens" if name == "banned" else ""
            raise ValueError(f"{name}: lists has one already; pass one of them{advice}")
        setattr(transforms, name, struct)
    transforms.list_status = address_of(lists.status)
    request.held.append(lists)


def _check_history(request: Request, history: History) -> int:
    """The address of a history's struct; raises an error if it does not fit the request."""
    if not isinstance(history, History):
        raise TypeError(f"history: expected a gumbel.History, got {type(history).__name__}")
    if history.device != request.arrays.name:
        raise ValueError(f"history: is on {history.device}, the call on {request.arrays.name}")
    if history.num_slots < request.places:
        wanted = "rows" if not request.sampling.slots.count else "slots"
        raise ValueError(
            f"history: has {history.num_slots} slots, the call has {request.places} {wanted}"
        )
    struct = history.to_struct()
    request.held += [history, struct]
    return ctypes.addressof(struct)
