# SPDX-License-Identifier: Apache-2.0
"""The calls of flashinfer.sampling that draw.

All functions take tensors on one device, CUDA or the CPU, whose rows are distributions, and queue
their work on the current stream. They return one token for each output. Common parameters:

logits, probs  [rows, V], float32, float16 or bfloat16; other floats are converted to float32.
             Probabilities need not sum to 1; a token with probability 0 is never drawn.
indices      int32 or int64 [B]: output b is drawn from row indices[b], so that a row can serve
             several outputs; the tokens have its dtype. None: output b from row b, int32.
top_k, top_p, min_p
             a number, or a tensor [rows]. Tokens as likely as the last kept one are kept, too. A
             number, or a tensor on the CPU, out of range raises ValueError; 0 is out of range for
             top_k and top_p. Values of a tensor on CUDA are not checked: one out of range is off.
             (FlashInfer checks no tensor, and draws the likeliest token if top_k is 0.)
deterministic  ignored: equal arguments always give equal tokens.
generator    the source of seeds if `seed` or `offset` is None; see get_seed_and_offset().
check_nan    True: wait for the input, and raise ValueError if it holds a NaN.
seed, offset both ints, or both int64 or uint64 tensors of length 1 or B on the inputs' device.
             Tensors are read when the call runs, so a captured graph uses their present values.
return_valid  True: also return a bool [B], False for a row without a token to draw or with a NaN,
             +inf or negative probability; the row's token is 0, as in FlashInfer. Without
             return_valid such rows are counted, and the log "gumbel.flashinfer" has a warning with
             the counts, at most once a minute. On CUDA one call in 50 ms is counted, without a
             wait, and no call that a graph replays.

The noise of a token is a function of (seed, offset, token): `seed` and `offset` are the seed and
the position of gumbel.sample_logits(). With a tensor of B seeds, output b uses seeds[b] only, so a
row that moves to another position of the batch draws the same token. From one seed for all outputs,
an int or a tensor of length 1, the seed of each output b is derived; output 0 uses it unchanged.
Each draw uses one offset, so advance it by 1.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .calls import JOINT, PLAIN, draw_tokens, read_rows
from .chains import chain_speculative_sampling
from .limits import read_limits
from .renormalised import (
    softmax,
    top_k_mask_logits,
    top_k_renorm_prob,
    top_k_renorm_probs,
    top_p_renorm_prob,
    top_p_renorm_probs,
)
from .seeds import Seed, get_seed_and_offset, make_seeds
from .watch import Watch, replace_missing

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

WATCH = Watch("gumbel.flashinfer", "each was given token 0; return_valid=True returns which")
ORDERS = {"top_k_first": PLAIN, "joint": JOINT}
ROUNDS = 32  # random values by which FlashInfer advances a generator for a truncated row


def reject_nan(name: str, rows: torch.Tensor) -> None:
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
    """Draw from logits by one call: tokens (-1 in a row without one) and statuses, int32 [B].

    `increment` is the number of random values for each row, as in get_seed_and_offset().
    """
    rows, place = logits.shape[0], logits.device
    if indices is not None:
        if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
            raise ValueError("indices: expected int32 or int64 of shape (batch,)")
        if indices.device != place:
            raise ValueError(f"indices: is on {indices.device}, the rows are on {place}")
        logits = logits.index_select(0, indices)
    given = read_limits(rows, place, indices, **limits)
    batch = logits.shape[0]
    seed, offset, generator = seeds
    given.update(make_seeds(seed, offset, generator, place, batch, batch * increment))
    return draw_tokens(logits, given, options)


def finish_tokens(
    found: tuple[torch.Tensor, torch.Tensor], indices: Optional[torch.Tensor]
) -> torch.Tensor:
    """Tokens to return, with 0 in rows without one: a valid index for the caller."""
    tokens = replace_missing(WATCH, found)
    return tokens if indices is None else tokens.to(indices.dtype)


def _finish_with_valid(
    found: tuple[torch.Tensor, torch.Tensor], indices: Optional[torch.Tensor], return_valid: bool
) -> Drawn:
    if not return_valid:
        return finish_tokens(found, indices)
    valid = found[0] >= 0
    tokens = found[0].clamp_(min=0)
    return tokens if indices is None else tokens.to(indices.dtype), valid


def _read_probs(probs: Any, check_nan: bool) -> torch.Tensor:
    """Probabilities as logits."""
    probs = read_rows("probs", probs)
    if check_nan:
        reject_nan("probs", probs)
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
    logits = read_rows("logits", logits)
    if check_nan:
        reject_nan("logits", logits)
    found = draw_rows(logits, indices, (seed, offset, generator), logits.shape[1])
    return finish_tokens(found, indices)


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
    logs = _read_probs(probs, check_nan)
    found = draw_rows(logs, indices, (seed, offset, generator), 1)
    return _finish_with_valid(found, indices, return_valid)


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
    """Draw from the smallest set of likeliest tokens with a total probability of top_p."""
    logs, seeds = _read_probs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, top_p=top_p)
    return _finish_with_valid(found, indices, return_valid)


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
    """Draw from the top_k likeliest tokens; top_k >= V means all."""
    logs, seeds = _read_probs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, top_k=top_k)
    return _finish_with_valid(found, indices, return_valid)


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
    """Draw from the tokens with a probability of at least min_p times that of the likeliest one."""
    logs, seeds = _read_probs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, 1, min_p=min_p)
    return _finish_with_valid(found, indices, return_valid)


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
    """Draw from logits with top_k and top_p.

    filter_apply_order
                 "top_k_first": top_p applies to the renormalised top_k tokens; "joint": both apply
                 to the whole row. ValueError otherwise.
    """
    options = get_options(filter_apply_order)
    logits = read_rows("logits", logits)
    if check_nan:
        reject_nan("probs", logits)  # FlashInfer checks the probabilities of the logits
    seeds = (seed, offset, generator)
    found = draw_rows(logits, indices, seeds, ROUNDS, options, top_k=top_k, top_p=top_p)
    return finish_tokens(found, indices)


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
    """Draw from probabilities with top_k and top_p; see top_k_top_p_sampling_from_logits()."""
    options = get_options(filter_apply_order)
    logs, seeds = _read_probs(probs, check_nan), (seed, offset, generator)
    found = draw_rows(logs, indices, seeds, ROUNDS, options, top_k=top_k, top_p=top_p)
    return _finish_with_valid(found, indices, return_valid)


def get_options(filter_apply_order: str) -> tuple[int, int]:
    if filter_apply_order not in ORDERS:
        raise ValueError(f"Invalid filter_apply_order: {filter_apply_order}")
    return ORDERS[filter_apply_order]
