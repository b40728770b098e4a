# SPDX-License-Identifier: Apache-2.0
"""Drafts of draft models, EAGLE, MTP and DFlash, drawn with the target's noise.

Verification accepts a draft if it equals the target's own draw (drawer.py). A drafter that draws
from its logits with the seed and the position of that draw has the same noise for each token, and
proposes the target's token more often than the likeliest token of its own would be. Greedy requests
have no noise: their drafts are the drafter's likeliest tokens.

The position of a draft is the index of the token that it follows. A drafter whose sampling is not
that of the base classes keeps its own drafts, which are verified all the same: n-grams, Medusa,
DSpark, DFlash 2, LiLiCorr, XPress, on the V1 runner Step3p5 and Gemma 4, draft models of another
vocabulary, reductions of local maxima, all drafters of versions that are newer than the known ones,
and on the V2 runner those before 0.29.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Optional

import torch

from .draw_parameters import DrawParameters
from .drawer import drawer_of
from .draft_models import find_proposer, find_speculator
from .lazy import defer_products
from .support import is_served
from .vllm_versions import Hook

# ------------------------------------------------------------------------------- V1 runner ----


class _Proposal:
    """A V1 drafter's proposal: row parameters of the requests, and the number of its draws."""

    def __init__(self, drawer: Any, rows: dict[str, torch.Tensor], first: torch.Tensor) -> None:
        """`first` int64 [B]: the index of each request's last token, which the draft follows."""
        self.drawer, self.rows, self.first = drawer, rows, first
        self.drawn = 0

    def draw(self, logits: Any) -> torch.Tensor:
        """int64 [n]: the next draft of each request, or all drafts of each, one after another."""
        rows, requests = self.rows, len(self.first)
        each = len(logits) // requests
        if each == 1:
            position = self.first + self.drawn
        else:  # drafts that are drawn at once
            rows = {name: value.repeat_interleave(each) for name, value in rows.items()}
            steps = torch.arange(each, device=self.first.device)
            position = (self.first.unsqueeze(1) + steps).view(-1)
        self.drawn += each
        found: torch.Tensor = self.drawer.propose(
            logits, DrawParameters({**rows, "position": position})
        )
        return found


def note_runner(runner: Any) -> None:
    """Have a V1 runner's drafter find the runner."""
    drafter = getattr(runner, "drafter", None)
    if drafter is not None:
        drafter._gumbel_runner = runner


def _read_proposal(drafter: Any, given: dict[str, Any]) -> Optional[_Proposal]:
    """The proposal of a drafter's propose() with these arguments; None: vLLM draws."""
    from .requests_v1 import Step, read_min_p, read_rows

    runner, metadata = getattr(drafter, "_gumbel_runner", None), given["sampling_metadata"]
    if runner is None or metadata.all_greedy or not is_served(runner):
        return None
    if drafter.use_local_argmax_reduction or getattr(drafter, "use_heterogeneous_vocab", False):
        return None
    batch = given["common_attn_metadata"]
    first = batch.seq_lens[: batch.batch_size()].to(torch.int64, copy=True)
    if len(first) != len(metadata.temperature):
        return None
    if given.get("num_rejected_tokens_gpu") is not None:
        first -= given["num_rejected_tokens_gpu"]
    rows = {**read_rows(metadata, Step(runner), len(first)), **read_min_p(metadata)}
    return _Proposal(drawer_of(runner), rows, first)


def find_v1_hooks() -> tuple[Hook, ...]:
    """The hooks of V1's drafters; none in versions whose drafters have another form."""
    owner = find_proposer()
    if owner is None:
        return ()
    stock_propose, stock_sample = owner.propose, owner._sample_draft_tokens
    stock_greedy = owner._greedy_sample
    signature = inspect.signature(stock_propose)

    @functools.wraps(stock_propose)
    def propose(self: Any, *arguments: Any, **named: Any) -> Any:
        """A proposal, whose draws have the target's noise."""
        given = signature.bind(self, *arguments, **named).arguments
        if type(self)._greedy_sample is stock_greedy:
            self._gumbel_proposal = _read_proposal(self, given)
        try:
            return stock_propose(self, *arguments, **named)
        finally:
            self._gumbel_proposal = None

    @functools.wraps(stock_sample)
    def sample(self: Any, hidden_states: Any, sampling_metadata: Any) -> Any:
        """Drafted tokens; no probabilities, which shared noise does not need."""
        proposal: Optional[_Proposal] = getattr(self, "_gumbel_proposal", None)
        if proposal is None:
            return stock_sample(self, hidden_states, sampling_metadata)
        with defer_products():
            logits = self.model.compute_logits(hidden_states)
        return proposal.draw(logits), None

    return (owner, "propose", propose), (owner, "_sample_draft_tokens", sample)


# ------------------------------------------------------------------------------- V2 runner ----


def note_sampler(runner: Any, sampler: Any) -> None:
    """Have a V2 runner's drafter draw as this sampler; None: as vLLM."""
    drafter = getattr(runner, "speculator", None)
    if drafter is not None:
        drafter._gumbel_sampler = sampler


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def find_v2_hooks() -> tuple[Hook, ...]:
    """The hooks of V2's drafters; none in versions whose drafters have another form."""
    owner = find_speculator()
    if owner is None:
        return ()
    stock = owner.sample_draft

    @functools.wraps(stock)
    def sample_draft(
        self: Any,
        hidden_states: torch.Tensor,
        sample_src_positions: torch.Tensor,
        idx_mapping: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        draft_step: torch.Tensor,
        draft_logits: Optional[torch.Tensor],
        **later: Any,
    ) -> Any:
        """Drafted tokens int64 [n]; vLLM's cache of draft logits is left as it is."""
        sampler = getattr(self, "_gumbel_sampler", None)
        if sampler is None or self.use_local_argmax_reduction:
            rest = (temperature, seeds, draft_step, draft_logits)
            return stock(self, hidden_states, sample_src_positions, idx_mapping, *rest, **later)
        capturing = _is_capturing(hidden_states.device)
        with defer_products(not capturing):
            if hasattr(self, "compute_draft_logits"):
                logits = self.compute_draft_logits(hidden_states, later.get("spec_step_idx", 0))
            else:
                logits = self.model.compute_logits(hidden_states)
        slots = idx_mapping.clamp(min=0)  # rows of a padded batch have none
        rows = {
            "temperature": temperature[slots],
            "seed": seeds[slots],
            "position": sample_src_positions.long(),
        }
        # A graph serves all later batches, whatever parameters they use.
        truncation = sampler.slots.held_truncation if capturing else sampler.slots.truncation
        rows.update(truncation(slots))
        return sampler.drawer.propose(logits, DrawParameters(rows), capturing)

    return ((owner, "sample_draft", sample_draft),)
