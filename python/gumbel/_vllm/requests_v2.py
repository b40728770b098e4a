# SPDX-License-Identifier: Apache-2.0
"""Draw parameters of the requests in the slots of the V2 runner's sampler."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState, use_penalty

from .drawer import TOP_MAX, DrawParameters, LogprobsRequest
from .requests_v1 import can_bias

_KNOWN = (LogitBiasState, PenaltiesState, BadWordsState)


class Slots:
    """Host copies of the parameters of requests in a sampler's slots."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        states = sampler.sampling_states
        count = states.max_num_reqs
        self.has_unknown = any(type(it) not in _KNOWN for it in sampler.logits_processors)
        self.by_vllm = np.zeros(count, bool)  # has parameters that the library lacks
        self.listed = np.zeros(count, bool)  # has biases or allowed tokens
        self.biases: list[dict[int, float]] = [{} for _ in range(count)]
        self.allowed: list[list[int]] = [[] for _ in range(count)]

    def add(self, slot: int, parameters: Any) -> None:
        """Store the parameters of the request that now has this slot."""
        self.by_vllm[slot] = self.has_unknown or bool(
            use_penalty(parameters)
            or parameters.bad_words_token_ids
            or (parameters.min_tokens and parameters.all_stop_token_ids)
            or getattr(parameters, "thinking_token_budget", None) is not None
            or not can_bias(parameters.logit_bias or {})
        )
        self.biases[slot] = dict(parameters.logit_bias or {})
        self.allowed[slot] = list(parameters.allowed_token_ids or ())
        self.listed[slot] = bool(self.biases[slot] or self.allowed[slot])

    def serves(self, batch: Any) -> bool:
        """Whether the library supports all parameters of a batch's requests."""
        return not self.by_vllm[batch.idx_mapping_np].any()

    def rows(self, batch: Any, processed: bool = False) -> dict[str, torch.Tensor]:
        """Row parameters of the requests.

        `processed`: for logits to which temperature and min_p are applied already.
        """
        states, slots, found = self.sampler.sampling_states, batch.idx_mapping, batch.idx_mapping_np
        first = batch.logits_indices
        if len(first) != len(found):  # drafts are verified
            first = first[batch.cu_num_logits[:-1].long()]
        rows = {"seed": states.seeds.gpu[slots], "position": batch.positions[first]}
        temperature = states.temperature.gpu[slots]
        rows["temperature"] = (temperature > 0).float() if processed else temperature
        if (states.top_k.np[found] != states.vocab_size).any():
            rows["top_k"] = states.top_k.gpu[slots]
        if (states.top_p.np[found] != 1).any():
            rows["top_p"] = states.top_p.gpu[slots]
        if not processed and (states.min_p.np[found] != 0).any():
            rows["min_p"] = states.min_p.gpu[slots]
        return rows

    def parameters(self, batch: Any) -> DrawParameters:
        """The draw parameters of a batch's requests."""
        more: dict[str, Any] = {}
        found = batch.idx_mapping_np
        if self.listed[found].any():
            biases = [self.biases[slot] for slot in found]
            allowed = [self.allowed[slot] for slot in found]
            if any(biases):
                more["logit_bias"] = biases
            if any(allowed):
                more["allowed"] = allowed
        return DrawParameters(self.rows(batch), more)

    def logprobs_request(self, batch: Any) -> tuple[bool, Optional[LogprobsRequest]]:
        """Whether the library supports the requested log-probabilities, and the request if any."""
        dimensions = self.sampler.get_logprobs_dims(batch.idx_mapping_np)
        if dimensions is None:
            return True, None
        count, ids = dimensions
        mode = self.sampler.logprobs_mode
        served = count <= TOP_MAX and not ids and mode in ("raw_logprobs", "processed_logprobs")
        return served, LogprobsRequest(count, mode == "raw_logprobs") if served else None
