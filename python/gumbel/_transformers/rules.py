# SPDX-License-Identifier: Apache-2.0
"""Logits processors in the library's terms, as far as it has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

from transformers.generation import logits_process
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)


@dataclass
class Rules:
    """What logits processors ask for, in the library's terms."""

    truncation: dict[str, Any] = field(default_factory=dict)
    repetition: float = 1.0
    suppressed: list[int] = field(default_factory=list)
    least: int = 0  # length before which `early` may not be drawn
    early: list[int] = field(default_factory=list)

    def take(self, processor: Any) -> bool:
        """Whether one more processor can be served, which is then among the rules."""
        reader = _READERS.get(type(processor))
        return reader is not None and reader(self, processor)

    def parameters(self, greedy: bool) -> dict[str, Any]:
        """What a call of the library takes for the temperature and the cuts."""
        return {"temperature": 0.0} if greedy else {"order": "hf", **self.truncation}

    def edit_logits(self) -> bool:
        """Whether anything is asked for but a temperature and cuts."""
        return self.repetition != 1 or bool(self.suppressed) or bool(self.early)


def _temperature(rules: Rules, processor: Any) -> bool:
    if rules.truncation:  # behind a cut it would be another distribution
        return False
    rules.truncation["temperature"] = float(processor.temperature)
    return True


def _cut(name: str, *before: str) -> Callable[[Rules, Any], bool]:
    """A cut that may stand behind the temperature and those of `before`."""

    def read(rules: Rules, processor: Any) -> bool:
        value = getattr(processor, name)
        kept = getattr(processor, "min_tokens_to_keep", 1)
        if set(rules.truncation) - {"temperature", *before} or kept != 1:
            return False
        rules.truncation[name] = value
        return True

    return read


def _repetition(rules: Rules, processor: Any) -> bool:
    if rules.truncation or rules.repetition != 1 or processor.prompt_ignore_length:
        return False
    rules.repetition = float(processor.penalty)
    return True


def _suppress(rules: Rules, processor: Any) -> bool:
    rules.suppressed += processor.suppress_tokens.tolist()
    return not rules.truncation


def _least_length(rules: Rules, processor: Any) -> bool:
    """A length, of the whole text or behind the prompt, before which a text does not end."""
    if hasattr(processor, "min_new_tokens"):
        least = processor.prompt_length_to_skip + processor.min_new_tokens
    else:
        least = processor.min_length
    early = processor.eos_token_id.tolist()
    if rules.truncation or (rules.early and rules.early != early):
        return False
    rules.least, rules.early = max(rules.least, least), early
    return True


# Processors come in the order that generate() gives them, which is the library's "hf".
_READERS: dict[type, Callable[[Rules, Any], bool]] = {
    logits_process.TemperatureLogitsWarper: _temperature,
    logits_process.TopKLogitsWarper: _cut("top_k"),
    logits_process.TopPLogitsWarper: _cut("top_p", "top_k"),
    # The same, with a value a request; theirs is the default.
    ContinuousBatchingTemperatureLogitsWarper: _temperature,
    ContinuousBatchingTopKLogitsWarper: _cut("top_k"),
    ContinuousBatchingTopPLogitsWarper: _cut("top_p", "top_k"),
    logits_process.MinPLogitsWarper: _cut("min_p", "top_k", "top_p"),
    logits_process.RepetitionPenaltyLogitsProcessor: _repetition,
    logits_process.SuppressTokensLogitsProcessor: _suppress,
    logits_process.MinLengthLogitsProcessor: _least_length,
    logits_process.MinNewTokensLengthLogitsProcessor: _least_length,
}


def rules_of(processors: Sequence[Any]) -> Optional[Rules]:
    """What all these processors ask for; None where the library lacks one of it."""
    rules = Rules()
    return rules if all(rules.take(processor) for processor in processors) else None
