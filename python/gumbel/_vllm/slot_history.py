# SPDX-License-Identifier: Apache-2.0
"""The tokens that penalties count in the slots of the V2 runner, from vLLM's own counts.

vLLM keeps a mask of the prompt's tokens and a count of each output token for each slot. The library
also reads a mask of the output's tokens, which this module keeps: 1/32 of the size of the counts.

A count becomes smaller only when vLLM puts a request into a slot, also one that it resumes after a
preemption; it then calls the sampler's add_request(), which invalidates the slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.triton_utils import tl, triton

from .._inputs.history import History
from .masks import pack_mask

_SLOTS_AT_ONCE = 16  # slots whose counts are read at once: bounds the temporary memory


class SlotHistory:
    """The history of a V2 runner's slots, over the arrays of vLLM's PenaltiesState."""

    def __init__(self, penalties: Any) -> None:
        self._counts = penalties.output_bin_counts
        self._output = torch.zeros_like(penalties.prompt_bin_mask)
        self.history = History.of_arrays(penalties.prompt_bin_mask, self._output, self._counts)
        self._unread = np.ones(len(self._counts), bool)
        self._read: Any = None  # the slots of the latest update(), if all are still read
        # Arguments of the kernel that are equal in all steps.
        self._arrays = (
            self._output,
            self._output.stride(0),
            self._counts,
            self._counts.stride(0),
            self._counts.shape[1],
        )

    def invalidate(self, slots: Any) -> None:
        """Read the counts of these slots again at their next step."""
        self._unread[slots], self._read = True, None

    def update(self, batch: Any, penalised: Any) -> None:
        """Add the last token of each request of a batch of one row a request.

        penalised    int64 [count]: the slots of the batch whose requests have penalties; others are
                     not read. An array that is passed again must be unchanged.

        A request's last token is the input of its row. vLLM has counted it if it is an output.
        """
        if penalised is not self._read:
            self._read_counts(penalised[self._unread[penalised]])
            self._read = penalised
        _add_inputs[(batch.num_reqs,)](
            *self._arrays, batch.idx_mapping, batch.input_ids, batch.logits_indices
        )

    def _read_counts(self, unread: Any) -> None:
        """Build the masks of these slots from vLLM's counts."""
        for first in range(0, len(unread), _SLOTS_AT_ONCE):
            slots = torch.from_numpy(unread[first : first + _SLOTS_AT_ONCE])
            slots = slots.to(self._counts.device, non_blocking=True)
            self._output[slots] = pack_mask(self._counts[slots] > 0)
        self._unread[unread] = False


@triton.jit
def _add_inputs(  # type: ignore[no-untyped-def]
    output, output_stride, counts, counts_stride, vocab, slots, input_ids, logits_indices
):
    """Set the bit of a row's input token in its slot's mask, if the token has a count."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.load(input_ids + tl.load(logits_indices + row))
    known = (token >= 0) & (token < vocab)
    if tl.load(counts + slot * counts_stride + token, mask=known, other=0) > 0:
        word = output + slot * output_stride + token // 32
        tl.store(word, tl.load(word) | (1 << (token % 32)))
