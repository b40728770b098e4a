# SPDX-License-Identifier: Apache-2.0
"""flashinfer.sampling.chain_speculative_sampling(): drafts accepted by rejection sampling."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .._calls.drafts import verify_logits
from .._calls.proposals import proposal_logits
from .._calls.sample_calls import sample_logits
from .seeds import Seed, get_seed_and_offset, make_seeds

DOMAIN_ACCEPT = 2  # GUMBEL_DOMAIN_ACCEPT


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: Optional[torch.Tensor] = None,
    maybe_output_emitted_draft_token_num: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    seed: Seed = None,
    offset: Seed = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accept each draft with probability min(1, p / q); replace the first rejected one by a draw
    from max(p - q, 0).

    draft_probs      [B, n, V]: q, the distributions that drew the drafts, with independent noise.
    draft_token_ids  [B, n]: the drafts.
    target_probs     [B, n + 1, V]: p; after n accepted drafts a token is drawn from the last row.
    maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num
                     int32 [B], to which the counts are added; None: new tensors.
    seed, offset     as in gumbel.flashinfer.sampling; draft i is tested at position offset + i.

    Returns the tokens, int32 [B, n + 1] with -1 after the last; the number of drafts that would be
    accepted if each were tested independently; and the number of emitted drafts, which does not
    include the drawn token. The emitted tokens have the distribution p. Implemented by the rule
    "rejection" of gumbel.verify_logits(). Unstable: may change in a minor release; see
    docs/compatibility.md.
    """
    ids = _check_inputs(draft_probs, draft_token_ids, target_probs)
    batch, drafts, vocab = draft_probs.shape
    wide, place = drafts + 1, target_probs.device
    if seed is None or offset is None:
        seed, offset = get_seed_and_offset(batch * wide, generator, place)
    make_seeds(seed, offset, None, place, batch, 0)  # checks them
    noise: dict[str, Any] = {"seed": _to_unsigned(seed), "position": _to_unsigned(offset)}

    target: Any = target_probs.float().log().reshape(-1, vocab)
    proposed: Any = torch.zeros((batch, wide, vocab), dtype=torch.float32, device=place)
    torch.log(draft_probs.detach().float(), out=proposed[:, :drafts])
    # The root may be any token.
    nodes: Any = torch.zeros((batch, wide), dtype=torch.int32, device=place)
    nodes[:, 1:] = ids
    out: Any = verify_logits(
        target,
        nodes,
        rule="rejection",
        proposal=proposal_logits(proposed.view(-1, vocab)),
        logprobs=None,
        **noise,
    )
    alone = out.accepted + _count_later(draft_probs, ids, target_probs, out.accepted, noise)
    counts: list[torch.Tensor] = []
    for found, into in (
        (alone, maybe_output_accepted_token_num),
        (out.accepted, maybe_output_emitted_draft_token_num),
    ):
        counts.append(found if into is None else into.add_(found))
    return out.tokens, counts[0], counts[1]


def _check_inputs(draft_probs: Any, draft_token_ids: Any, target_probs: Any) -> torch.Tensor:
    """The drafts, after a check of all shapes."""
    given = {
        "draft_probs": draft_probs,
        "draft_token_ids": draft_token_ids,
        "target_probs": target_probs,
    }
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
        if value.device != target_probs.device:
            raise ValueError(f"{name}: is on {value.device}, target_probs on {target_probs.device}")
    if draft_probs.dim() != 3:
        found = tuple(draft_probs.shape)
        raise ValueError(f"draft_probs: expected the shape (batch, drafts, vocab), got {found}")
    batch, drafts, vocab = draft_probs.shape
    for name, shape in (
        ("draft_token_ids", (batch, drafts)),
        ("target_probs", (batch, drafts + 1, vocab)),
    ):
        if given[name].shape != shape:
            raise ValueError(f"{name}: expected the shape {shape}, got {tuple(given[name].shape)}")
    drafted: torch.Tensor = draft_token_ids.to(torch.int32)
    return drafted


def _to_unsigned(value: Any) -> Any:
    """A seed or an offset as uint64; a tensor of length 1 becomes 0-d, for all rows."""
    if not isinstance(value, torch.Tensor):
        return value & (2**64 - 1)
    value = value.view(torch.uint64)
    return value[0] if len(value) == 1 else value


def _count_later(
    draft_probs: torch.Tensor,
    ids: torch.Tensor,
    target_probs: torch.Tensor,
    accepted: torch.Tensor,
    noise: dict[str, Any],
) -> torch.Tensor:
    """Count the drafts [B] after the first rejected one that pass an independent test.

    verify_logits() has not used the acceptance noise at their positions.
    """
    batch, drafts = ids.shape
    vocab, place = draft_probs.shape[2], ids.device
    known = (ids >= 0) & (ids < vocab)
    at = ids.clamp(0, vocab - 1).long().unsqueeze(-1)
    ratio = target_probs[:, :drafts].float().gather(2, at) / draft_probs.float().gather(2, at)
    ratio = torch.where(known.unsqueeze(-1), ratio, 0).nan_to_num(0, posinf=1).clamp(0, 1)
    steps = torch.arange(drafts, device=place)
    spread: dict[str, Any] = {
        name: value.view(torch.int64).repeat_interleave(drafts)
        if isinstance(value, torch.Tensor) and value.dim()
        else value
        for name, value in noise.items()
    }
    offsets = spread.pop("position")
    if isinstance(offsets, torch.Tensor):
        offsets = offsets.view(torch.int64)
    else:
        offsets -= (offsets >> 63) << 64
    spread["position"] = (steps.repeat(batch) + offsets).view(torch.uint64)
    if isinstance(spread["seed"], torch.Tensor):
        spread["seed"] = spread["seed"].view(torch.uint64)
    chances: Any = torch.cat((ratio, 1 - ratio), -1).log().view(-1, 2)
    tested: Any = sample_logits(
        chances,
        domain=DOMAIN_ACCEPT,
        logprobs=None,
        **spread,
    )
    passed: torch.Tensor = tested.tokens.view(batch, drafts) == 0
    return (passed & (steps > accepted.unsqueeze(-1))).sum(-1, dtype=torch.int32)
