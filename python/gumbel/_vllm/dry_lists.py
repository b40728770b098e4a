# SPDX-License-Identifier: Apache-2.0
"""Token lists of requests with DRY, made before each draw from the texts of their rows."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch

from .._inputs.recent import Recent
from .._inputs.row_lists import RowLists
from .._inputs.sequences import SequenceArrays
from .batch_history import BatchTexts, end_steps_of
from .dry import NUMBERS, Dry

CAPACITY = 2048  # tokens that a row's list can have: the library's largest
_FLOATS = ("dry_multiplier", "dry_base")


def make_dry_lists(
    recent: Recent, dry: dict[int, Dry], entries: list[int], slots: torch.Tensor
) -> RowLists:
    """The lists of a batch, which RowLists.update() makes anew at later steps.

    dry          of the slots of `recent` that have it.
    entries      the slot of each row; `slots` has the same, int32 on the device of `recent`.
    """
    numbers = {}
    for name, off in NUMBERS.items():
        column = np.full(recent.num_slots, off, np.float32 if name in _FLOATS else np.int32)
        for slot, each in dry.items():
            column[slot] = each.numbers[name]
        numbers[name] = torch.from_numpy(column).to(slots.device)
    breakers = _join_breakers([dry.get(slot) for slot in entries])
    return recent.make_lists(**numbers, dry_breakers=breakers, slots=slots, capacity=CAPACITY)


def _join_breakers(rows: list[Optional[Dry]]) -> Optional[SequenceArrays]:
    """The breakers of all rows; None: there are none."""
    known = [row.breakers for row in rows if row is not None]
    if not any(len(each.ids) for each in known):
        return None
    if all(_are_equal(known[0], each) for each in known):
        return known[0]
    counts = [0 if row is None else len(row.breakers.offsets) - 1 for row in rows]
    lengths = np.concatenate([np.diff(each.offsets) for each in known])
    return SequenceArrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([each.ids for each in known]),
        np.cumsum([0, *counts], dtype=np.int64),
    )


def _are_equal(one: SequenceArrays, other: SequenceArrays) -> bool:
    return bool(np.array_equal(one.offsets, other.offsets) and np.array_equal(one.ids, other.ids))


# ------------------------------------------------------------------------------- V1 runner ----


class BatchRings:
    """The texts of a V1 runner's rows with DRY, in rings that the device reads."""

    def __init__(self, runner: Any) -> None:
        batch, device = runner.input_batch, runner.seq_lens.device
        like = torch.empty(0, device=device)
        rows = batch.max_num_reqs
        recent = self.recent = Recent(rows, runner.max_model_len, like=like)
        self._slots = torch.arange(rows, dtype=torch.int32, device=device)
        self._texts = BatchTexts(
            rows,
            lambda *texts, slots: recent.start(*texts, slots=slots),
            lambda tokens, slots: recent.append(tokens, slots=slots),
        )

    def make_lists(self, dry: dict[int, Dry], requests: int) -> RowLists:
        """The lists of a batch, to be updated at each step."""
        return make_dry_lists(self.recent, dry, list(range(requests)), self._slots[:requests])

    def update(self, batch: Any, rows: dict[int, Dry]) -> None:
        """Read the new tokens of these rows of the input batch."""
        texts = batch.req_output_token_ids[: batch.num_reqs]
        self._texts.update(batch, texts, {batch.req_ids[row] for row in rows})

    def end_step(self) -> None:
        """Note that a step has drawn its tokens."""
        self._texts.end_step()


def rings_of(runner: Any, metadata: Any) -> BatchRings:
    """The rings of a V1 runner.

    From the first call on, vLLM puts the tokens that it has drawn into the lists of its requests
    before each draw, also if it schedules steps ahead.
    """
    batch = runner.input_batch
    found: Optional[BatchRings] = getattr(batch, "_gumbel_rings", None)
    if found is None:
        found = batch._gumbel_rings = BatchRings(runner)
        end_steps_of(batch, found)
        batch.logitsprocs_need_output_token_ids = True
        metadata.output_token_ids = batch.req_output_token_ids
    return found


# ------------------------------------------------------------------------------- V2 runner ----


class SlotRings:
    """The texts of a V2 runner's slots: vLLM's own tokens, up to the last one of each draw."""

    def __init__(self, states: Any) -> None:
        """`states` is the runner's RequestState."""
        tokens = states.all_token_ids.gpu
        self._count = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
        self.recent = Recent.of_arrays(tokens, self._count)

    def update(self, index: torch.Tensor, positions: torch.Tensor) -> None:
        """The text of slot index[row] now ends at token positions[row], which the draw follows."""
        self._count.index_copy_(0, index, positions + 1)
