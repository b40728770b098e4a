# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: several tokens in each forward pass; the text of plain decoding."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

from .draws import Draw
from .heads import Head
from .stops import check_drawn
from .cached_forward import CachedForward


def decode_assisted(
    model: Any,
    ids: torch.Tensor,
    head: Optional[Head],
    draw: Draw,
    criteria: Any,
    config: Any,
    synced_gpus: bool,
    streamer: Any,
    drafter: Callable[[torch.Tensor, int], torch.Tensor],
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, Any]:
    """Decode a text [1, L]; returns it and the cache. drafter(ids, most) returns drafts [1, n]."""
    forward = CachedForward(model, head, kwargs)
    stop = [t for c in criteria if isinstance(c, EosTokenCriteria) for t in c.eos_token_id.tolist()]
    ends, done = _ExtraCriteria(criteria), False
    while model._has_unfinished_sequences(done, synced_gpus, device=ids.device):
        length = ids.shape[1]
        room = config.max_length - length
        drafts = ids[:, :0] if done else drafter(ids, room - 1)
        candidates = torch.cat([ids, drafts], -1)
        rows = forward.run_tokens(candidates, drafts.shape[1] + 1, draw)
        if done:  # other processes have not finished, and need this process in their forward passes
            forward.crop_cache(length - 1)
            continue
        found = draw.verify(rows, candidates, room, stop)
        emitted = found.tokens[:, : int(found.emitted)].long()
        if not emitted.shape[1]:
            check_drawn(torch.tensor([-1]))
        ids, ended = ends.apply(torch.cat([ids, emitted], -1), length)
        draw.texts.position += ids.shape[1] - length
        forward.crop_cache(ids.shape[1] - 1)
        if streamer is not None:
            streamer.put(ids[0, length:].cpu())
        done = ended or bool(found.finished)
    return ids, forward.cache


class _ExtraCriteria:
    """Stopping criteria besides stop tokens and the length limit, which verification applies."""

    def __init__(self, criteria: Any) -> None:
        known = (EosTokenCriteria, MaxLengthCriteria)
        self.criteria, self.exist = criteria, any(type(c) not in known for c in criteria)

    def apply(self, ids: torch.Tensor, length: int) -> tuple[torch.Tensor, bool]:
        """The text up to the first new token that meets a criterion; and whether one does."""
        if self.exist:
            for end in range(length + 1, ids.shape[1] + 1):
                if bool(self.criteria(ids[:, :end], None).all()):
                    return ids[:, :end], True
        return ids, False
