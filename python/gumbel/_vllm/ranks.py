# SPDX-License-Identifier: Apache-2.0
"""Ranks as vLLM defines them: how many tokens are at least as likely as the drawn one.

The library's rank is 1 + how many tokens are likelier, so equal tokens do not count. Truncation by
top_k keeps all tokens that are equal at the cut: with top_k set to the library's rank of a token, a
second call on the same logits keeps exactly the tokens that vLLM counts, and returns their number.

A second pass over a head would cost as much as the draw. So draws from hidden states use the list
of the likeliest tokens, where a CPU can read it and it shows all tokens that count, and else keep
the library's rank. That differs from vLLM's only if another token's logit, in unrounded float32, is
equal to the drawn one's.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

LISTED = 16  # tokens, at least, that a call on a CPU lists


def listed(count: int, place: torch.device) -> int:
    """How many of the likeliest tokens a draw lists where `count` are requested."""
    return max(count, LISTED) if place.type == "cpu" else count


def _by_list(out: Any) -> Optional[torch.Tensor]:
    """vLLM's ranks [B] by the list of the likeliest tokens; None where it may lack some."""
    top = out.top_logprobs
    if top is None or not top.is_cpu or not (top[:, -1:] < out.logprobs).all():
        return None
    return (top >= out.logprobs).sum(1, dtype=torch.int32)


def _at(temperature: torch.Tensor) -> torch.Tensor:
    """Temperatures at which no row is greedy; greedy rows are not truncated."""
    return temperature.where(temperature > 0, 1.0)


def rank(
    sample: Callable[..., Any],
    inputs: Any,
    given: dict[str, Any],
    drawn: Any,
    temperature: torch.Tensor,
    edits: dict[str, Any],
) -> torch.Tensor:
    """vLLM's ranks [B] of drawn tokens, from an output with the library's ranks.

    `edits` are the parameters by which the draw changed logits before it compared them.
    """
    found = _by_list(drawn)
    if found is None and len(inputs) > 1:  # hidden states and a head
        found = drawn.ranks.view(-1).clone()  # the next draw writes the same array
    if found is not None:
        return found
    out = sample(
        *inputs,
        **given,
        **edits,
        temperature=_at(temperature),
        top_k=drawn.ranks.view(-1).clamp(min=1),  # -1 in a row without a token
        kept=True,
        logprobs=None,
    )
    kept: torch.Tensor = out.kept
    return kept
