# SPDX-License-Identifier: Apache-2.0
"""Ranks as vLLM defines them: the number of tokens at least as likely as the drawn one.

The library's rank is 1 + the number of likelier tokens, so ties do not count. Truncation by top_k
keeps all ties of the k-th token: with top_k set to the library's rank of a token, a second call on
the same logits keeps exactly the tokens that vLLM counts, and returns their number.

A second pass over a head would cost as much as the draw. Draws from hidden states therefore use the
list of the likeliest tokens, if it is on a CPU and holds all tokens that count, and otherwise keep
the library's rank. That rank differs from vLLM's only if another token's logit, in unrounded
float32, is equal to the drawn one's.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .draw_parameters import DrawParameters

LISTED = 16  # least number of tokens that a call on a CPU lists


def listed(count: int, place: torch.device) -> int:
    """The number of likeliest tokens that a draw lists if `count` are requested."""
    return max(count, LISTED) if place.type == "cpu" else count


def _by_list(out: Any) -> Optional[torch.Tensor]:
    """vLLM's ranks [B] from the list of the likeliest tokens; None if the list may be too short."""
    top = out.top_logprobs
    if top is None or not top.is_cpu or not (top[:, -1:] < out.logprobs).all():
        return None
    return (top >= out.logprobs).sum(1, dtype=torch.int32)


def score_by_vllm(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> Any:
    """vLLM's own log-probabilities and ranks of tokens [B, 1], by its kernels for GPUs.

    Returns a LogprobsTensors of the tokens and of the `count` likeliest ones; None on a CPU.
    """
    if not logits.is_cuda:
        return None
    try:
        from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
    except ImportError:
        return None
    return compute_topk_scores(logits, count, tokens.view(-1).long())


def rank(
    sample: Callable[..., Any],
    inputs: Any,
    given: dict[str, Any],
    drawn: Any,
    parameters: DrawParameters,
) -> torch.Tensor:
    """vLLM's ranks [B] of drawn tokens, from an output with the library's ranks.

    Of `parameters` the temperature and the edits of logits are used.
    """
    found = _by_list(drawn)
    if found is None and (len(inputs) > 1 or parameters.orders):  # a head, or rules
        found = drawn.ranks.view(-1).clone()  # the next draw writes the same array
    if found is not None:
        return found
    temperature = parameters.rows["temperature"]
    out = sample(
        *inputs,
        **given,
        **parameters.edits(),
        **parameters.places,
        temperature=temperature.where(temperature > 0, 1.0),  # greedy rows are not truncated
        # A row without a token has rank -1.
        top_k=parameters.by_entry(drawn.ranks.view(-1).clamp(min=1), 1),
        kept=True,
        logprobs=None,
    )
    kept: torch.Tensor = out.kept
    return kept
