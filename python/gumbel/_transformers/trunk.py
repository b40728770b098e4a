# SPDX-License-Identifier: Apache-2.0
"""A model that is run on one text, of which its cache holds a beginning."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from transformers.generation import candidate_generator

from .draws import Draw
from .heads import Head

# How what a model takes beside the ids grows with the text.
_GROW = (
    lambda kwargs, length: candidate_generator._prepare_attention_mask(kwargs, length, False),
    lambda kwargs, length: candidate_generator._prepare_position_ids(kwargs, length, False),
    candidate_generator._prepare_token_type_ids,
)


class Trunk:
    """A model's forward on the tokens that its cache lacks.

    kwargs       what the model takes for the prompt, its cache among it.
    """

    def __init__(self, model: Any, head: Optional[Head], kwargs: dict[str, Any]) -> None:
        self.model, self.head, self.kwargs = model, head, kwargs
        self.cache = kwargs["past_key_values"]
        self.cache.activate_past_recording()
        self.first = True

    def rows(self, ids: torch.Tensor, count: int, draw: Draw) -> torch.Tensor:
        """What `draw` draws from: the last `count` rows of ids [1, L]."""
        kwargs = copy.copy(self.kwargs)
        for grow in _GROW:
            kwargs = grow(kwargs, ids.shape[1])
        new = ids.shape[1] - self.cache.get_seq_length()
        inputs = self.model.prepare_inputs_for_generation(
            ids, next_sequence_length=new, is_first_iteration=self.first, **kwargs
        )
        self.first = False
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = count
        if self.head is not None:
            inputs.pop("logits_to_keep", None)
        run = self.model if self.head is None else self.head.base
        return draw.rows(run(**inputs, return_dict=True), count)

    def forget(self, length: int) -> None:
        """Have the cache hold the first `length` tokens at most."""
        if not self.first:  # layers that slide have nothing to crop before
            self.cache.crop(-max(0, self.cache.get_seq_length() - length))
