# SPDX-License-Identifier: Apache-2.0
"""The calls of flashinfer.sampling that draw.

All take tensors on one device, CUDA's or the CPU's, whose rows are distributions, and queue on the
current stream. What they share:

logits, probs  [rows, V], float32, float16 or bfloat16, others as float32. Probabilities need not
             sum to 1; what is exactly 0 is never drawn.
indices      int32 or int64 [B]: output b is drawn from row indices[b], so that rows can serve
             several outputs; the tokens have its dtype. None: from row b, and int32.
top_k, top_p, min_p
             a number, or a tensor of one a distribution row. Tokens as likely as the last that is
             kept are kept, too. ValueError for a value out of range, 0 of top_k and top_p included,
             in a number or in a tensor on the CPU. The values of a tensor on CUDA are not looked
             at: one out of range counts as off. FlashInfer checks no tensor; its kernels draw the
             likeliest token where top_k is 0.
deterministic  is taken and changes nothing: all calls give the same tokens each time.
generator    where seeds come from if `seed` or `offset` is None, as get_seed_and_offset() says.
check_nan    True: ValueError where the input holds a NaN, after a wait for it.
seed, offset both ints, or both int64 or uint64 tensors of length 1 or B on the inputs' device,
             which are read when the call runs: so a graph that was captured draws anew as they are
             written to.
return_valid  True: give a bool [B], too. It is False for a row without a token to draw, or with a
             NaN, +inf or negative probability; its token is 0, as in FlashInfer. Without
             return_valid such rows are counted, and the log "gumbel.flashinfer" has a warning with
             the counts, at most once a minute. On CUDA one call in 50 ms is looked at, without a
             wait, and none that a graph replays.

A token's noise is the library's function of (seed, offset, token): `seed` and `offset` are the seed
and the position of gumbel.sample_logits(). A tensor of B seeds gives output b seeds[b], whatever b
is: a row that moves to another place of a batch draws what it drew. One seed for all, as an int or
a tensor of one, is mixed with b, and output 0 uses it as it is. A draw needs one offset, so that
counting by ones is enough.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .calls import JOINT, PLAIN, drawn, rows_of
from .chains import chain_speculative_sampling
from .limits import limits_of
from .renormalised import (
    softmax,
    top_k_mask_logits,
    top_k_renorm_prob,
    top_k_renorm_probs,
    top_p_renorm_prob,
    top_p_renorm_probs,
)
from .seeds import Seed, get_seed_and_offset, seeds_of
from .watch import Watch, settle

__all__ = [
    "chain_speculative_sampling",
    "get_seed_and_offset",
    "min_p_sampling_from_probs",
    "sampling_from_logits",
    "sampling_from_probs",
    "softmax",
    "top_k_mask_logits",
    "top_k_renorm_prob",
    "top_k_renorm_probs",
    "top_k_sampling_from_probs",
    "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs",
    "top_p_renorm_prob",
    "top_p_renorm_probs",
    "top_p_sampling_from_probs",
]

Number = Union[torch.Tensor, float]
Count = Union[torch.Tensor, int]
Drawn = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]

WATCH = Watch("gumbel.flashinfer", "each was given token 0; return_valid=True tells which")
ORDERS = {"top_k_first": PLAIN, "joint": JOINT}
ROUNDS = 32  # values that FlashInfer advances a generator by for a row that is truncated


def refuse_nan(name: str, rows: torch.Tensor) -> None:
    if torch.any(torch.isnan(rows)):
        raise ValueError(f"Input {name} contains NaN.")


Seeds = tuple[Seed, Seed, Optional[torch.Generator]]


def draw_rows(
    logits: torch.Tensor,
    indices: Optional[torch.Tensor],
    seeds: Seeds,
    increment: int,
    options: tuple[int, int] = PLAIN,
    **limits: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from logits by one call: tokens, -1 in a row without one, and statuses, int32 [B].

    `increment` is a row's.
    """
    rows, place = logits.shape[0], logits.device
    if indices is not None:
        if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
            raise ValueError("indices: expected int32 or int64 of shape (batch,)")
        if indices.device != place:
            raise ValueError(f"indices: is on {indices.device}, the rows are on {place}")
        logits = logits.index_select(0, indices)
    given = limits_of(rows, place, indices, **limits)
    batch = logits.shape[0]
    seed, offset, generator = seeds
    given.update(seeds_of(seed, offset, generator, place, batch, batch * increment))
    return drawn(logits, given, options)


def told(found: tuple[torch.Tensor, torch.Tensor], indices: Optional[torch.Tensor]) -> torch.Tensor:
    """Tokens as they are given: a row without one must not end its caller's gather."""
    tokens = settle(WATCH, found)
    return tokens if indices is None else tokens.to(indices.dtype)


def _told_with(
    found: tuple[torch.Tensor, torch.Tensor], indices: Optional[torch.Tensor], return_valid: bool
) -> Drawn:
    if not return_valid:
        return told(found, indices)
    valid = found[0] >= 0
    tokens = found[0].clamp_(min=0)
    return tokens if indices is None else tokens.to(indices.dtype), valid


def _logs(probs: Any, check_nan: bool) -> torch.Tensor:
    """Probabilities as logits."""
    probs = rows_of("probs", probs)
    if check_nan:
        refuse_nan("probs", probs)
    logs: torch.Tensor = probs.float().log()
    return logs


def sampling_from_logits(
    logits: torch.Tensor,
    indices: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
) -> torch.Tensor:
    """Draw from softmax(logits), without forming it."""
    logits = rows_of("logits", logits)
    if check_nan:
        refuse_nan("logits", logits)
    found = draw_rows(logits, indices, (seed, offset, generator), logits.shape[1])
    return told(found, indices)


def sampling_from_probs(
    probs: torch.Tensor,
    indices: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
    return_valid: bool = False,
) -> Drawn:
    """Draw from probabilities."""
    logs = _logs(probs, check_nan)
    found = draw_rows(logs, indices, (seed, offset, generator), 1)
    return _told_with(found, indices, return_valid)


def top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_p: Number,
    indices: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
    return_valid: bool = False,
) -> Drawn:
    """Draw from the likeliest tokens that hold the share top_p, in (0, 1]."""
    logs, seeds = _logs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, top_p=top_p)
    return _told_with(found, indices, return_valid)


def top_k_sampling_from_probs(
    probs: torch.Tensor,
    top_k: Count,
    indices: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
    return_valid: bool = False,
) -> Drawn:
    """Draw from the top_k likeliest tokens; V or more are all of them."""
    logs, seeds = _logs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, top_k=top_k)
    return _told_with(found, indices, return_valid)


def min_p_sampling_from_probs(
    probs: torch.Tensor,
    min_p: Number,
    indices: Optional[torch.Tensor] = None,
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
    return_valid: bool = False,
) -> Drawn:
    """Draw from the tokens that have at least the share min_p of the likeliest one's mass."""
    logs, seeds = _logs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, 1, min_p=min_p)
    return _told_with(found, indices, return_valid)


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor,
    top_k: Count,
    top_p: Number,
    indices: Optional[torch.Tensor] = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
) -> torch.Tensor:
    """Draw from logits by top_k and top_p.

    filter_apply_order
                 "top_k_first": top_p counts the mass that top_k left, renormalised; "joint": both
                 count that of the whole row. ValueError otherwise.
    """
    options = order_of(filter_apply_order)
    logits = rows_of("logits", logits)
    if check_nan:
        refuse_nan("probs", logits)  # which FlashInfer makes of them first
    seeds = (seed, offset, generator)
    found = draw_rows(logits, indices, seeds, ROUNDS, options, top_k=top_k, top_p=top_p)
    return told(found, indices)


def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: Count,
    top_p: Number,
    indices: Optional[torch.Tensor] = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: Optional[torch.Generator] = None,
    check_nan: bool = False,
    seed: Seed = None,
    offset: Seed = None,
    return_valid: bool = False,
) -> Drawn:
    """Draw from probabilities by top_k and top_p; else as top_k_top_p_sampling_from_logits()."""
    options = order_of(filter_apply_order)
    logs, seeds = _logs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, options, top_k=top_k, top_p=top_p)
    return _told_with(found, indices, return_valid)


def order_of(filter_apply_order: str) -> tuple[int, int]:
    if filter_apply_order not in ORDERS:
        raise ValueError(f"Invalid filter_apply_order: {filter_apply_order}")
    return ORDERS[filter_apply_order]
