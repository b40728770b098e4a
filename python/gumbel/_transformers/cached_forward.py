# SPDX-License-Identifier: Apache-2.0
"""Runs a model on one text, with a cache of the text's first tokens."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from transformers.generation import candidate_generator

from .draws import Draw
from .heads import Head

# Functions that extend attention mask, position ids and token types to the length of the text.
_EXTENDERS = (
    lambda kwargs, length: candidate_generator._prepare_attention_mask(kwargs, length, False),
    lambda kwargs, length: candidate_generator._prepare_position_ids(kwargs, length, False),
    candidate_generator._prepare_token_type_ids,
)


class CachedForward:
    """Runs a model's forward on the tokens of one text that are not in its cache yet.

    kwargs       the model's arguments for the prompt, including its cache.
    """

    def __init__(self, model: Any, head: Optional[Head], kwargs: dict[str, Any]) -> None:
        self.model, self.head, self.kwargs = model, head, kwargs
        self.cache = kwargs["past_key_values"]
        self.cache.activate_past_recording()
        self.first = True

    def run_tokens(self, ids: torch.Tensor, count: int, draw: Draw) -> torch.Tensor:
        """Run the model on ids [1, L]; returns the last `count` rows, from which `draw` draws."""
        kwargs = copy.copy(self.kwargs)
        for extend in _EXTENDERS:
            kwargs = extend(kwargs, ids.shape[1])
        new = ids.shape[1] - self.cache.get_seq_length()
        inputs = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=new, is_first_iteration=self.first, **kwargs
        )
        self.first = False
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = count
        if self.head is not None:
            inputs.pop("logits_to_keep", None)
        run = self.model if self.head is None else self.head.decoder
        return draw.select_rows(run(**inputs, return_dict=True), count)

    def crop_cache(self, length: int) -> None:
        """Crop the cache to the first `length` tokens."""
        if not self.first:  # sliding layers have nothing to crop before the first forward
            self.cache.crop(-max(0, self.cache.get_seq_length() - length))
