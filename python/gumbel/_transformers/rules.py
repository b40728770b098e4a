# SPDX-License-Identifier: Apache-2.0
"""Converts logits processors of transformers to parameters of the library."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

import torch
from transformers.generation import logits_process
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)

from .._calls import sample_calls as _sampling


@functools.cache
def _supports_programs(device: torch.device) -> bool:
    """Whether the library draws by an order of more rules on a device; not all GPUs support it."""
    try:
        _sampling.sample_logits(
            torch.zeros(1, 8, device=device), order="hf", typical_p=0.5, seed=0, logprobs=None
        )
    except (AssertionError, RuntimeError):  # torch raises AssertionError without CUDA
        return False
    return True


@dataclass
class Rules:
    """The library's parameters for a list of logits processors."""

    programs: bool = True  # whether the device supports orders of more rules
    truncation: dict[str, Any] = field(default_factory=dict)
    repetition: float = 1.0
    suppressed: list[int] = field(default_factory=list)
    min_length: int = 0  # in tokens; the EOS tokens `end_tokens` are banned in shorter texts
    end_tokens: list[int] = field(default_factory=list)
    ngram_size: int = 0  # n-grams of this size occur once
    bad_words: list[list[int]] = field(default_factory=list)

    def add_processor(self, processor: Any) -> bool:
        """Add a processor's parameters; returns False if the library cannot apply the processor."""
        reader = _READERS.get(type(processor))
        return reader is not None and reader(self, processor)

    def library_arguments(self, greedy: bool) -> dict[str, Any]:
        """The keyword arguments for temperature and truncation of a call of the library."""
        return {"temperature": 0.0} if greedy else {"order": "hf", **self.truncation}

    def has_logit_edits(self) -> bool:
        """Whether a penalty, banned tokens or a minimum length change logits."""
        edits = (self.repetition != 1, self.suppressed, self.end_tokens, self.has_lists())
        return any(map(bool, edits))

    def has_lists(self) -> bool:
        """Whether the tokens of a text determine which tokens are banned next."""
        return bool(self.ngram_size or self.bad_words)

    def count_banned(self, length: int) -> int:
        """The largest number of tokens that has_lists() bans after a text of this length."""
        return len(self.bad_words) + (length if self.ngram_size else 0)


def _read_temperature(rules: Rules, processor: Any) -> bool:
    if rules.truncation:  # the library applies the temperature first
        return False
    rules.truncation["temperature"] = float(processor.temperature)
    return True


# Parameters of the order that the library calls "hf", in their order.
_HF_ORDER = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta")
_OF_PROGRAMS = ("typical_p", "epsilon", "eta")


def _make_truncation_reader(name: str, attribute: str = "") -> Callable[[Rules, Any], bool]:
    """A reader of truncation `name`; only parameters that _HF_ORDER has before it may be set."""
    predecessors = _HF_ORDER[: _HF_ORDER.index(name)]

    def read_truncation(rules: Rules, processor: Any) -> bool:
        kept = getattr(processor, "min_tokens_to_keep", 1)
        if set(rules.truncation) - set(predecessors) or kept != 1:
            return False
        if name in _OF_PROGRAMS and not rules.programs:
            return False
        value = getattr(processor, attribute or name)
        rules.truncation[name] = float(value) if name in _OF_PROGRAMS else value
        return True

    return read_truncation


def _read_repetition(rules: Rules, processor: Any) -> bool:
    if rules.truncation or rules.repetition != 1 or processor.prompt_ignore_length:
        return False
    rules.repetition = float(processor.penalty)
    return True


def _read_suppressed(rules: Rules, processor: Any) -> bool:
    rules.suppressed += processor.suppress_tokens.tolist()
    return not rules.truncation


def _read_min_length(rules: Rules, processor: Any) -> bool:
    """Read a minimum length, of the whole text or of its new tokens only."""
    if hasattr(processor, "min_new_tokens"):
        min_length = processor.prompt_length_to_skip + processor.min_new_tokens
    else:
        min_length = processor.min_length
    end_tokens = processor.eos_token_id.tolist()
    if rules.truncation or (rules.end_tokens and rules.end_tokens != end_tokens):
        return False
    rules.min_length, rules.end_tokens = max(rules.min_length, min_length), end_tokens
    return True


def _read_ngrams(rules: Rules, processor: Any) -> bool:
    if rules.truncation or rules.ngram_size:
        return False
    rules.ngram_size = processor.ngram_size
    return True


def _read_bad_words(rules: Rules, processor: Any) -> bool:
    rules.bad_words += map(list, processor.sequence_bias)
    return not rules.truncation


# Each reader adds its processor's parameters to `rules`, and returns False if the library cannot
# apply the processor after those already added. generate() applies temperature and truncations in
# the order that the library calls "hf".
_READERS: dict[type, Callable[[Rules, Any], bool]] = {
    logits_process.TemperatureLogitsWarper: _read_temperature,
    logits_process.TopKLogitsWarper: _make_truncation_reader("top_k"),
    logits_process.TopPLogitsWarper: _make_truncation_reader("top_p"),
    # Of continuous batching: a request may override the value; the attribute is the default.
    ContinuousBatchingTemperatureLogitsWarper: _read_temperature,
    ContinuousBatchingTopKLogitsWarper: _make_truncation_reader("top_k"),
    ContinuousBatchingTopPLogitsWarper: _make_truncation_reader("top_p"),
    logits_process.MinPLogitsWarper: _make_truncation_reader("min_p"),
    logits_process.TypicalLogitsWarper: _make_truncation_reader("typical_p", "mass"),
    logits_process.EpsilonLogitsWarper: _make_truncation_reader("epsilon"),
    logits_process.EtaLogitsWarper: _make_truncation_reader("eta", "epsilon"),
    logits_process.RepetitionPenaltyLogitsProcessor: _read_repetition,
    logits_process.SuppressTokensLogitsProcessor: _read_suppressed,
    logits_process.NoRepeatNGramLogitsProcessor: _read_ngrams,
    logits_process.NoBadWordsLogitsProcessor: _read_bad_words,
    logits_process.MinLengthLogitsProcessor: _read_min_length,
    logits_process.MinNewTokensLengthLogitsProcessor: _read_min_length,
}


def read_rules(processors: Sequence[Any], device: torch.device) -> Optional[Rules]:
    """The parameters of all these processors; None if the library cannot apply one of them."""
    rules = Rules(programs=_supports_programs(device))
    return rules if all(rules.add_processor(processor) for processor in processors) else None
