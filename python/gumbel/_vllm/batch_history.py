# SPDX-License-Identifier: Apache-2.0
"""Texts of the V1 runner's requests, kept where the draws are: the tokens that penalties count.

A step reads only the tokens by which the texts have grown since the step before, so its cost does
not depend on the length of the texts. A row that the step before did not read is read again in
full, as vLLM may have withdrawn tokens of its text and appended others. From one step to the next,
vLLM appends no token after it has withdrawn one, so that a text whose tokens changed is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Optional

import numpy as np
import torch

from .._inputs.history import History


def _known_length(text: list[int]) -> int:
    """The number of tokens of a text before placeholders (-1), which vLLM appends and fills."""
    length = len(text)
    while length and text[length - 1] < 0:
        length -= 1
    return length


class BatchTexts:
    """The texts of some rows of a runner's input batch, as a History or a Recent keeps them.

    rows         of the batch.
    start        called with (prompts, outputs, slots=rows) for rows that are read in full.
    append       called with (tokens, slots=rows) for rows that have grown.

    Other rows may hold anything.
    """

    def __init__(
        self, rows: int, start: Callable[..., None], append: Callable[..., None]
    ) -> None:
        self._start, self._append = start, append
        # Of each row: the text that the last step read, its prompt's length, and the length of the
        # text that was read. vLLM keeps the list of a text as long as its request, while clients
        # may use a request's id again.
        self._texts: list[Optional[list[int]]] = [None] * rows
        self._prompts = [0] * rows
        self._read = [0] * rows
        self._is_current = False  # whether update() was called in this step

    def update(self, batch: Any, texts: list[list[int]], tracked: Container[str]) -> None:
        """Read the new tokens of these texts, one for each row of `batch`.

        tracked      the ids of the requests that are read.
        """
        prompts = batch.num_prompt_tokens[: len(texts)].tolist()
        before, self._texts = self._texts, [None] * len(self._texts)
        self._is_current = True
        changed, grown = [], []
        for row, text in enumerate(texts):
            if batch.req_ids[row] not in tracked:
                continue
            length = _known_length(text)
            known = before[row] is text and self._prompts[row] == prompts[row]
            if not known or length < self._read[row]:
                changed.append(row)
            elif length > self._read[row]:
                grown.append((row, text[self._read[row] : length]))
            self._texts[row], self._prompts[row] = text, prompts[row]
            self._read[row] = length
        if changed:
            self._start(
                [batch.token_ids_cpu[row, : prompts[row]] for row in changed],
                [np.array(texts[row][: self._read[row]], np.int32) for row in changed],
                slots=np.array(changed, np.int32),
            )
        if grown:
            self._append_all(grown)

    def end_step(self) -> None:
        """Read all rows again at the next step if this one has not read its texts."""
        if not self._is_current:
            self._texts = [None] * len(self._texts)
        self._is_current = False

    def _append_all(self, grown: list[tuple[int, list[int]]]) -> None:
        """Append further tokens [(row, tokens)]."""
        tokens = np.full((len(grown), max(len(more) for _, more in grown)), -1, np.int32)
        for place, (_, more) in enumerate(grown):
            tokens[place, : len(more)] = more
        self._append(tokens, slots=np.array([row for row, _ in grown], np.int32))


class BatchHistory:
    """The history of a runner's input batch: row b holds the request in row b of the batch.

    Only rows of requests with penalties are maintained; other rows may hold anything.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        history = self.history = History(rows, vocab_size, like=torch.empty(0, device=device))
        self._texts = BatchTexts(
            rows,
            lambda *texts, slots: history.start(*texts, slots=slots),
            lambda tokens, slots: history.update(tokens, slots=slots),
        )

    def update(self, batch: Any, texts: list[list[int]]) -> History:
        """Count the new tokens of these texts, one for each row of `batch`; return the history."""
        penalised = (
            batch.repetition_penalties_reqs
            | batch.frequency_penalties_reqs
            | batch.presence_penalties_reqs
        )
        self._texts.update(batch, texts, penalised)
        return self.history

    def end_step(self) -> None:
        """Note that a step has drawn its tokens."""
        self._texts.end_step()


def history_of(runner: Any, texts: list[list[int]]) -> History:
    """The up-to-date history of a runner's input batch; `texts` are its output tokens."""
    batch = runner.input_batch
    found: Optional[BatchHistory] = getattr(batch, "_gumbel_history", None)
    if found is None:
        found = BatchHistory(batch.max_num_reqs, batch.vocab_size, runner.seq_lens.device)
        batch._gumbel_history = found
        end_steps_of(batch, found)
    return found.update(batch, texts)


def end_steps_of(batch: Any, keeper: Any) -> None:
    """Have end_step() call the end_step() of an object that keeps texts of an input batch."""
    batch._gumbel_keepers = [*getattr(batch, "_gumbel_keepers", ()), keeper]


def end_step(runner: Any) -> None:
    """Note that a runner's step has drawn its tokens, with its texts or without."""
    for keeper in getattr(runner.input_batch, "_gumbel_keepers", ()):
        keeper.end_step()
