# SPDX-License-Identifier: Apache-2.0
"""What penalties count, kept from one decode step to the next."""

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .arguments import INT32_MAX, read_gapless, read_row_integers, read_row_tokens, read_token_lists
from .arrays import NumpyArrays, TorchArrays, address, arrays_of
from .numbers import get_length, read_integer

_COUNTS = {16: np.uint16, 32: np.int32}


class History:
    """Prompts and outputs of rows, or of slots, as the penalties count them.

    >>> history = gumbel.History(num_slots=8, vocab_size=len(weight))
    >>> history.start([[1, 2], [3]], slots=[5, 0])
    >>> out = gumbel.sample(
    ...     hidden, weight, history=history, slots=[5, 0], num_slots=8, presence_penalty=0.5
    ... )
    >>> history.update(out.tokens, slots=[5, 0])

    num_slots    slots that it has; without slots row b is slot b.
    vocab_size   tokens below are counted.
    count_bits   of a token's count, 16 or 32; counts end at 65535 either way.
    like         an array of the kind and device that it shall serve: a torch tensor, or None for
                 NumPy arrays and tensors on the CPU.

    On CUDA start() and update() are queued on the current stream, and arrays that are tensors there
    are read when the stream gets there. Two calls must not change one history at a time.
    """

    prompt: NDArray[np.uint32]  #: [num_slots, ceil(vocab_size / 32)]: bit t & 31 of word t >> 5
    #: is set if t is in the prompt; torch tensors hold the same bits as int32
    output: NDArray[np.uint32]  #: the same of the output
    counts: NDArray[Any]  #: [num_slots, vocab_size]: how often each token is in the output; uint16,
    #: which torch tensors hold as int16, or int32

    def __init__(
        self, num_slots: int, vocab_size: int, *, count_bits: int = 16, like: Optional[Any] = None
    ) -> None:
        self.num_slots = read_integer("num_slots", num_slots, 1, INT32_MAX)
        self.vocab_size = read_integer("vocab_size", vocab_size, 1, 2**31)
        self.count_bits = read_integer("count_bits", count_bits, 16, 32)
        if self.count_bits not in _COUNTS:
            raise ValueError(f"count_bits: {self.count_bits} is neither 16 nor 32")
        arrays = arrays_of({"like": np.empty(0) if like is None else like}, None, None)
        self.device = arrays.name
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
        """The history that three arrays hold, which stay the caller's."""
        made = cls.__new__(cls)
        named = {"history_prompt": prompt, "history_output": output, "history_counts": counts}
        for name, array in named.items():
            if array is None:
                raise ValueError(f"{name}: a history has prompt, output and counts, all or none")
        found = {name: read_gapless(name, array) for name, array in named.items()}
        made.num_slots, made.vocab_size = found["history_counts"].shape
        made.count_bits = 8 * found["history_counts"].itemsize
        if made.count_bits not in _COUNTS:
            raise TypeError(f"history_counts: expected int16 or int32, got {counts.dtype}")
        words = (made.num_slots, (made.vocab_size + 31) // 32)
        for name in ("history_prompt", "history_output"):
            if found[name].shape != words or found[name].itemsize != 4:
                raise ValueError(f"{name}: expected int32 {words}, got {found[name].shape}")
        made.device = arrays_of(named, None, None).name
        made.prompt, made.output, made.counts = prompt, output, counts
        return made

    def start(
        self,
        prompts: Optional[Any] = None,
        outputs: Optional[Any] = None,
        *,
        slots: Optional[Any] = None,
    ) -> None:
        """Forget everything of `slots`, and count their prompts and outputs.

        prompts, outputs
                     token ids: one list for all, or a list of lists, one a row. None: none.
        slots        int32 [B]: the slots of these rows. None: row b is slot b, for all of them.
        """
        arrays, batch, places, held = self._rows(slots)
        lists = []
        for name, value in (("prompts", prompts), ("outputs", outputs)):
            if value is None:
                lists.append(_abi.TokenLists())
                continue
            made, arrays_held = read_token_lists(name, value, batch, arrays)
            lists.append(made)
            held += arrays_held
        error = _abi.Error()
        where = (arrays.device, arrays.stream)
        status = _abi.lib.gumbel_history_start(*where, self.struct(), batch, places, *lists, error)
        _abi.check(status, error)

    def update(
        self, tokens: Any, *, counts: Optional[Any] = None, slots: Optional[Any] = None
    ) -> None:
        """Count more tokens of output a row.

        tokens       int32 [B], or [B, W]; -1, and ids of vocab_size or more, are passed over.
        counts       [B], each at most W: how many tokens of each row, from its first on, as
                     verify() emits them. None: all W.
        slots        as in start(); each is that of one row at most.
        """
        arrays, batch, places, held = self._rows(slots)
        found = read_row_tokens("tokens", tokens, ((batch,), (batch, None)), arrays)
        width = 1 if len(found.shape) == 1 else found.shape[1]
        if counts is None and width != 1:
            counts = np.full(batch, width, np.int32)
        more = None
        if counts is not None:
            more, stride = read_row_integers("counts", counts, batch, np.int32, arrays)
            if stride == _abi.SAME and batch != 1:
                raise ValueError(f"counts: expected the shape ({batch},), one a row")
        if width == 0:
            return
        held += [found, more]
        error = _abi.Error()
        where = (arrays.device, arrays.stream)
        status = _abi.lib.gumbel_history_update(
            *where, self.struct(), batch, places, address(found), width, address(more), error
        )
        _abi.check(status, error)

    def struct(self) -> _abi.History:
        """The struct of the C ABI, which points to this history's arrays."""
        return _abi.History(
            vocab_size=self.vocab_size,
            prompt=address(self.prompt),
            output=address(self.output),
            counts=address(self.counts),
            count_bits=self.count_bits,
        )

    def _rows(
        self, slots: Optional[Any]
    ) -> tuple[Union[NumpyArrays, TorchArrays], int, Optional[_abi.Slots], list[Any]]:
        """A call's arrays, how many rows it has, where they lie, and what that points to."""
        arrays = arrays_of({"history": self.prompt}, None, None)
        if slots is None:
            return arrays, self.num_slots, None, []
        batch = get_length(slots)
        if batch is None or batch > self.num_slots:
            raise ValueError(f"slots: expected a list of {self.num_slots} slots at most")
        of_row, _ = read_row_integers("slots", slots, batch, np.int32, arrays)
        return arrays, batch, _abi.Slots(address(of_row), self.num_slots), [of_row]
