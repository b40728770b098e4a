# SPDX-License-Identifier: Apache-2.0
"""The transforms of a request: masks, token lists, biases and penalties."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from .. import _abi
from .arguments import read_token_lists, read_token_values
from .history import History
from .numbers import is_off
from .parameters import RowFloats
from .request import Request

# Field of the C struct: (parameter, the value that turns it off).
PENALTIES = {
    "repetition": ("repetition_penalty", 1.0),
    "frequency": ("frequency_penalty", 0.0),
    "presence": ("presence_penalty", 0.0),
}


def set_transforms(
    request: Request,
    mask: Optional[_abi.Rows],
    edits: dict[str, Any],
    counted: dict[str, Any],
    history: Optional[History],
    penalties: tuple[RowFloats, RowFloats, RowFloats],
) -> None:
    """Set the transforms of the request, if there are any."""
    offs = (off for _, off in PENALTIES.values())
    given = [mask, history, *edits.values(), *counted.values()]
    if all(x is None for x in given) and all(map(is_off, penalties, offs)):
        return
    transforms = _abi.Transforms()
    listed = [
        request.set_token_lists(
            transforms, "allowed", "allowed", read_token_lists, edits["allowed"]
        ),
        request.set_token_lists(transforms, "banned", "banned", read_token_lists, edits["banned"]),
        request.set_token_lists(transforms, "bias", "logit_bias", read_token_values, edits["bias"]),
        *(
            request.set_token_lists(transforms, name, name, read_token_lists, counted[name])
            for name in counted
        ),
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
    if any(listed) or any(penalised) or history is not None or mask is not None:
        request.sampling.transforms = ctypes.pointer(transforms)


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
