# SPDX-License-Identifier: Apache-2.0
"""Draw parameters from the SamplingMetadata of the V1 runner."""

from __future__ import annotations

import functools
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
from .batch_history import history_of
from .draw_parameters import DrawParameters, LogprobsRequest
from .dry_lists import rings_of
from .drawer import TOP_MAX
from .groups import seed_generator
from .request_rules import BatchRules, read

_SEEDS = -(2**63), 2**63 - 1
FLOAT32_MAX = float(torch.finfo(torch.float32).max)


@functools.cache
def _int64(value: int, device: torch.device) -> torch.Tensor:
    """A tensor [1], for an operation that also converts the other operand to int64."""
    return torch.tensor([value], dtype=torch.int64, device=device)


@dataclass
class Step:
    """A step of the V1 runner.

    runner       the GPUModelRunner; its input batch has the prompts.
    drafts       number of drafted tokens of each request [B]; None: no drafts are verified.
    """

    runner: Any
    drafts: Optional[list[int]] = None

    def positions(self, requests: int) -> torch.Tensor:
        """int64 [B]: index of the input token after which each request's first token is drawn."""
        lengths = self.runner.seq_lens[:requests]
        last: torch.Tensor = torch.sub(lengths, _int64(1, lengths.device))  # int32 to int64
        if self.drafts is not None:
            last -= async_tensor_h2d(self.drafts, device=last.device, dtype=torch.int64)
        return last


def read_rows(metadata: Any, step: Step, requests: int) -> dict[str, torch.Tensor]:
    """Row parameters of the requests; only temperatures if all are greedy."""
    if metadata.all_greedy:
        return {"temperature": torch.zeros(requests, device=step.runner.seq_lens.device)}
    positions = step.positions(requests)
    seeds = _seeds(metadata, requests, positions.device, seed_generator(step.runner))
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
    """Seeds int64 [B] of the requests; those without one get one from `generator`.

    `generator` None is torch's default one, which vLLM seeds. The metadata object belongs to one
    batch of requests and holds their seeds; as positions advance, every step has other noise.
    """
    found: Optional[torch.Tensor] = getattr(metadata, "_gumbel_seeds", None)
    if found is None:
        seeds = torch.randint(*_SEEDS, (requests,), generator=generator).tolist()
        for row, own in metadata.generators.items():
            if row < requests:
                seed = own.initial_seed() & (2**64 - 1)
                seeds[row] = seed - (seed >> 63 << 64)
        found = async_tensor_h2d(seeds, device=device, dtype=torch.int64)
        metadata._gumbel_seeds = found
    return found


def read_parameters(metadata: Any, step: Step, requests: int) -> Optional[DrawParameters]:
    """The draw parameters of the requests; None if the library lacks one of them."""
    holder = metadata.thinking_budget_state_holder
    if holder is not None and holder.has_tracked_requests():
        return None
    known = getattr(metadata, "_gumbel_greedy", None)
    if known is not None and known[0] == requests:
        found: DrawParameters = known[1]
        return found
    rows = read_rows(metadata, step, requests)
    more: dict[str, Any] = {}
    banned: dict[int, list[int]] = defaultdict(list)
    for processor in metadata.logitsprocs.all:
        if type(processor) is MinPLogitsProcessor:
            rows.update(read_min_p(metadata))
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
        if step.drafts is not None:  # the banned tokens depend on the drafts before them
            return None
        for row, words in metadata.bad_words_token_ids.items():
            banned[row] += _ends(words, metadata.output_token_ids[row])
    if any(banned.values()):
        more["banned"] = [banned.get(row, []) for row in range(requests)]
    history = None
    if not metadata.no_penalties:
        if not can_penalise(step.runner.input_batch, requests):
            return None
        rows.update(_read_penalties(metadata))
        history = history_of(step.runner, metadata.output_token_ids[:requests])
    parameters = DrawParameters(
        rows, more, _allowed(metadata, step), history=history, batch_key=metadata
    )
    rules = rules_of(metadata, step, requests)
    if rules is not None:
        return rules.add_to(parameters)
    # Parameters of greedy requests do not change from step to step, except for bad words.
    if metadata.all_greedy and not (parameters.edits_logits or metadata.bad_words_token_ids):
        metadata._gumbel_greedy = requests, parameters
    return parameters


def rules_of(metadata: Any, step: Step, requests: int) -> Optional[BatchRules]:
    """The rules of the requests, with the lists of this step; None: there are no rules.

    The metadata belongs to one batch.
    """
    known: Optional[tuple[int, Optional[BatchRules]]] = getattr(metadata, "_gumbel_rules", None)
    if known is None or known[0] != requests:
        states = (step.runner.requests[name] for name in step.runner.input_batch.req_ids[:requests])
        found = {row: read(state.sampling_params) for row, state in enumerate(states)}
        rules = {row: each for row, each in found.items() if each is not None}
        known = requests, BatchRules(range(requests), rules) if rules else None
        metadata._gumbel_rules = known
    found_rules = known[1]
    if found_rules is not None and found_rules.dry:
        rings = rings_of(step.runner, metadata)
        rings.update(step.runner.input_batch, found_rules.dry)
        if found_rules.lists is None:
            found_rules.lists = rings.make_lists(found_rules.dry, requests)
        else:
            found_rules.lists.update()
    return found_rules


def read_min_p(metadata: Any) -> dict[str, torch.Tensor]:
    """The row parameter min_p, if a request has it."""
    return {
        "min_p": processor.min_p.view(-1)
        for processor in metadata.logitsprocs.all
        if type(processor) is MinPLogitsProcessor and processor.min_p_count
    }


def add_draft_biases(logits: torch.Tensor, metadata: Any, drafts: Any) -> None:
    """Add the biases of requests to the rows of their drafts, in place.

    vLLM's processors then change these rows, without biases, and the last row of each request, with
    its biases.
    """
    ends = [0, *drafts.cu_num_draft_tokens.tolist()]
    rows = drafts.target_logits_indices.long()
    for processor in metadata.logitsprocs.all:
        if type(processor) is not LogitBiasLogitsProcessor:
            continue
        for request, biases in processor.biases.items():
            ids = torch.tensor(list(biases), device=logits.device)
            values = torch.tensor(list(biases.values()), dtype=torch.float32, device=logits.device)
            for row in rows[ends[request] : ends[request + 1]].tolist():
                logits[row, ids] += values


def can_bias(biases: dict[int, float]) -> bool:
    """Whether the library takes these biases: other ones make logits NaN or +inf in vLLM."""
    return all(value <= FLOAT32_MAX for value in biases.values())


def can_penalise(batch: Any, requests: int) -> bool:
    """Whether the library takes the repetition penalties, which vLLM rounds to float32."""
    penalties = batch.repetition_penalties_cpu[:requests]
    return bool(((penalties > 0) & (penalties <= FLOAT32_MAX)).all())


def _ban_ends(processor: Any, step: Step, banned: dict[int, list[int]]) -> bool:
    """Ban the stop tokens of texts that are too short; False if the library cannot express it."""
    for row, (_, _, ends, *structured) in processor.min_toks.items():  # three or four values
        # A grammar may allow nothing but a stop token.
        if any(structured) or step.drafts is not None:
            return False
        banned[row] += ends
    return True


def _ends(words: list[list[int]], text: list[int]) -> list[int]:
    """The last tokens of the words whose other tokens end the text."""
    return [
        word[-1]
        for word in words
        if len(word) <= len(text) + 1 and word[:-1] == text[len(text) - len(word) + 1 :]
    ]


def _read_penalties(metadata: Any) -> dict[str, torch.Tensor]:
    return {
        "repetition_penalty": metadata.repetition_penalties,
        "frequency_penalty": metadata.frequency_penalties,
        "presence_penalty": metadata.presence_penalties,
    }


def _allowed(metadata: Any, step: Step) -> Optional[torch.Tensor]:
    forbidden = metadata.allowed_token_ids_mask
    if forbidden is None:
        return None
    mask = masks.pack_mask(~forbidden)
    if step.drafts is not None:
        rows = len(step.drafts) + sum(step.drafts)
        repeats = async_tensor_h2d(step.drafts, device=mask.device, dtype=torch.int64) + 1
        mask = mask.repeat_interleave(repeats, 0, output_size=rows)
    return mask


def read_logprobs_request(metadata: Any, mode: str) -> tuple[bool, Optional[LogprobsRequest]]:
    """Whether the library supports the requested log-probabilities, and the request if any."""
    if metadata.logprob_token_ids:
        return False, None
    count = metadata.max_num_logprobs
    if count is None:
        return True, None
    served = 0 <= count <= TOP_MAX and mode in ("raw_logprobs", "processed_logprobs")
    return served, LogprobsRequest(count, mode == "raw_logprobs") if served else None
