# SPDX-License-Identifier: Apache-2.0
"""Token lists that follow from rings of recent tokens, and the rules that they are made by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .arguments import read_row_floats, read_row_integers, read_token_lists
from .arrays import NumpyArrays, address_of
from .numbers import is_off
from .sequences import read_sequences


class _Number(NamedTuple):
    """A row parameter of the rules."""

    off: Any  # the default
    dtype: type
    low: int = 0


_NUMBERS = {
    "dry_multiplier": _Number(0.0, np.float32),
    "dry_base": _Number(1.75, np.float32),
    "dry_allowed_length": _Number(2, np.int32),
    "dry_last_n": _Number(-1, np.int32, -1),
    "ngram_size": _Number(0, np.int32),
    "ngram_window": _Number(-1, np.int32, -1),
    "position": _Number(0, np.uint64),
    "min_position": _Number(0, np.uint64),
}
# The parameter that turns a rule on, for each parameter that does nothing without it.
_REQUIRED = {
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_last_n": "dry_multiplier",
    "dry_breakers": "dry_multiplier",
    "ngram_window": "ngram_size",
    "ngram_keep": "ngram_size",
    "min_position": "stop_tokens",
    "stop_tokens": "min_position",
}


@dataclass
class Rules:
    """The rules of RowLists; `held` owns the memory that `struct` points to."""

    struct: _abi.ListRules
    bans: bool  # whether a rule bans tokens
    biases: bool  # whether a rule biases tokens: DRY
    held: list[Any] = field(default_factory=list)


def read_rules(
    arrays: NumpyArrays, places: int, batch: int, numbers: dict[str, Any], lists: dict[str, Any]
) -> Rules:
    """The rules of Recent.make_lists(): `places` entries of row parameters, `batch` lists."""
    on = {name for name, value in lists.items() if value is not None}
    on |= {name for name, value in numbers.items() if not is_off(value, _NUMBERS[name].off)}
    for name, needed in _REQUIRED.items():
        if name in on and needed not in on:
            raise ValueError(f"{name}: requires {needed}")
    bans = not on.isdisjoint(("ngram_size", "bad_words", "min_position"))
    rules = Rules(_abi.ListRules(), bans, "dry_multiplier" in on)
    if not (rules.bans or rules.biases):
        raise ValueError(
            "dry_multiplier: no rule is on; pass dry_multiplier, ngram_size, bad_words or "
            "min_position"
        )
    for name, kind in _NUMBERS.items():
        if name not in on:
            continue
        if kind.dtype is np.float32:
            found, stride = read_row_floats(name, numbers[name], places, arrays)
        else:
            found, stride = read_row_integers(
                name, numbers[name], places, kind.dtype, arrays, kind.low
            )
        setattr(rules.struct, name, _abi.Rows(address_of(found), stride))
        rules.held.append(found)
    for name, value in lists.items():
        if value is None:
            continue
        struct: Any
        if name in ("dry_breakers", "bad_words"):
            struct, held = read_sequences(name, value, batch, arrays, name == "dry_breakers")
        else:
            struct, held = read_token_lists(name, value, batch, arrays)
        setattr(rules.struct, name, struct)
        rules.held += held
    return rules


class RowLists:
    """Token lists of each row of a call, made by Recent.make_lists(), for `lists` of a call.

    A call with `lists` bans the ids of `banned`, and adds `late_values` to the logits of `late_ids`
    after the penalties. Ids are distinct and ascending; unused places have the id 2**31 - 1. Calls
    read these arrays in place: prepared calls and captured graphs draw by the lists of the latest
    update(). Unstable: may change in a minor release; see docs/compatibility.md.
    """

    banned: Optional[NDArray[np.int32]]  #: [B, capacity]; None if the rules are DRY alone
    late_ids: Optional[NDArray[np.int32]]  #: [B, capacity]; None without dry_multiplier
    late_values: Optional[NDArray[np.float32]]  #: [B, capacity]; None without dry_multiplier
    status: NDArray[np.int32]  #: [B]: 0; 8 if a list of the row has more ids than `capacity`, and
    #: on CUDA 5 if the slot does not exist: the row's lists are then empty

    def __init__(
        self,
        recent: Any,
        arrays: NumpyArrays,
        rows: int,
        capacity: int,
        rules: Rules,
        slots: tuple[Optional[_abi.Slots], list[Any]],
    ) -> None:
        """`recent` is the Recent; `slots` has the struct of the slots, and the arrays it uses."""
        self.recent, self.rows, self.capacity = recent, rows, capacity
        self.device = arrays.name
        shape = (rows, capacity)
        self._offsets = arrays.empty((rows + 1,), np.int64)
        self.banned = arrays.empty(shape, np.int32) if rules.bans else None
        self.late_ids = arrays.empty(shape, np.int32) if rules.biases else None
        self.late_values = arrays.empty(shape, np.float32) if rules.biases else None
        self.status = arrays.empty((rows,), np.int32)
        into = _abi.RowLists(
            capacity=capacity,
            offsets=address_of(self._offsets),
            banned=address_of(self.banned),
            late_ids=address_of(self.late_ids),
            late_values=address_of(self.late_values),
            status=address_of(self.status),
        )
        self._arrays, self._error, self._held = arrays, _abi.Error(), (rules, slots)
        ring: _abi.Recent = recent.to_struct()
        self._arguments = (rules.struct, ring, rows, slots[0], into, self._error)
        self.update()

    def update(self) -> None:
        """Make the lists for the next draw: of the present rings, by the same rules."""
        status = _abi.lib.gumbel_make_lists(
            self._arrays.device, self._arrays.current_stream(), *self._arguments
        )
        if status:
            _abi.check_status(status, self._error)

    def to_structs(self) -> dict[str, _abi.TokenLists]:
        """The lists in the library's format, by fields of transforms: `banned`, `late_bias`."""
        named = {"banned": (self.banned, None), "late_bias": (self.late_ids, self.late_values)}
        return {
            name: _abi.TokenLists(*map(address_of, (self._offsets, ids, values)))
            for name, (ids, values) in named.items()
            if ids is not None
        }
