# SPDX-License-Identifier: Apache-2.0
"""Sampler: stores the seed and the position of each row, and advances positions at each draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arrays import Array, TorchArrays, arrays_of, import_array, layout_of
from .._inputs.common import takes_common
from .._inputs.fresh_seeds import fresh_seed
from .._inputs.numbers import format_value, get_length, read_integer
from .._inputs.parameters import Common, RowIntegers
from .._inputs.request import Request
from .._inputs.row_state import (
    check_call_slots,
    check_writable,
    read_distinct_slots,
    list_integers,
    count_rows,
    derive_row_seeds,
    read_uint64,
    write_rows,
)
from .._inputs.tensors import is_tensor
from .advance import RowsStep
from .library_call import LogitsSource, draw_request, read_head, read_logit_options, read_logits
from .outputs import SampleOutput, format_array
from .prepared import PreparedCall, check_in_place
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

STATE_VERSION = 1  # of the dict of state_dict()
_REJECTED = {
    "seed": "the sampler stores the seeds; use Sampler(seed=...) or reset(seed=...)",
    "position": "the sampler stores positions; use Sampler(position=...) or reset(position=...)",
    "num_slots": "the sampler stores the number of slots; use Sampler(num_slots=...)",
    "given": "a sampler only draws; use gumbel.score() or gumbel.score_logits()",
}
_STATE_KEYS = ("version", "root", "sequences", "of_slots", "seed", "position")


class Sampler:
    """Draws in decode loops: every call advances the positions of the rows that it draws.

    >>> sampler = gumbel.Sampler(seed=7)
    >>> out = sampler.sample(hidden, weight, temperature=0.8)    # position 0
    >>> out = sampler.sample(hidden, weight, temperature=0.8)    # position 1

    seed         < 2**64. One seed serves all rows: row b, or slot b, has gumbel_row_seed(seed, b),
                 so that the tokens are those of sample(seed=seed, position=...). A list or array
                 sets each row's own seed. None: a fresh seed from the operating system.
    batch        number of rows of every call. None: that of the first call or of a list of seeds.
    num_slots    instead of `batch`, for continuous batching: calls then take `slots`, with at most
                 one row for each slot, and positions belong to slots.
    position     first position, < 2**64: one, or one for each row.
    like         an array on the sampler's device. None: the device of the first call.

    The attributes `seed` and `position` are uint64 [B] or [num_slots]; on CUDA, int64 tensors with
    the same bits. They are None while the number of rows is unknown. Both may be written between
    calls, in place or by assignment: `sampler.position = 40`, or one number for each row.
    Assignment copies the values into the existing array, so that prepared calls and captured graphs
    use them.

    Calls take the arguments of sample() and sample_logits() except `seed`, `position`, `num_slots`
    and `given`. They add the drawn tokens to a `history` and to the Recent of `lists`, and
    num_samples must then be 1; the caller updates the lists before the next draw. A call that
    raises an exception advances no position. A row whose status is not 0 advances, unless it is
    beyond `live_rows`.

    On CUDA the positions are on the device, and a captured graph advances them at every replay.
    Pass `batch` and `like`, or make one call, before capturing a graph.

    A fork copies a sampler with its seeds: the child draws the same tokens as its parent. Create
    another sampler in the child.

    A sampler must not be used by two threads at a time.
    """

    def __init__(
        self,
        seed: Optional[RowIntegers] = None,
        *,
        batch: Optional[int] = None,
        num_slots: Optional[int] = None,
        position: RowIntegers = 0,
        like: Optional[Any] = None,
    ) -> None:
        if batch is not None and num_slots is not None:
            raise ValueError("batch: pass batch or num_slots, not both")
        name, count = ("batch", batch) if num_slots is None else ("num_slots", num_slots)
        rows = None if count is None else read_integer(name, count, 1, 2**31 - 1)
        self._has_slots = num_slots is not None
        seed = fresh_seed() if seed is None else seed
        rows = count_rows("seed", seed) if rows is None else rows
        rows = count_rows("position", position) if rows is None else rows
        seeds = read_uint64("seed", seed, rows)
        self._first_position = read_uint64("position", position, rows)
        self._root_seed = None if seeds.ndim else int(seeds)  # the one seed of all sequences
        self._sequences = 0  # number of sequences that got a seed from it
        self.device: Optional[str] = None
        self._seed: Any = None  # uint64 array, or int64 tensor on CUDA
        self._position: Any = None
        self._place: Any = None  # torch's device of `like`
        if rows is not None:
            own = seeds if seeds.ndim else derive_row_seeds(int(seeds), range(rows))
            self._set_state(own, np.array(np.broadcast_to(self._first_position, (rows,))))
        if like is not None:
            arrays = arrays_of({"like": import_array("like", like)}, None, None)
            if self._seed is not None:
                self._set_state(*self._move_state(arrays))
            self.device, self._place = arrays.name, getattr(arrays, "place", None)

    @property
    def seed(self) -> Optional[NDArray[np.uint64]]:
        """Each row's own seed. Assigning one number sets seeds as Sampler(seed=...) does."""
        found: Optional[NDArray[np.uint64]] = self._seed
        return found

    @seed.setter
    def seed(self, value: RowIntegers) -> None:
        rows = self._get_row_count("seed")
        if count_rows("seed", value) is None:  # one number, from which each row's seed is derived
            root = int(read_uint64("seed", value, rows))
            write_rows("seed", self._seed, derive_row_seeds(root, range(rows)))
            self._root_seed, self._sequences = root, rows
        else:
            write_rows("seed", self._seed, value)

    @property
    def position(self) -> Optional[NDArray[np.uint64]]:
        """The position of each row's next draw."""
        found: Optional[NDArray[np.uint64]] = self._position
        return found

    @position.setter
    def position(self, value: RowIntegers) -> None:
        self._get_row_count("position")
        write_rows("position", self._position, value)

    def __repr__(self) -> str:
        rows = None if self._seed is None else len(self._seed)
        seed = repr(self._root_seed) if self._root_seed is not None else format_array(self._seed)
        position = format_array(self._first_position if rows is None else self._position)
        name = "num_slots" if self._has_slots else "batch"
        return f"Sampler(seed={seed}, {name}={rows}, position={position}, device={self.device!r})"

    # ------------------------------------------------------------------------------- calls ----

    @takes_common(*_REJECTED, reasons=_REJECTED)
    def sample(
        self,
        hidden: Array,
        weight: Weights,
        *,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """gumbel.sample() at the rows' positions, which then advance by one."""
        shared, state = (
            read_logit_options(scale, softcap, vocab_size),
            self._add_state("hidden", hidden, common),
        )
        source, request = read_head(hidden, weight, bias, shared, state)
        return self._draw_and_advance(_abi.lib.gumbel_sample, source, request, state)

    @takes_common(*_REJECTED, reasons=_REJECTED)
    def sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> SampleOutput:
        """gumbel.sample_logits() at the rows' positions, which then advance by one."""
        shared, state = (
            read_logit_options(scale, softcap, vocab_size),
            self._add_state("logits", logits, common),
        )
        source, request = read_logits(logits, shared, state)
        return self._draw_and_advance(_abi.lib.gumbel_sample_logits, source, request, state)

    @takes_common(*_REJECTED, reasons=_REJECTED)
    def prepare_sample(
        self,
        hidden: Array,
        weight: Weights,
        *,
        bias: Optional[Array] = None,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> PreparedCall:
        """gumbel.prepare_sample() with calls that advance the positions, also in CUDA graphs.

        **Write `hidden` in place. Every call returns the same arrays and overwrites them: copy what
        you keep.**
        """
        shared, hidden = (
            read_logit_options(scale, softcap, vocab_size),
            import_array("hidden", hidden),
        )
        state = self._add_state("hidden", hidden, common)
        source, request = read_head(hidden, weight, bias, shared, state)
        return self._prepare_call(_abi.lib.gumbel_sample, "hidden", hidden, source, request, state)

    @takes_common(*_REJECTED, reasons=_REJECTED)
    def prepare_sample_logits(
        self,
        logits: Array,
        *,
        scale: float = 1.0,
        softcap: float = 0.0,
        vocab_size: Optional[int] = None,
        **common: Unpack[Common],
    ) -> PreparedCall:
        """gumbel.prepare_sample_logits(); otherwise as Sampler.prepare_sample().

        **Write `logits` in place. Every call returns the same arrays and overwrites them: copy what
        you keep.**
        """
        shared, logits = (
            read_logit_options(scale, softcap, vocab_size),
            import_array("logits", logits),
        )
        state = self._add_state("logits", logits, common)
        source, request = read_logits(logits, shared, state)
        call = _abi.lib.gumbel_sample_logits
        return self._prepare_call(call, "logits", logits, source, request, state)

    # ------------------------------------------------------------------------------- state ----

    def reset(
        self,
        slots: Optional[Any] = None,
        *,
        position: RowIntegers = 0,
        seed: Optional[RowIntegers] = None,
    ) -> None:
        """Start a new sequence in each of `slots`.

        slots        int32 [n]: slots, or rows of a sampler with `batch`. None: all.
        position     first position of the sequences: one or [n].
        seed         one or [n]. A list sets each slot's own seed, so that the text does not depend
                     on the slot: `reset(slots=[5], seed=[7])`. From one number each slot's seed is
                     derived, as in Sampler(seed=...). None: the next seeds derived from the
                     sampler's one seed, so that no two sequences have equal noise; required if the
                     sampler was created with a list of seeds.

        On CUDA this is queued on the current stream. Raises TypeError or ValueError naming the
        argument.
        """
        if self._seed is None:
            raise ValueError(
                "slots: the number of slots is unknown; create the sampler with batch or num_slots"
            )
        rows, root, sequences = len(self._seed), self._root_seed, self._sequences
        where = np.arange(rows) if slots is None else read_distinct_slots(slots, rows)
        count = len(where)
        if seed is not None:
            own = read_uint64("seed", seed, count)
            if own.ndim == 0:
                if slots is None:
                    root, sequences = int(own), count
                own = derive_row_seeds(int(own), where)
        elif root is None:
            raise ValueError("seed: required, because the sampler was created with a list of seeds")
        else:
            own = derive_row_seeds(root, range(sequences, sequences + count))
            sequences += count
        start = np.broadcast_to(read_uint64("position", position, count), (count,))
        self._write_state(where, own, start)
        self._root_seed, self._sequences = root, sequences

    def state_dict(self) -> dict[str, Any]:
        """The whole state as a dict of ints and lists of ints, for load_state_dict().

        The dict can be stored as JSON. On CUDA this waits for the device.
        """
        unknown = self._seed is None
        return {
            "version": STATE_VERSION,
            "root": self._root_seed,
            "sequences": self._sequences,
            "of_slots": self._has_slots,
            "seed": None if unknown else list_integers(self._seed),
            "position": int(self._first_position) if unknown else list_integers(self._position),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of state_dict(); prepared calls use it, too.

        The sampler must have as many rows or slots as the saved one, or none yet. Raises TypeError
        or ValueError naming the entry.
        """
        if not isinstance(state, Mapping) or set(state) != set(_STATE_KEYS):
            raise ValueError(f"state: expected a dict with the keys {', '.join(_STATE_KEYS)}")
        if not isinstance(state["version"], int) or state["version"] != STATE_VERSION:
            found = format_value(state["version"])
            raise ValueError(f"state: version {found} is not supported; expected {STATE_VERSION}")
        if state["of_slots"] is not self._has_slots:
            raise ValueError("state: one sampler has slots (num_slots), the other has rows (batch)")
        sequences = read_integer("state.sequences", state["sequences"], 0, 2**64 - 1)
        root = state["root"]
        root = None if root is None else read_integer("state.root", root, 0, 2**64 - 1)
        rows = count_rows("state.seed", state["seed"]) if self._seed is None else len(self._seed)
        if rows is None and (root is None or state["seed"] is not None):
            raise ValueError(
                "state: neither a seed for each row nor one seed for all rows is present"
            )
        if rows is None:  # neither has rows yet
            position = read_integer("state.position", state["position"], 0, 2**64 - 1)
            start = np.array(position, np.uint64)
        elif state["seed"] is None:
            raise ValueError(f"state: expected {rows} rows, got a state without rows")
        else:
            own = read_uint64("state.seed", state["seed"], rows)
            start = read_uint64("state.position", state["position"], rows)
            if own.ndim == 0 or start.ndim == 0:
                raise TypeError("state: seed and position must be lists of one number for each row")
            if self._seed is None:
                if self._place is not None:
                    to_device = TorchArrays(self._place, None, None).to_device
                    own, start = to_device(own), to_device(start)
                self._set_state(own, start)
            else:
                self._write_state(np.arange(rows), own, start)
        self._first_position, self._root_seed, self._sequences = start, root, sequences

    # ----------------------------------------------------------------------------- helpers ----

    def _set_state(self, seed: Any, position: Any, device: Optional[str] = None) -> None:
        if len(seed) == 0:  # an empty batch does not determine the number of rows
            return
        if self._seed is None:
            self._sequences = len(seed)
        self._seed, self._position, self.device = seed, position, device or self.device

    def _move_state(self, arrays: Any, rows: int = 0) -> tuple[Any, Any]:
        """The seeds and positions on a device; new ones for `rows` rows if there are none."""
        found = self._seed, self._position
        if self.device not in (None, arrays.name):
            raise ValueError(f"sampler: is on {self.device}, the call on {arrays.name}")
        if self._seed is not None and self.device == arrays.name:
            return found
        if self._seed is None:
            assert self._root_seed is not None
            start = np.array(np.broadcast_to(self._first_position, (rows,)))
            found = derive_row_seeds(self._root_seed, range(rows)), start
        if arrays.name == "cpu":
            return found
        if arrays.is_capturing():
            raise RuntimeError(
                "sampler: pass batch and like, or make one call, before capturing a CUDA graph"
            )
        return arrays.to_device(found[0]), arrays.to_device(found[1])

    def _add_state(self, name: str, inputs: Any, common: Any) -> dict[str, Any]:
        """A call's parameters, with the sampler's seed, position and num_slots added."""
        inputs = import_array(name, inputs)
        if len(layout_of(name, inputs).shape) != 2:
            return dict(common)  # the call raises the error
        rows = len(inputs) if self._seed is None else len(self._seed)
        slots = common.get("slots")
        if self._has_slots and slots is None:
            raise ValueError("slots: required by a sampler with num_slots: the slot of each row")
        if not self._has_slots and slots is not None:
            raise ValueError(
                "slots: not supported by a sampler with batch; create it with num_slots"
            )
        if not self._has_slots and len(inputs) != rows:
            raise ValueError(
                f"{name}: has {len(inputs)} rows, but the sampler has {rows}; create "
                "another sampler, or one with num_slots for batches of changing size"
            )
        samples = read_integer("num_samples", common.get("num_samples", 1), 1, _abi.SAMPLES_MAX)
        for kept, call in (("history", "its update()"), ("lists", "append() of its Recent")):
            if common.get(kept) is not None and samples != 1:
                raise ValueError(
                    f"num_samples: must be 1 with {kept}; draw by gumbel.sample() or "
                    f"sample_logits(), then call {call} with the chosen samples"
                )
        arrays = arrays_of({name: inputs}, None, None)
        if arrays.name == "cpu":
            check_writable("position", self._position)
            if slots is not None and get_length(slots) == len(
                inputs
            ):  # otherwise the call raises the error
                check_call_slots(slots, rows, common.get("live_rows"))
        seed, position = self._move_state(arrays, rows)
        state = {**common, "seed": seed, "position": position}
        return {**state, "num_slots": rows} if self._has_slots else state

    def _draw_and_advance(
        self, call: Any, source: LogitsSource, request: Request, state: Any
    ) -> SampleOutput:
        out = draw_request(call, source, request)
        step = RowsStep(request, out.tokens, state.get("history"), state.get("lists"))
        step(request.arrays.stream)
        self._set_state(state["seed"], state["position"], request.arrays.name)
        return out

    def _prepare_call(
        self, call: Any, name: str, inputs: Any, source: LogitsSource, request: Request, state: Any
    ) -> PreparedCall:
        check_in_place(request, state)
        prepared = PreparedCall(call, name, inputs, source, request)
        kept = state.get("history"), state.get("lists")
        prepared.after_draw = RowsStep(request, prepared.output.tokens, *kept)
        self._set_state(state["seed"], state["position"], request.arrays.name)
        return prepared

    def _get_row_count(self, name: str) -> int:
        if self._seed is None:
            raise ValueError(
                f"{name}: the number of rows is unknown; create the sampler with batch or num_slots"
            )
        return len(self._seed)

    def _write_state(self, where: Any, seeds: Any, positions: Any) -> None:
        """Set the seeds and positions of some rows, in place."""
        check_writable("seed", self._seed)
        check_writable("position", self._position)
        for array, values in ((self._seed, seeds), (self._position, positions)):
            if is_tensor(array):
                to_device = arrays_of({"sampler": array}, None, None).to_device
                array[to_device(where.astype(np.int64))] = to_device(np.ascontiguousarray(values))
            else:
                array[where] = values
