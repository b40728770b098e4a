# SPDX-License-Identifier: Apache-2.0
"""Row parameters that change at every step: mirostat's mu, top_p, and adaptive_p's target."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arguments import (
    INT32_MAX,
    read_row_float32,
    read_row_floats,
    read_row_integers,
    read_row_tokens,
)
from .._inputs.arrays import NumpyArrays, address_of, arrays_of
from .._inputs.fixed_arrays import FixedArrays
from .._inputs.history import SlotRows
from .._inputs.numbers import is_off, read_integer
from .._inputs.parameters import RowFloats, RowIntegers
from .._inputs.row_state import check_call_slots, read_distinct_slots

SMALLEST = 2.0**-149
TARGET_MAX = 2.0**100  # of surprise_target, so that twice the target is finite


class RuleUpdates(FixedArrays):
    """Values of `surprise`, `top_p` or `adaptive_target` that every drawn token changes.

    >>> updates = gumbel.RuleUpdates(num_slots=B, surprise_target=5.0)
    >>> out = gumbel.sample_logits(logits, order="top_k,surprise", surprise=updates.surprise)
    >>> updates.update(out.tokens, out.logprobs)

    num_slots    number of slots; in calls without `slots` row b uses slot b.
    surprise_target
                 mirostat 2's tau, in bits, in [0, 2**100], one or [num_slots]. `surprise` starts at
                 twice this value, and a drawn token of probability p adds surprise_rate *
                 (surprise_target + log2 p), but not below 0. None: no `surprise`.
    surprise_rate
                 mirostat 2's eta, >= 0, one or [num_slots]. Default 0.1.
    top_p_decay  in (0, 1], one or [num_slots]: a drawn token multiplies `top_p` by it. None: no
                 `top_p`.
    top_p_first  in (0, 1], one or [num_slots]: the first value of `top_p`. Default 1.
    top_p_min    in (0, 1], one or [num_slots]: the smallest value of `top_p`. Default 2**-149.
    top_p_reset  a token id, one or [num_slots], that sets `top_p` to top_p_first when it is drawn.
                 Default -1, none.
    adaptive_goal
                 in [-1, 1], one or [num_slots]: the mean probability that adaptive_p aims at, the
                 first `adaptive_target`; below 0: off. After a draw, the target is twice the goal
                 less the decaying mean of the drawn tokens' probabilities, in [0, 1]. Not with
                 surprise_target. None: no `adaptive_target`.
    adaptive_decay
                 in [0, 0.99], one or [num_slots]: the decay of this mean. Default 0.9.
    like         a torch tensor on the device of the calls. None: the CPU.

    Probabilities for adaptive_p are those before it. Score the drawn tokens without
    `adaptive_target`, and otherwise with the arguments of the draw:

    >>> updates = gumbel.RuleUpdates(num_slots=B, adaptive_goal=0.5)
    >>> rules = {"order": "min_p,adaptive_p", "min_p": 0.02}
    >>> out = gumbel.sample_logits(logits, adaptive_target=updates.adaptive_target, **rules)
    >>> updates.update(out.tokens, gumbel.score_logits(logits, out.tokens, **rules).logprobs)

    Pass the arrays to every draw; prepared calls and captured graphs read them in place. On CUDA
    update() is queued on the current stream; with int32 and float32 tensors it copies nothing,
    allocates nothing, and can be captured in a graph. Raises TypeError or ValueError naming the
    argument.
    """

    surprise: Optional[NDArray[np.float32]]  #: [num_slots], or None
    top_p: Optional[NDArray[np.float32]]  #: [num_slots], or None
    adaptive_target: Optional[NDArray[np.float32]]  #: [num_slots], or None
    _fixed = ("surprise", "top_p", "adaptive_target")

    def __init__(
        self,
        num_slots: int,
        *,
        surprise_target: Optional[RowFloats] = None,
        surprise_rate: RowFloats = 0.1,
        top_p_decay: Optional[RowFloats] = None,
        top_p_first: RowFloats = 1.0,
        top_p_min: RowFloats = SMALLEST,
        top_p_reset: RowIntegers = -1,
        adaptive_goal: Optional[RowFloats] = None,
        adaptive_decay: RowFloats = 0.9,
        like: Optional[Any] = None,
    ) -> None:
        self.num_slots = read_integer("num_slots", num_slots, 1, INT32_MAX)
        arrays = arrays_of({"like": np.empty(0) if like is None else like}, None, None)
        self.device = arrays.name
        if surprise_target is None and top_p_decay is None and adaptive_goal is None:
            raise ValueError("surprise_target: pass surprise_target, top_p_decay or adaptive_goal")
        if surprise_target is not None and adaptive_goal is not None:
            raise ValueError("adaptive_goal: is not combined with surprise_target")
        if adaptive_goal is None and not is_off(adaptive_decay, 0.9):
            raise ValueError("adaptive_decay: requires adaptive_goal")
        if surprise_target is None and not is_off(surprise_rate, 0.1):
            raise ValueError("surprise_rate: requires surprise_target")
        struct = self._struct = _abi.RuleUpdates()
        self._held: list[Any] = []
        self.surprise = self.top_p = self.adaptive_target = None
        self._first: list[tuple[Any, Any]] = []  # (array, its first values)
        if surprise_target is not None:
            target = self._read_floats("surprise_target", surprise_target, 0, TARGET_MAX)
            self._set_rows("surprise_target", target, arrays)
            rate = self._read_floats("surprise_rate", surprise_rate, 0, np.inf)
            self._set_rows("surprise_rate", rate, arrays)
            self.surprise = self._add_values(2 * target, arrays)
            struct.surprise = address_of(self.surprise)
        if adaptive_goal is not None:
            self._set_adaptive(adaptive_goal, adaptive_decay, arrays)
        if top_p_decay is not None:
            self._set_top_p(top_p_decay, top_p_first, top_p_min, top_p_reset, arrays)
        else:
            given = {"top_p_first": (top_p_first, 1.0), "top_p_min": (top_p_min, SMALLEST)}
            for name, (value, off) in {**given, "top_p_reset": (top_p_reset, -1)}.items():
                if not is_off(value, off):
                    raise ValueError(f"{name}: requires top_p_decay")

    def start(self, slots: Optional[Any] = None) -> None:
        """Set `slots`, int32 [B] without repeats, to their first values. None: all slots."""
        where: Any = slice(None)
        arrays = self._get_arrays()
        if slots is not None:
            found = read_distinct_slots(slots, self.num_slots)
            where = arrays.copy_of(found.astype(np.int64))
        for values, first in self._first:
            values[where] = first[where]

    def update(
        self,
        tokens: Any,
        logprobs: Optional[Any] = None,
        *,
        slots: Optional[Any] = None,
        live_rows: Optional[Any] = None,
    ) -> None:
        """Update the values of the rows of a draw.

        tokens       int32 [B] or [B, 1]: the drawn tokens; a row with -1 keeps its values.
        logprobs     float32, as `tokens`: their log-probabilities, "processed"; required with
                     `surprise` and `adaptive_target`, for which they are those before the rule.
        slots        int32 [B], without repeats: the slots of these rows. None: all slots, row b
                     being slot b.
        live_rows    as in sample(): other rows keep their values.
        """
        arrays = self._get_arrays()
        batch, places, held = SlotRows(arrays, self.num_slots).read_slots(slots)
        if slots is not None and arrays.name == "cpu":
            check_call_slots(slots, self.num_slots, live_rows)
        shapes = ((batch,), (batch, 1))
        found = read_row_tokens("tokens", tokens, shapes, arrays)
        reader = "surprise" if self.surprise is not None else "adaptive_target"
        reads_logprobs = getattr(self, reader) is not None
        if reads_logprobs and logprobs is None:
            raise ValueError(f"logprobs: required, because `{reader}` depends on them")
        logs = None
        if logprobs is not None and reads_logprobs:
            logs = read_row_float32("logprobs", logprobs, shapes, arrays)
        live = None
        if live_rows is not None:
            live, _ = read_row_integers("live_rows", live_rows, 1, np.int32, arrays)
        held += [found, logs, live]
        struct = self._struct
        struct.batch, struct.slots = batch, places or _abi.Slots()
        struct.tokens, struct.logprobs = address_of(found), address_of(logs)
        struct.live_rows, error = address_of(live), _abi.Error()
        status = _abi.lib.gumbel_update_rules(arrays.device, arrays.stream, struct, error)
        _abi.check_status(status, error)

    def _get_arrays(self) -> NumpyArrays:
        return arrays_of({"values": self._first[0][0]}, None, None)

    def _set_top_p(
        self,
        decay: RowFloats,
        first: RowFloats,
        smallest: RowFloats,
        reset: RowIntegers,
        arrays: NumpyArrays,
    ) -> None:
        host = NumpyArrays(None, None)
        start = self._read_floats("top_p_first", first, SMALLEST, 1)
        floats = {
            "top_p_first": start,
            "top_p_decay": self._read_floats("top_p_decay", decay, SMALLEST, 1),
            "top_p_min": self._read_floats("top_p_min", smallest, SMALLEST, 1),
        }
        for name, values in floats.items():
            self._set_rows(name, values, arrays)
        ids, _ = read_row_integers("top_p_reset", reset, self.num_slots, np.int32, host, -1)
        self._set_rows("top_p_reset", np.broadcast_to(ids, (self.num_slots,)), arrays)
        self.top_p = self._add_values(start, arrays)
        self._struct.top_p = address_of(self.top_p)

    def _set_adaptive(self, goal: RowFloats, decay: RowFloats, arrays: NumpyArrays) -> None:
        goals = self._read_floats("adaptive_goal", goal, -1, 1)
        decays = self._read_floats("adaptive_decay", decay, 0, 0.99)
        self._set_rows("adaptive_goal", goals, arrays)
        self._set_rows("adaptive_decay", decays, arrays)
        self.adaptive_target = self._add_values(goals, arrays)
        weights = 1 / (1 - decays)
        struct = self._struct
        struct.adaptive_target = address_of(self.adaptive_target)
        struct.adaptive_sum = address_of(self._add_values(goals * weights, arrays))
        struct.adaptive_weight = address_of(self._add_values(weights, arrays))

    def _read_floats(self, name: str, value: Any, low: float, high: float) -> NDArray[np.float32]:
        """A row parameter in host memory, float32 [num_slots], finite and in [low, high]."""
        found, _ = read_row_floats(name, value, self.num_slots, NumpyArrays(None, None))
        good = (found >= low) & (found <= np.float32(high)) & np.isfinite(found)
        if not good.all():
            bounds = f"in (0, {high}]" if low == SMALLEST else f"in [{low}, {high}]"
            expected = "finite and >= 0" if high == np.inf else bounds
            raise ValueError(f"{name}: {found[~good][0]} is not {expected}")
        return np.array(np.broadcast_to(found, (self.num_slots,)), np.float32)

    def _set_rows(self, name: str, values: Any, arrays: NumpyArrays) -> None:
        """Set a row parameter of the struct to [num_slots] values."""
        there = arrays.to_device(np.array(values))
        setattr(self._struct, name, _abi.Rows(address_of(there), 1))
        self._held.append(there)

    def _add_values(self, first: NDArray[np.float32], arrays: NumpyArrays) -> Any:
        """An array [num_slots] that starts at `first`."""
        values = arrays.copy_of(first)
        self._first.append((values, arrays.copy_of(first)))
        return values
