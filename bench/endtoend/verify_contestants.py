# SPDX-License-Identifier: Apache-2.0
"""The contestants of bench_verify_peers.py: hidden states [n, D] of R chains in, emitted tokens
out, int32 [R, G + 1] with -1 after the last token.

`prepare(case)` returns a function that queues one step on the current stream, which may be
capturing a graph. Peers receive the draft's probabilities, which are computed before the timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import gumbel
import torch

NEAR = 0.5  # fraction of the logits' deviation that the draft lacks
LOGIT_DEVIATION = 2.5


class Case:
    """Inputs of one shape: a draft near the target, its chains, and the log-normalisers of its
    draws.

    The draft's head reads the first entries of a hidden state; the other entries determine the
    distance of its logits from the target's.
    """

    def __init__(self, models, requests, drafts):
        self.requests, self.drafts = requests, drafts
        self.weight, self.draft_weight = models
        vocab, width = self.weight.shape
        seen, place, rows = self.draft_weight.shape[1], self.weight.device, requests * (drafts + 1)
        self.vocab, self.rows = vocab, rows
        hidden = torch.randn(rows, width, device=place)
        hidden[:, :seen] *= LOGIT_DEVIATION * seen**-0.5
        hidden[:, seen:] *= NEAR * LOGIT_DEVIATION * (width - seen) ** -0.5
        self.hidden = hidden.bfloat16()
        self.draft_hidden = self.hidden[:, :seen].contiguous()
        self.draft_logits = torch.mm(self.draft_hidden, self.draft_weight.t())
        self.seed = torch.arange(1, requests + 1, device=place)
        self.row_seed = self.seed.repeat_interleave(drafts + 1)
        self.position = torch.zeros(requests, dtype=torch.int64, device=place)
        self.row_position = torch.arange(drafts + 1, device=place).repeat(requests)
        drew = gumbel.sample(
            self.draft_hidden, self.draft_weight, seed=self.row_seed.view(torch.uint64),
            position=self.row_position.view(torch.uint64), domain=gumbel.draft_domain(),
        )
        self.lse, self.logprobs = drew.lse, drew.logprobs[:, 0].contiguous()
        chains = drew.tokens.view(requests, drafts + 1)[:, :-1]
        self.drafted = chains.contiguous()
        self.nodes = torch.cat([torch.zeros_like(chains[:, :1]), chains], 1).contiguous()
        probs = torch.softmax(self.draft_logits.float(), -1).view(requests, drafts + 1, vocab)
        self.draft_probs = probs[:, :-1].contiguous()

    def expected(self):
        """Mean and deviation of the number of drafts that rejection accepts in these chains."""
        shape = (self.requests, self.drafts + 1, self.vocab)
        at = self.drafted.long().unsqueeze(-1)
        logits = torch.mm(self.hidden, self.weight.t()).float().view(shape)[:, :-1]
        p = torch.log_softmax(logits, -1).gather(-1, at).squeeze(-1)
        q = self.draft_probs.gather(-1, at).squeeze(-1).log()
        reached = (p - q).clamp_max(0).exp().cumprod(1).double()  # P(at least as many)
        mean = reached.sum(1)
        odd = 2 * torch.arange(self.drafts, device=at.device) + 1
        variance = (reached * odd).sum(1) - mean**2
        return mean.sum().item(), variance.sum().clamp_min(0).sqrt().item()


@dataclass
class Contestant:
    name: str
    column: str  # head of its column in the table
    about: str
    ours: bool
    rule: str  # "coupled", "rejection", or "" if it emits no chains
    prepare: Callable[[Case], Callable[[], Any]]


# ------------------------------------------------------------------------------- libgumbel ----


def plain(case):
    seed, position = (x.view(torch.uint64) for x in (case.row_seed, case.row_position))
    return lambda: gumbel.sample(
        case.hidden, case.weight, seed=seed, position=position, logprobs=None
    ).tokens


def verify(case, **rule):
    seed, position = (x.view(torch.uint64) for x in (case.seed, case.position))
    return lambda: gumbel.verify(
        case.hidden, case.weight, case.nodes, seed=seed, position=position, logprobs=None, **rule
    ).tokens


def supplied(case):
    drew = gumbel.proposal(
        case.draft_hidden, case.draft_weight, drawn_lse=case.lse, drawn_logprobs=case.logprobs
    )
    return verify(case, rule="rejection", proposal=drew)


def kept(case):
    return verify(case, rule="rejection", proposal=gumbel.proposal_logits(case.draft_logits))


def head(case):
    drew = gumbel.proposal(case.draft_hidden, case.draft_weight)
    return verify(case, rule="rejection", proposal=drew)


# --------------------------------------------------------------------------- what peers do ----


def rejection(probs, draft_probs, tokens):
    """Leviathan et al. 2023, Algorithm 1, for all requests at once: emitted tokens, followed by -1.

    probs [R, G + 1, V] of the target, draft_probs [R, G, V], tokens [R, G] drawn by the draft.
    """
    ids = tokens.long().unsqueeze(-1)
    p, q = probs[:, :-1].gather(-1, ids).squeeze(-1), draft_probs.gather(-1, ids).squeeze(-1)
    accepted = (torch.rand_like(p) * q < p).int().cumprod(1)
    left = torch.cat([(probs[:, :-1] - draft_probs).clamp_min(0), probs[:, -1:]], 1)
    drawn = (left / torch.empty_like(left).exponential_()).argmax(-1)
    count = accepted.sum(1, keepdim=True)
    place = torch.arange(probs.shape[1], device=probs.device)
    kept_drafts = torch.cat([tokens.long(), drawn[:, -1:]], 1)
    return torch.where(place < count, kept_drafts, torch.where(place == count, drawn, -1))


def by_torch(case):
    shape = (case.requests, case.drafts + 1, case.vocab)

    def step(logits, draft_probs, tokens):
        return rejection(torch.softmax(logits.float(), -1).view(shape), draft_probs, tokens)

    compiled = torch.compile(step, dynamic=False)
    return lambda: compiled(
        torch.mm(case.hidden, case.weight.t()), case.draft_probs, case.drafted
    )


def by_flashinfer(case):
    """Seed and offset in device memory, as FlashInfer requires of calls in a graph."""
    from flashinfer import sampling

    state = {
        name: torch.full((1,), 7, dtype=torch.int64, device=case.hidden.device)
        for name in ("seed", "offset")
    }

    softmax = getattr(sampling, "softmax", None) or (lambda logits: torch.softmax(logits, -1))
    shape = (case.requests, case.drafts + 1, case.vocab)

    def step():
        probs = softmax(torch.mm(case.hidden, case.weight.t()).float()).view(shape)
        state["offset"].add_(4 * case.vocab)
        return sampling.chain_speculative_sampling(
            case.draft_probs, case.drafted, probs, **state
        )[0]

    return step


CONTESTANTS = [
    Contestant("plain", "plain draw", "the library's fused draw of as many rows", True, "", plain),
    Contestant("coupled", "coupled", "the library, coupled", True, "coupled", verify),
    Contestant(
        "supplied", "supplied",
        "the library's rejection by the draft's head, with lse and logprobs of its draws",
        True, "rejection", supplied,
    ),
    Contestant(
        "kept", "logits kept", "the library's rejection by the draft's logits, bfloat16", True,
        "rejection", kept,
    ),
    Contestant(
        "head", "the draft's head", "the library's rejection by the draft's head alone", True,
        "rejection", head,
    ),
    Contestant(
        "torch", "PyTorch, compiled", "GEMM, then softmax and rejection as one compiled function",
        False, "rejection", by_torch,
    ),
    Contestant(
        "flashinfer", "FlashInfer", "GEMM, FlashInfer's softmax and chain_speculative_sampling",
        False, "rejection", by_flashinfer,
    ),
]
