# SPDX-License-Identifier: Apache-2.0
"""Drafters for speculative decoding: a smaller model, or n-grams of the text."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from .draws import make_draw
from .texts import Texts
from .cached_forward import CachedForward

DRAFT_TOKENS = 4  # the best length if a step of the draft model costs 5 to 15% of the target's


class NgramDrafter:
    """Drafts the tokens that followed an earlier occurrence of the last few tokens."""

    def __init__(self, config: Any) -> None:
        self.lookup = PromptLookupCandidateGenerator(
            eos_token_id=config._eos_token_tensor,
            num_output_tokens=config.prompt_lookup_num_tokens,
            max_matching_ngram_size=config.max_matching_ngram_size or 2,
            max_length=config.max_length,
        )

    def __call__(self, ids: torch.Tensor, most: int) -> torch.Tensor:
        """Tokens [1, n] that may follow ids [1, L], n <= most."""
        found, _ = self.lookup.get_candidates(ids)
        end = ids.shape[1]
        return found[:, end : end + most]


class ModelDrafter:
    """Drafts by a model with the target's seeds and positions, which makes equal tokens likely.

    kwargs       the target's arguments for the prompt.
    screen       whether to draw by a screen of the draft model's head.
    """

    def __init__(
        self,
        model: Any,
        ids: torch.Tensor,
        texts: Texts,
        processors: Any,
        greedy: bool,
        kwargs: dict[str, Any],
        screen: bool = False,
    ) -> None:
        ids = ids.to(model.device)
        self.model, self.target, self.texts = model, texts, texts.copy_to(model.device)
        head, self.draw = make_draw(model, processors, greedy, self.texts, ids, screen=screen)
        self.count = model.generation_config.num_assistant_tokens or DRAFT_TOKENS
        of_prompt = {
            name: kwargs[name].to(model.device)
            for name in ("attention_mask", "position_ids", "token_type_ids")
            if kwargs.get(name) is not None
        }
        cache = DynamicCache()  # a sliding-window cache cannot be cropped by several tokens
        given = {"past_key_values": cache, "use_cache": True, **of_prompt}
        if model._supports_logits_to_keep():
            given["logits_to_keep"] = 1
        self.forward = CachedForward(model, head, given)

    def __call__(self, ids: torch.Tensor, most: int) -> torch.Tensor:
        """Tokens [1, n] that may follow ids [1, L], n <= most."""
        found, end = ids.to(self.model.device), ids.shape[1]
        self.forward.crop_cache(end - 1)
        self.texts.position.copy_(self.target.position)
        self.draw.reset_history(found)
        for _ in range(min(self.count, most)):
            token = self.draw(self.forward.run_tokens(found, 1, self.draw), found)
            found = torch.cat([found, token[:, None]], -1)
            self.texts.position += 1
        return found[:, end:].to(ids.device)
