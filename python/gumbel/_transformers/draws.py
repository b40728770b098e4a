# SPDX-License-Identifier: Apache-2.0
"""Draws from the output of a model's forward: hidden states, or processed logits."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .. import _abi
from .._calls import drafts as _drafts, prepared as _prepared, sample_calls as _sampling
from .._inputs.history import History
from .._inputs.recent import Recent
from .._inputs.row_lists import RowLists
from .heads import Head, get_head
from .rules import Rules, read_rules
from .texts import Texts


class FusedDraw:
    """Draws from hidden states at each step, without forming logits.

    screen       whether to draw by a screen of the head.
    longest      largest length of a text, if the rules have lists.
    """

    def __init__(
        self,
        head: Head,
        rules: Rules,
        greedy: bool,
        texts: Texts,
        input_ids: torch.Tensor,
        screen: bool,
        longest: int = 0,
    ) -> None:
        self.head, self.rules, self.texts = head, rules, texts
        self.weights = head.weights(screen)
        self._build_masks(input_ids.device)
        self.history: Optional[History] = None
        self.parameters = rules.library_arguments(greedy)
        if rules.repetition != 1:
            self.history = History(len(input_ids), len(head.weight), like=input_ids)
            self.parameters["repetition_penalty"] = rules.repetition
        self.recent: Optional[Recent] = None
        self.lists: Optional[RowLists] = None
        if rules.has_lists():
            capacity = max(longest, *map(len, rules.bad_words), 1)
            self.recent = Recent(len(input_ids), capacity, like=input_ids)
        self.reset_history(input_ids)
        if self.recent is not None:
            self.lists = self.recent.make_lists(
                ngram_size=rules.ngram_size,
                bad_words=rules.bad_words or None,
                capacity=rules.count_banned(longest),
            )
            self.parameters["lists"] = self.lists
        self.call: Optional[_prepared.PreparedCall] = None

    def _build_masks(self, device: Any) -> None:
        """Build `short_mask`, for texts below the minimum length, and `full_mask`, for others."""
        self.full_mask = self.mask = self.short_mask = None
        if not self.rules.suppressed and not self.rules.end_tokens:
            return
        words = (len(self.head.weight) + 31) // 32
        full = torch.full((words,), -1, dtype=torch.int32, device=device)
        self.full_mask = _clear_tokens(full, self.rules.suppressed)
        self.short_mask = _clear_tokens(self.full_mask, self.rules.end_tokens)
        self.mask, self.is_short = self.full_mask.clone(), False

    def reset_history(self, input_ids: torch.Tensor) -> None:
        """Reset the history of the penalties, and recent tokens, to these texts [B, L]."""
        for tokens in (self.history, self.recent):
            if tokens is not None:
                tokens.start(self.texts.remove_padding(input_ids))

    def select_rows(self, out: Any, count: int = 1) -> torch.Tensor:
        """The last rows of a forward's output: [B, D], or [count, D] for a single text."""
        hidden: torch.Tensor = out.last_hidden_state
        return (hidden[:, -1] if count == 1 else hidden[0, -count:]).contiguous()

    def __call__(self, rows: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """The next tokens [B] of texts [B, L]."""
        is_short = input_ids.shape[1] < self.rules.min_length
        if self.mask is not None and is_short != self.is_short:
            self.mask.copy_(self.short_mask if is_short else self.full_mask)
            self.is_short = is_short
        if self.lists is not None:
            self.lists.update()
        if self.call is None:
            self.call = self._prepare_call(rows)
        drawn = self.call(rows).tokens[:, 0].long()
        if self.history is not None:
            self.history.update(drawn)
        if self.recent is not None:
            self.recent.append(drawn.int())
        return drawn

    def _prepare_call(self, rows: torch.Tensor) -> _prepared.PreparedCall:
        return _prepared.prepare_sample(
            rows,
            self.weights,
            **self.texts.noise_arguments(),
            mask=self.mask,
            history=self.history,
            logprobs=None,
            **self.head.arguments(),
            **self.parameters,
        )

    def verify(
        self, rows: torch.Tensor, candidates: torch.Tensor, limit: int, stop: list[int]
    ) -> _drafts.VerifyOutput:
        """Verify the drafts in `candidates` [1, L + n - 1]; row 0 is the row after token L."""
        count = len(rows)
        found = _drafts.verify(
            rows,
            self.weights,
            candidates[:, -count:].int().contiguous(),
            limit=[limit],
            stop=stop or None,
            **self.texts.noise_arguments(),
            mask=self._row_masks(candidates.shape[1] - count + 1, count),
            history=self.history,
            logprobs=None,
            **self.head.arguments(),
            **self.parameters,
        )
        if self.history is not None:
            self.history.update(found.tokens, counts=found.emitted)
        return found

    def _row_masks(self, length: int, count: int) -> Optional[torch.Tensor]:
        if self.full_mask is None or length >= self.rules.min_length:
            return self.full_mask
        masks = self.full_mask.expand(count, -1).clone()
        masks[: self.rules.min_length - length] = self.short_mask
        return masks


class ProcessedDraw:
    """Draws from logits after the logits processors of transformers.

    kept         lists that collect the "scores" and "logits" to return. None: not requested.
    """

    def __init__(
        self, processors: Any, greedy: bool, texts: Texts, kept: Optional[dict[str, list[Any]]]
    ) -> None:
        self.processors, self.texts, self.kept = processors, texts, kept
        self.temperature = 0.0 if greedy else 1.0

    def reset_history(self, input_ids: torch.Tensor) -> None:
        """Do nothing: processors keep no state from step to step."""

    def select_rows(self, out: Any, count: int = 1) -> torch.Tensor:
        """The last rows of a forward's output: [B, V], or [count, V] for a single text."""
        logits: torch.Tensor = out.logits
        return logits[:, -1] if count == 1 else logits[0, -count:]

    def _process_logits(self, rows: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        raw = rows.to(copy=True, dtype=torch.float32, device=input_ids.device)
        scores: torch.Tensor = self.processors(input_ids, raw)
        if self.kept is not None:
            self.kept["scores"].append(scores)
            self.kept["logits"].append(raw)
        return scores.contiguous()

    def __call__(self, rows: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """The next tokens [B] of texts [B, L]."""
        drawn = _sampling.sample_logits(
            self._process_logits(rows, input_ids),
            temperature=self.temperature,
            **self.texts.noise_arguments(),
            logprobs=None,
        )
        return drawn.tokens[:, 0].long()

    def verify(
        self, rows: torch.Tensor, candidates: torch.Tensor, limit: int, stop: list[int]
    ) -> _drafts.VerifyOutput:
        """Verify the drafts in `candidates` [1, L + n - 1]; row 0 is the row after token L."""
        count = len(rows)
        length = candidates.shape[1] - count + 1
        before = 0 if self.kept is None else len(self.kept["scores"])
        scores = [
            self._process_logits(rows[j : j + 1], candidates[:, : length + j]) for j in range(count)
        ]
        found = _drafts.verify_logits(
            torch.cat(scores),
            candidates[:, -count:].int().contiguous(),
            limit=[limit],
            stop=stop or None,
            temperature=self.temperature,
            **self.texts.noise_arguments(),
            logprobs=None,
        )
        if self.kept is not None:
            for of in self.kept.values():
                del of[before + int(found.emitted) :]
        return found


Draw = Union[FusedDraw, ProcessedDraw]


def make_draw(
    model: Any,
    processors: Any,
    greedy: bool,
    texts: Texts,
    input_ids: torch.Tensor,
    kept: Optional[dict[str, list[Any]]] = None,
    screen: bool = False,
    longest: Optional[int] = None,
) -> tuple[Optional[Head], Draw]:
    """(head, FusedDraw) if the library can apply head and processors; else (None, ProcessedDraw).

    kept         lists that collect the scores and logits that generate() returns, or None.
    longest      largest length of a text; None: of texts with drafts, or no limit.
    """
    rules = read_rules(processors, input_ids.device)
    head = None if rules is None or kept else get_head(model)
    if head is None or rules is None or not _has_room(rules, head, longest):
        return None, ProcessedDraw(processors, greedy, texts, kept)
    return head, FusedDraw(head, rules, greedy, texts, input_ids, screen, longest or 0)


def _has_room(rules: Rules, head: Head, longest: Optional[int]) -> bool:
    """Whether the library's lists have room for the tokens that the rules ban.

    Drafts would be verified by the lists of the text before them. transformers reports bad words
    beyond the vocabulary.
    """
    if not rules.has_lists():
        return True
    if longest is None or rules.count_banned(longest) > _abi.LIST_MAX:
        return False
    return all(token < len(head.weight) for word in rules.bad_words for token in word)


def _clear_tokens(mask: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """A copy of a mask [words] with the bits of these tokens cleared."""
    mask = mask.clone()
    words: dict[int, int] = {}
    for token in tokens:
        if 0 <= token < 32 * len(mask):
            words[token >> 5] = words.get(token >> 5, 0) | 1 << (token & 31)
    for word, bits in words.items():
        mask[word] &= ~(bits - (bits >> 31 << 32))
    return mask
