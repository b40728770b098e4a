# SPDX-License-Identifier: Apache-2.0
"""What a SamplingMetadata of the V1 runner asks for, in the library's terms."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Optional

import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

from . import masks
from .drawer import TOP_MOST, Asks, Likeliest
from .groups import generator_of

_SEEDS = -(2**63), 2**63 - 1
FLOAT32_MOST = float(torch.finfo(torch.float32).max)


@dataclass
class Step:
    """A step of the V1 runner.

    runner       the GPUModelRunner, whose batch has the prompts.
    drafts       int [B]: drafted tokens of each request; None: no drafts are verified.
    """

    runner: Any
    drafts: Optional[list[int]] = None

    def positions(self, requests: int) -> torch.Tensor:
        """int64 [B]: where the token that each request is drawn behind first stands."""
        last: torch.Tensor = self.runner.seq_lens[:requests].long() - 1
        if self.drafts is not None:
            last -= async_tensor_h2d(self.drafts, device=last.device, dtype=torch.int64)
        return last


def rows_of(metadata: Any, step: Step, requests: int) -> dict[str, torch.Tensor]:
    """Seeds, positions, temperatures and cuts of the requests; greedy ones have no others."""
    if metadata.all_greedy:
        return {"temperature": torch.zeros(requests, device=step.runner.seq_lens.device)}
    positions = step.positions(requests)
    seeds = _seeds(metadata, requests, positions.device, generator_of(step.runner))
    rows = {"seed": seeds, "position": positions}
    rows["temperature"] = metadata.temperature
    if metadata.top_k is not None:
        rows["top_k"] = metadata.top_k
    if metadata.top_p is not None:
        rows["top_p"] = metadata.top_p
    return rows


def _seeds(
    metadata: Any, requests: int, device: Any, generator: Optional[torch.Generator]
) -> torch.Tensor:
    """Seeds of the requests; the generator, None being torch's that vLLM seeds, has the others'.

    A sampling metadata stands for one batch of requests, so that it keeps what it has.
    """
    given: Any = getattr(metadata, "_gumbel_seeds", None)
    if given is None:
        seeds = [0] * requests
        for row, generator in metadata.generators.items():
            if row < requests:
                seed = generator.initial_seed() & (2**64 - 1)
                seeds[row] = seed - (seed >> 63 << 64)
        missing = [row not in metadata.generators for row in range(requests)]
        given = torch.tensor(seeds, device=device), torch.tensor(missing, device=device)
        given += (any(missing),)
        metadata._gumbel_seeds = given
    found: torch.Tensor
    found, absent, some = given
    if some:
        drawn = torch.randint(*_SEEDS, (requests,), generator=generator)
        drawn = drawn.to(device, non_blocking=True)
        found = torch.where(absent, drawn, found)
    return found


def asks_of(metadata: Any, step: Step, requests: int) -> Optional[Asks]:
    """All that the requests ask for; None where the library has not all of it."""
    holder = metadata.thinking_budget_state_holder
    if holder is not None and holder.has_tracked_requests():
        return None
    known = getattr(metadata, "_gumbel_greedy", None)
    if known is not None and known[0] == requests:
        found: Asks = known[1]
        return found
    rows = rows_of(metadata, step, requests)
    more: dict[str, Any] = {}
    banned: dict[int, list[int]] = defaultdict(list)
    for processor in metadata.logitsprocs.all:
        if type(processor) is MinPLogitsProcessor:
            if processor.min_p_count:
                rows["min_p"] = processor.min_p.view(-1)
        elif type(processor) is LogitBiasLogitsProcessor:
            if not all(map(can_bias, processor.biases.values())):
                return None
            if processor.biases:
                more["logit_bias"] = [processor.biases.get(b, {}) for b in range(requests)]
        elif type(processor) is MinTokensLogitsProcessor:
            if not _ban_ends(processor, step, banned):
                return None
        else:
            return None
    if metadata.bad_words_token_ids:
        if step.drafts is not None:  # what is banned depends on the draft before it
            return None
        for row, words in metadata.bad_words_token_ids.items():
            banned[row] += _ends(words, metadata.output_token_ids[row])
    if any(banned.values()):
        more["banned"] = [banned.get(row, []) for row in range(requests)]
    if not metadata.no_penalties:
        if not can_penalise(step.runner.input_batch, requests):
            return None
        more.update(_penalties(metadata, step, requests))
    asks = Asks(rows, more, _allowed(metadata, step), settled=metadata)
    # What greedy requests ask for is the same from step to step, but for what their texts ban.
    if metadata.all_greedy and not (asks.edit_logits() or metadata.bad_words_token_ids):
        metadata._gumbel_greedy = requests, asks
    return asks


def can_bias(biases: dict[int, float]) -> bool:
    """Whether the library takes these biases; the logits of others are NaN or +inf in vLLM."""
    return all(value <= FLOAT32_MOST for value in biases.values())


def can_penalise(batch: Any, requests: int) -> bool:
    """Whether the library takes the repetition penalties, which vLLM rounds to float32."""
    penalties = batch.repetition_penalties_cpu[:requests]
    return bool(((penalties > 0) & (penalties <= FLOAT32_MOST)).all())


def _ban_ends(processor: Any, step: Step, banned: dict[int, list[int]]) -> bool:
    """Ban the ends of texts that are too short; False where the library cannot say it."""
    for row, (_, _, ends, structured) in processor.min_toks.items():
        if structured or step.drafts is not None:  # a grammar may have nothing but an end
            return False
        banned[row] += ends
    return True


def _ends(words: list[list[int]], text: list[int]) -> list[int]:
    """The last tokens of those words that a text is about to end with."""
    return [
        word[-1]
        for word in words
        if len(word) <= len(text) + 1 and word[:-1] == text[len(text) - len(word) + 1 :]
    ]


def _penalties(metadata: Any, step: Step, requests: int) -> dict[str, Any]:
    batch = step.runner.input_batch
    lengths = batch.num_prompt_tokens[:requests]
    texts = [[t for t in text if t >= 0] for text in metadata.output_token_ids[:requests]]
    return {
        "repetition_penalty": metadata.repetition_penalties,
        "frequency_penalty": metadata.frequency_penalties,
        "presence_penalty": metadata.presence_penalties,
        "prompt_tokens": [batch.token_ids_cpu[b, :n] for b, n in enumerate(lengths)],
        "output_tokens": texts,
    }


def _allowed(metadata: Any, step: Step) -> Optional[torch.Tensor]:
    forbidden = metadata.allowed_token_ids_mask
    if forbidden is None:
        return None
    mask = masks.pack(~forbidden)
    if step.drafts is not None:
        rows = len(step.drafts) + sum(step.drafts)
        repeats = async_tensor_h2d(step.drafts, device=mask.device, dtype=torch.int64) + 1
        mask = mask.repeat_interleave(repeats, 0, output_size=rows)
    return mask


def likeliest_of(metadata: Any, mode: str) -> tuple[bool, Optional[Likeliest]]:
    """Whether the library gives the log-probabilities asked for, and what they are."""
    if metadata.logprob_token_ids:
        return False, None
    count = metadata.max_num_logprobs
    if count is None:
        return True, None
    served = 0 <= count <= TOP_MOST and mode in ("raw_logprobs", "processed_logprobs")
    return served, Likeliest(count, mode == "raw_logprobs") if served else None
