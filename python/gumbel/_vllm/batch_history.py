# SPDX-License-Identifier: Apache-2.0
"""Token histories of the V1 runner: the tokens that penalties count, kept where the draws are.

A step counts only the tokens by which the texts have grown since the step before, so its cost does
not depend on the length of the texts. A row that the step before did not count is read again in
full, as vLLM may have withdrawn tokens of its text and appended others. From one step to the next,
vLLM appends no token after it has withdrawn one, so that a text whose tokens changed is shorter.
"""

from __future__ import annotations

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


class BatchHistory:
    """The history of a runner's input batch: row b holds the request in row b of the batch.

    Only rows of requests with penalties are maintained; other rows may hold anything.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.history = History(rows, vocab_size, like=torch.empty(0, device=device))
        # Of each row: the text that the last step counted, its prompt's length, and the counted
        # length of the text. vLLM keeps the list of a text as long as its request, while clients
        # may use a request's id again.
        self._texts: list[Optional[list[int]]] = [None] * rows
        self._prompts = [0] * rows
        self._counted = [0] * rows
        self._is_counted = False  # whether update() was called in this step

    def update(self, batch: Any, texts: list[list[int]]) -> History:
        """Count the new tokens of these texts, one for each row of `batch`; return the history."""
        penalised = (
            batch.repetition_penalties_reqs
            | batch.frequency_penalties_reqs
            | batch.presence_penalties_reqs
        )
        prompts = batch.num_prompt_tokens[: len(texts)].tolist()
        before, self._texts = self._texts, [None] * len(self._texts)
        self._is_counted = True
        changed, grown = [], []
        for row, text in enumerate(texts):
            if batch.req_ids[row] not in penalised:
                continue
            length = _known_length(text)
            known = before[row] is text and self._prompts[row] == prompts[row]
            if not known or length < self._counted[row]:
                changed.append(row)
            elif length > self._counted[row]:
                grown.append((row, text[self._counted[row] : length]))
            self._texts[row], self._prompts[row] = text, prompts[row]
            self._counted[row] = length
        if changed:
            self.history.start(
                [batch.token_ids_cpu[row, : prompts[row]] for row in changed],
                [np.array(texts[row][: self._counted[row]], np.int32) for row in changed],
                slots=np.array(changed, np.int32),
            )
        if grown:
            self._count(grown)
        return self.history

    def end_step(self) -> None:
        """Read all rows again at the next step if this one has not counted its texts."""
        if not self._is_counted:
            self._texts = [None] * len(self._texts)
        self._is_counted = False

    def _count(self, grown: list[tuple[int, list[int]]]) -> None:
        """Count further tokens [(row, tokens)]."""
        tokens = np.full((len(grown), max(len(more) for _, more in grown)), -1, np.int32)
        for place, (_, more) in enumerate(grown):
            tokens[place, : len(more)] = more
        self.history.update(tokens, slots=np.array([row for row, _ in grown], np.int32))


def _known_history(batch: Any) -> Optional[BatchHistory]:
    return getattr(batch, "_gumbel_history", None)


def history_of(runner: Any, texts: list[list[int]]) -> History:
    """The up-to-date history of a runner's input batch; `texts` are its output tokens."""
    batch = runner.input_batch
    found = _known_history(batch)
    if found is None:
        found = BatchHistory(batch.max_num_reqs, batch.vocab_size, runner.seq_lens.device)
        batch._gumbel_history = found
    return found.update(batch, texts)


def end_step(runner: Any) -> None:
    """Note that a runner's step has drawn its tokens, with its history or without."""
    found = _known_history(runner.input_batch)
    if found is not None:
        found.end_step()
