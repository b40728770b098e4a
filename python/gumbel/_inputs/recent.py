# SPDX-License-Identifier: Apache-2.0
"""Rings of the last tokens of sequences, which rules against repetition read."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .arguments import INT32_MAX, read_contiguous, read_row_integers
from .arrays import NumpyArrays, address_of, arrays_of, layout_of
from .fixed_arrays import FixedArrays, check_arrays
from .history import History, SlotRows, call_start, call_update
from .numbers import read_integer
from .parameters import RowFloats, RowIntegers, Tokens, TokenSequences
from .row_lists import RowLists, read_rules

COUNT_MAX = 65535  # of a history


class Recent(FixedArrays):
    """The last tokens of each slot, in rings, from which make_lists() makes token lists.

    >>> recent = gumbel.Recent(num_slots=2, capacity=4096)
    >>> recent.start([[1, 2], [3]])
    >>> lists = recent.make_lists(dry_multiplier=0.8, ngram_size=[0, 4])
    >>> out = gumbel.sample_logits(logits, lists=lists)
    >>> recent.append(out.tokens)
    >>> lists.update()                  # for the next draw

    num_slots    number of slots; in calls without `slots` row b uses slot b.
    capacity     tokens that a ring keeps, 1 to 2**30.
    history      a History of as many slots or more, in which the calls of this object count the
                 last `window` tokens of each ring, prompt included; penalties then apply to these
                 tokens alone. Its own methods are then errors.
    window       one or [num_slots]: at most `capacity`, and at most 65535. The default is 64, or
                 `capacity` if it is smaller.
    like         a torch tensor on the device of the calls. None: the device of `history`, else the
                 CPU, for NumPy arrays and tensors.

    Calls of a Sampler append the tokens that they draw with `lists` or with the `history`. On CUDA
    all calls are queued on the current stream; append() of int32 tensors copies nothing. Two calls
    must not change one object at the same time. Raises TypeError or ValueError naming the argument.
    Unstable: may change in a minor release; see docs/compatibility.md.
    """

    tokens: NDArray[np.int32]  #: [num_slots, capacity]: token i of a slot is at i % capacity
    count: NDArray[np.uint64]  #: [num_slots]: tokens of each slot so far, also those that the ring
    #: no longer has; int64 in torch
    history: Optional[History]
    _fixed = ("tokens", "count", "history")

    def __init__(
        self,
        num_slots: int,
        capacity: int,
        *,
        history: Optional[History] = None,
        window: Optional[RowIntegers] = None,
        like: Optional[Any] = None,
    ) -> None:
        self.num_slots = read_integer("num_slots", num_slots, 1, INT32_MAX)
        self.capacity = read_integer("capacity", capacity, 1, _abi.RECENT_MAX)
        if history is not None and not isinstance(history, History):
            raise TypeError(f"history: expected a gumbel.History, got {type(history).__name__}")
        if like is None:
            like = np.empty(0) if history is None else history.prompt
        arrays = arrays_of({"like": like}, None, None)
        self.device = arrays.name
        self._check_history(history)
        self._window: Any = None
        rows = self._read_window(window, history, arrays)
        self.tokens = arrays.zeros((self.num_slots, self.capacity), np.int32)
        self.count = arrays.zeros((self.num_slots,), np.uint64)
        self.history = history
        self._struct = _abi.Recent(
            capacity=self.capacity,
            tokens=address_of(self.tokens),
            count=address_of(self.count),
            window=rows,
        )
        if history is not None:
            history.set_owner(self)
            self._struct.history = ctypes.pointer(history.to_struct())

    @classmethod
    def of_arrays(cls, tokens: Any, count: Any) -> Recent:
        """Rings in two arrays of the caller, shaped as this class's attributes.

        tokens       int32 [num_slots, capacity], contiguous. An engine's texts, of which row b has
                     token i at place i, are rings that never wrap.
        count        uint64, int64 in torch, [num_slots]; on the device of `tokens`.

        The caller may change both between calls of this object and of its RowLists.
        """
        recent = cls.__new__(cls)
        found = read_contiguous("tokens", tokens)
        arrays = arrays_of({"tokens": tokens, "count": count}, None, None)
        counts = layout_of("count", count)
        if found.dtype != "int32" or 0 in found.shape or found.shape[1] > _abi.RECENT_MAX:
            raise ValueError(
                f"tokens: expected int32 [num_slots, 1 to {_abi.RECENT_MAX}], got {found.dtype} "
                f"{found.shape}"
            )
        if counts.dtype not in ("int64", "uint64") or counts.shape != found.shape[:1]:
            raise ValueError(
                f"count: expected uint64 or int64 ({found.shape[0]},), got {counts.dtype} "
                f"{counts.shape}"
            )
        if counts.strides != (8,) and found.shape[0] > 1:
            raise ValueError("count: is not contiguous; copy the array first")
        recent.num_slots, recent.capacity = found.shape
        recent.device, recent.history, recent._window = arrays.name, None, None
        recent.tokens, recent.count = tokens, count
        recent._struct = _abi.Recent(
            capacity=recent.capacity, tokens=found.address, count=counts.address
        )
        return recent

    def start(
        self,
        prompts: Optional[Any] = None,
        outputs: Optional[Any] = None,
        *,
        slots: Optional[Any] = None,
    ) -> None:
        """Empty the rings of `slots`, then append their prompts and outputs.

        prompts, outputs
                     token ids: one list for all rows, or one list for each row. None: no tokens.
        slots        int32 [B], without repeats: the slots of these rows. None: all slots, row b
                     being slot b.
        """
        check_arrays(self)
        call = _abi.lib.gumbel_recent_start
        call_start(call, self._struct, self._get_shape(), prompts, outputs, slots)

    def append(
        self, tokens: Any, *, counts: Optional[Any] = None, slots: Optional[Any] = None
    ) -> None:
        """Append further tokens of each row.

        tokens       int32 [B] or [B, W]; -1 is skipped.
        counts       [B], each at most W: the number of leading tokens of each row to append, such
                     as `emitted` of verify(). None: W.
        slots        as in start().
        """
        check_arrays(self)
        call = _abi.lib.gumbel_recent_append
        call_update(call, self._struct, self._get_shape(), tokens, counts, slots)

    def make_lists(
        self,
        *,
        dry_multiplier: RowFloats = 0.0,
        dry_base: RowFloats = 1.75,
        dry_allowed_length: RowIntegers = 2,
        dry_last_n: RowIntegers = -1,
        dry_breakers: Optional[TokenSequences] = None,
        ngram_size: RowIntegers = 0,
        ngram_window: RowIntegers = -1,
        ngram_keep: Optional[Tokens] = None,
        bad_words: Optional[TokenSequences] = None,
        position: RowIntegers = 0,
        min_position: RowIntegers = 0,
        stop_tokens: Optional[Tokens] = None,
        slots: Optional[Any] = None,
        capacity: int = 256,
    ) -> RowLists:
        """Make the token lists of these rules, for the `lists` of the next draw; returns RowLists.

        dry_multiplier, dry_base, dry_allowed_length
                     DRY: if the last L tokens were in the text before, the token that followed them
                     gets a bias of -dry_multiplier * dry_base ** (L - dry_allowed_length), after
                     the penalties, for the largest L >= dry_allowed_length. One or
                     [B]; dry_multiplier >= 0; 0: off. dry_base below 1: off.
        dry_last_n   >= 0, one or [B]: the number of last tokens that DRY reads; -1: all.
        dry_breakers sequences of token ids, such as [[198], [25, 220]]: DRY compares no tokens up
                     to the last of them. One list of sequences for all rows, or one for each row.
        ngram_size   >= 0, one or [B]: no sequence of this many tokens occurs twice; 0: off.
        ngram_window >= 0, one or [B]: the number of last tokens that hold it; -1: all.
        ngram_keep   token ids that `ngram_size` does not ban: one list for all rows, or one for
                     each row.
        bad_words    sequences of token ids, as `dry_breakers`: the last token of each is banned if
                     the text ends in those before it.
        stop_tokens, min_position, position
                     ban `stop_tokens` while position < min_position. One list of ids for all rows,
                     or one for each row; and < 2**64, one or [B].
        slots        int32 [B]: the slot of each row. None: all slots, row b being slot b. "[B]"
                     above means [num_slots], except for lists.
        capacity     ids that a list of a row can have, 1 to 2048. A row with more of them is not
                     drawn, and its status is 8.

        RowLists.update() makes the lists of a later step in the same arrays. Arrays of the
        library's dtype (int32, float32, uint64 or int64 for positions) are read in place, `slots`
        too. On CUDA update() neither waits nor allocates, and can be captured in a graph; values
        are not checked on the host, and a value out of range turns its rule off.
        """
        numbers: dict[str, Any] = {
            "dry_multiplier": dry_multiplier,
            "dry_base": dry_base,
            "dry_allowed_length": dry_allowed_length,
            "dry_last_n": dry_last_n,
            "ngram_size": ngram_size,
            "ngram_window": ngram_window,
            "position": position,
            "min_position": min_position,
        }
        lists = {
            "dry_breakers": dry_breakers,
            "ngram_keep": ngram_keep,
            "bad_words": bad_words,
            "stop_tokens": stop_tokens,
        }
        places = read_integer("capacity", capacity, 1, _abi.LIST_MAX)
        shape = self._get_shape()
        batch, struct, held = shape._replace(distinct=False).read_slots(slots)
        rules = read_rules(shape.arrays, self.num_slots, batch, numbers, lists)
        return RowLists(self, shape.arrays, batch, places, rules, (struct, held))

    def to_struct(self) -> _abi.Recent:
        """The struct of the C ABI, which points to this object's arrays."""
        return self._struct

    def _get_shape(self) -> SlotRows:
        arrays = arrays_of({"recent": self.tokens}, None, None)
        return SlotRows(arrays, self.num_slots, distinct=True)

    def _check_history(self, history: Optional[History]) -> None:
        if history is None:
            return
        if history.device != self.device:
            raise ValueError(f"history: is on {history.device}, the rings are on {self.device}")
        if history.num_slots < self.num_slots:
            raise ValueError(
                f"history: has {history.num_slots} slots, expected at least {self.num_slots}"
            )

    def _read_window(
        self, window: Optional[Any], history: Optional[History], arrays: NumpyArrays
    ) -> _abi.Rows:
        if window is None:
            return _abi.Rows()
        if history is None:
            raise ValueError("window: requires a history, which counts the tokens of the window")
        most, host = min(self.capacity, COUNT_MAX), NumpyArrays(None, None)
        found, stride = read_row_integers("window", window, self.num_slots, np.int32, host)
        bad = found > most
        if bad.any():
            raise ValueError(f"window: {found[bad][0]} is not in [0, {most}]")
        self._window = arrays.to_device(found.copy())
        return _abi.Rows(address_of(self._window), stride)
