# SPDX-License-Identifier: Apache-2.0
"""Token histories: the tokens that penalties count, updated from step to step."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .arguments import (
    INT32_MAX,
    read_contiguous,
    read_row_integers,
    read_row_tokens,
    read_token_lists,
)
from .arrays import NumpyArrays, TorchArrays, address_of, arrays_of
from .fixed_arrays import FixedArrays, check_arrays
from .numbers import get_length, read_integer
from .row_state import check_call_slots

_COUNTS = {16: np.uint16, 32: np.int32}
_COUNT_NAMES = ("int16", "uint16", "int32", "uint32")


class History(FixedArrays):
    """The prompt and output tokens of each slot, which penalties count.

    >>> history = gumbel.History(num_slots=8, vocab_size=len(weight))
    >>> history.start([[1, 2], [3]], slots=[5, 0])
    >>> out = gumbel.sample(
    ...     hidden, weight, history=history, slots=[5, 0], num_slots=8, presence_penalty=0.5
    ... )
    >>> history.update(out.tokens, slots=[5, 0])

    num_slots    number of slots; in calls without `slots` row b uses slot b.
    vocab_size   token ids >= vocab_size are not counted.
    count_bits   bits of a token's count: 16 or 32. Counts saturate at 65535 in both cases.
    like         a torch tensor on the device of the calls that use the history. None: the CPU, for
                 NumPy arrays and tensors.

    On CUDA start() and update() are queued on the current stream, which then reads tensor
    arguments. Two calls must not change one history at the same time. Raises TypeError or
    ValueError naming the argument.
    """

    prompt: NDArray[np.uint32]  #: [num_slots, ceil(vocab_size / 32)]: bit t & 31 of word t >> 5
    #: is set if t is in the prompt; torch tensors hold the same bits as int32
    output: NDArray[np.uint32]  #: as `prompt`, for the output
    counts: NDArray[Any]  #: [num_slots, vocab_size]: number of times that each token is in the
    #: output; uint16, which torch tensors hold as int16, or int32
    _fixed = ("prompt", "output", "counts")

    def __init__(
        self, num_slots: int, vocab_size: int, *, count_bits: int = 16, like: Optional[Any] = None
    ) -> None:
        self.num_slots = read_integer("num_slots", num_slots, 1, INT32_MAX)
        self.vocab_size = read_integer("vocab_size", vocab_size, 1, 2**31)
        self.count_bits = read_integer("count_bits", count_bits, 16, 32)
        if self.count_bits not in _COUNTS:
            raise ValueError(f"count_bits: expected 16 or 32, got {self.count_bits}")
        arrays = arrays_of({"like": np.empty(0) if like is None else like}, None, None)
        self.device = arrays.name
        self._owner: Optional[weakref.ref[Any]] = None
        words = (self.vocab_size + 31) // 32
        self.prompt, self.output, self.counts = (
            arrays.zeros((self.num_slots, width), dtype)
            for width, dtype in (
                (words, np.uint32),
                (words, np.uint32),
                (self.vocab_size, _COUNTS[self.count_bits]),
            )
        )

    @classmethod
    def of_arrays(cls, prompt: Any, output: Any, counts: Any) -> History:
        """A history that uses three arrays of the caller, shaped as this class's attributes."""
        history = cls.__new__(cls)
        named = {"history_prompt": prompt, "history_output": output, "history_counts": counts}
        for name, array in named.items():
            if array is None:
                raise ValueError(
                    f"{name}: required, because another array of the history was passed"
                )
        found = {name: read_contiguous(name, array) for name, array in named.items()}
        history.num_slots, history.vocab_size = found["history_counts"].shape
        history.count_bits = 8 * found["history_counts"].itemsize
        if found["history_counts"].dtype not in _COUNT_NAMES:
            raise TypeError(f"history_counts: expected int16 or int32, got {counts.dtype}")
        words = (history.num_slots, (history.vocab_size + 31) // 32)
        for name in ("history_prompt", "history_output"):
            if found[name].shape != words or found[name].dtype not in ("int32", "uint32"):
                raise ValueError(
                    f"{name}: expected int32 {words}, got {found[name].dtype} {found[name].shape}"
                )
        history.device = arrays_of(named, None, None).name
        history.prompt, history.output, history.counts = prompt, output, counts
        history._owner = None
        return history

    def start(
        self,
        prompts: Optional[Any] = None,
        outputs: Optional[Any] = None,
        *,
        slots: Optional[Any] = None,
    ) -> None:
        """Clear `slots`, then count their prompts and outputs.

        prompts, outputs
                     token ids: one list for all rows, or one list for each row. None: no tokens.
        slots        int32 [B]: the slots of these rows. None: all slots, row b being slot b.
        """
        self._check_changes()
        call = _abi.lib.gumbel_history_start
        call_start(call, self.to_struct(), self._get_shape(), prompts, outputs, slots)

    def update(
        self, tokens: Any, *, counts: Optional[Any] = None, slots: Optional[Any] = None
    ) -> None:
        """Count further output tokens of each row.

        tokens       int32 [B] or [B, W]; -1 and ids >= vocab_size are skipped.
        counts       [B], each at most W: the number of leading tokens of each row to count, such
                     as `emitted` of verify(). None: W.
        slots        as in start(), without repeats.
        """
        self._check_changes()
        call = _abi.lib.gumbel_history_update
        call_update(call, self.to_struct(), self._get_shape(), tokens, counts, slots)

    def to_struct(self) -> _abi.History:
        """The struct of the C ABI, which points to this history's arrays."""
        return _abi.History(
            vocab_size=self.vocab_size,
            prompt=address_of(self.prompt),
            output=address_of(self.output),
            counts=address_of(self.counts),
            count_bits=self.count_bits,
        )

    def get_owner(self) -> Optional[Any]:
        """The Recent that keeps this history; None: the history is independent."""
        return None if self._owner is None else self._owner()

    def set_owner(self, recent: Any) -> None:
        """Let a Recent keep this history, which only its calls change from now on."""
        if self.get_owner() is not None:
            raise ValueError("history: another gumbel.Recent already keeps it")
        self._owner = weakref.ref(recent)

    def _check_changes(self) -> None:
        """Raise ValueError if this history cannot be changed by its own methods."""
        if self.get_owner() is not None:
            raise ValueError("history: a gumbel.Recent keeps it; call the methods of the Recent")
        check_arrays(self)

    def _get_shape(self) -> SlotRows:
        return SlotRows(arrays_of({"history": self.prompt}, None, None), self.num_slots)


class SlotRows(NamedTuple):
    """The arrays of a call on rows of `num_slots` slots."""

    arrays: Union[NumpyArrays, TorchArrays]
    num_slots: int
    distinct: bool = False  # whether repeated slots are errors on the CPU

    def read_slots(
        self, slots: Optional[Any]
    ) -> tuple[int, Optional[_abi.Slots], list[Any]]:
        """The number of rows of a call, the struct of its slots, and the arrays it uses."""
        if slots is None:
            return self.num_slots, None, []
        batch = get_length(slots)
        if batch is None or batch > self.num_slots:
            raise ValueError(f"slots: expected a list of at most {self.num_slots} slots")
        of_row, stride = read_row_integers("slots", slots, batch, np.int32, self.arrays)
        if stride == _abi.SAME and batch != 1:
            raise ValueError(f"slots: expected the shape ({batch},), one slot for each row")
        if self.distinct and self.arrays.name == "cpu":
            check_call_slots(slots, self.num_slots, None)
        return batch, _abi.Slots(address_of(of_row), self.num_slots), [of_row]


def call_start(
    call: Any, struct: Any, shape: SlotRows, prompts: Any, outputs: Any, slots: Any
) -> None:
    """Call gumbel_history_start() or gumbel_recent_start()."""
    arrays = shape.arrays
    batch, places, held = shape.read_slots(slots)
    lists = []
    for name, value in (("prompts", prompts), ("outputs", outputs)):
        if value is None:
            lists.append(_abi.TokenLists())
            continue
        found, arrays_held = read_token_lists(name, value, batch, arrays)
        lists.append(found)
        held += arrays_held
    error = _abi.Error()
    status = call(arrays.device, arrays.stream, struct, batch, places, *lists, error)
    _abi.check_status(status, error)


def call_update(
    call: Any, struct: Any, shape: SlotRows, tokens: Any, counts: Any, slots: Any
) -> None:
    """Call gumbel_history_update() or gumbel_recent_append()."""
    arrays = shape.arrays
    batch, places, held = shape.read_slots(slots)
    found = read_row_tokens("tokens", tokens, ((batch,), (batch, None)), arrays)
    width = 1 if len(found.shape) == 1 else found.shape[1]
    if counts is None and width != 1:
        counts = np.full(batch, width, np.int32)
    more = None
    if counts is not None:
        more, stride = read_row_integers("counts", counts, batch, np.int32, arrays)
        if stride == _abi.SAME and batch != 1:
            raise ValueError(f"counts: expected the shape ({batch},), one for each row")
    held += [found, more]
    error, where = _abi.Error(), (arrays.device, arrays.stream)
    added = (address_of(found), width, address_of(more))
    _abi.check_status(call(*where, struct, batch, places, *added, error), error)
