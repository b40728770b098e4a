# SPDX-License-Identifier: Apache-2.0
"""The request of a call: its struct of parameters, and the memory that the struct points to."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from .. import _abi
from .arguments import read_one_number, read_row_floats, read_row_integers
from .arrays import NumpyArrays, address_of
from .numbers import is_off

# Types that read_one_number() accepts for a dtype of row parameters.
_NUMBERS_FOR = {np.float32: (int, float), np.int32: (int,), np.uint32: (int,), np.uint64: (int,)}
# Lists whose ids must be in the vocabulary; lists that are only counted may hold other ids.
_VOCABULARY_LISTS = ("allowed", "banned", "logit_bias", "late_bias", "xtc_keep")


@dataclass
class Request:
    """The common parameters of a call; `held` owns the memory that `sampling` points to."""

    arrays: NumpyArrays
    batch: int
    places: int  # entries of row parameters: the number of slots if there are slots, else batch
    sampling: _abi.Sampling = field(default_factory=_abi.Sampling)
    held: list[Any] = field(default_factory=list)
    logprobs: Optional[str] = None
    top_logprobs: int = 0
    ranks: bool = False
    kept: bool = False
    kept_ids: int = 0
    num_best: int = 0
    entropy: bool = False
    seed: Any = None  # passed or fresh
    tokens_end: Optional[int] = None  # size of the whole vocabulary; None: unknown

    def draw_seed(self) -> None:
        """Draw a fresh seed if the call has none."""
        if self.seed is None and not self.sampling.given.data:
            self.seed, data = self.arrays.fresh_seed()
            self.sampling.seed = _abi.Rows(address_of(data), _abi.SAME)
            self.held.append(data)

    def set_row_parameter(
        self, struct: ctypes.Structure, field: str, name: str, value: Any, off: Any, dtype: type
    ) -> bool:
        """Set a row parameter of `struct`; if the value is `off`, set nothing and return False."""
        if is_off(value, off):
            return False
        if type(value) in _NUMBERS_FOR[dtype] and self.arrays.name == "cpu":
            data, place = read_one_number(name, value, dtype)
            setattr(struct, field, _abi.Rows(place, _abi.SAME))
        else:
            if dtype is np.float32:
                data, stride = read_row_floats(name, value, self.places, self.arrays)
            else:
                data, stride = read_row_integers(name, value, self.places, dtype, self.arrays)
            setattr(struct, field, _abi.Rows(address_of(data), stride))
        self.held.append(data)
        return True

    def set_token_lists(
        self, struct: ctypes.Structure, field: str, name: str, read: Any, value: Any
    ) -> bool:
        """Set lists of `struct` by read(); if `value` is None, set nothing and return False."""
        if value is None:
            return False
        end = self.tokens_end if name in _VOCABULARY_LISTS else None
        lists, held = read(name, value, self.batch, self.arrays, end)
        setattr(struct, field, lists)
        if field == "allowed":
            struct.max_allowed = lists.longest
        self.held += held
        return True

    def set_token_ids(self, table: Any) -> None:
        """Draw from a head whose rows are the tokens of `table`, int32 [V]."""
        self.sampling.token_ids = address_of(table)
        self.held.append(table)

    def set_given(self, tokens: Any, stride: int) -> None:
        """Score these tokens instead of drawing."""
        self.sampling.given = _abi.Rows(address_of(tokens), stride)
        self.held.append(tokens)
